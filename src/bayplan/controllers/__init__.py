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
    PodBehavior,
)
from bayplan.controllers.manager import CLEANUP_CONTROLLERS, CONTROLLER_NAMES, ControllerManager, select_controllers
from bayplan.controllers.storage.volume_binder import make_default_class

__all__ = [
    "CLEANUP_CONTROLLERS",
    "CONTROLLER_NAMES",
    "EXIT_CODE",
    "FAILURE_RATE",
    "READY_AFTER",
    "RUNS_FOR",
    "STARTS_AFTER",
    "STOPS_AFTER",
    "ControllerManager",
    "FakeKubelet",
    "NodePool",
    "NodeTemplate",
    "PodBehavior",
    "make_default_class",
    "nodes_of",
    "select_controllers",
]
