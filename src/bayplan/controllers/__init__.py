"""API clients that do what the other parts of a cluster do: the fake kubelet."""

from bayplan.controllers.fake_kubelet import FakeKubelet
from bayplan.controllers.node_pools import NodePool, nodes_of
from bayplan.controllers.node_template import NodeTemplate
from bayplan.controllers.pod_reports import RUNS_FOR, STOPS_AFTER, PodHabits

__all__ = ["RUNS_FOR", "STOPS_AFTER", "FakeKubelet", "NodePool", "NodeTemplate", "PodHabits", "nodes_of"]
