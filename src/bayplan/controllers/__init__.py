"""API clients that do what the other parts of a cluster do: controllers, and kubelets that run nothing."""

from bayplan.controllers.kubelet.fake_kubelet import FakeKubelet
from bayplan.controllers.kubelet.node_pools import NodePool, nodes_of
from bayplan.controllers.kubelet.node_template import NodeTemplate
from bayplan.controllers.kubelet.pod_stages import (
    EXIT_CODE,
    FAILURE_RATE,
    READY_AFTER,
    RUNS_FOR,
    STARTS_AFTER,
    STOPS_AFTER,
    PodHabits,
)
from bayplan.controllers.manager import CONTROLLER_NAMES, HOUSEKEEPING, Controllers, chosen
from bayplan.controllers.storage.volume_binder import make_default_class

__all__ = [
    "CONTROLLER_NAMES",
    "EXIT_CODE",
    "FAILURE_RATE",
    "HOUSEKEEPING",
    "READY_AFTER",
    "RUNS_FOR",
    "STARTS_AFTER",
    "STOPS_AFTER",
    "Controllers",
    "FakeKubelet",
    "NodePool",
    "NodeTemplate",
    "PodHabits",
    "chosen",
    "make_default_class",
    "nodes_of",
]
