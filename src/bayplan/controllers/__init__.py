"""API clients that do what the other parts of a cluster do: controllers, and kubelets that run nothing."""

from bayplan.controllers.fake_kubelet import FakeKubelet
from bayplan.controllers.manager import CONTROLLER_NAMES, HOUSEKEEPING, Controllers, chosen
from bayplan.controllers.node_pools import NodePool, nodes_of
from bayplan.controllers.node_template import NodeTemplate
from bayplan.controllers.pod_reports import RUNS_FOR, STOPS_AFTER, PodHabits

__all__ = [
    "CONTROLLER_NAMES",
    "HOUSEKEEPING",
    "RUNS_FOR",
    "STOPS_AFTER",
    "Controllers",
    "FakeKubelet",
    "NodePool",
    "NodeTemplate",
    "PodHabits",
    "chosen",
    "nodes_of",
]
