"""Extension points, statuses and everything a plugin author imports."""

from bayplan.config.args import ArgsKind
from bayplan.config.field_errors import FieldError, FieldPath, invalid
from bayplan.config.schema import Wire
from bayplan.framework.cycle import Cycle, Key
from bayplan.framework.diagnosis import Diagnosis
from bayplan.framework.events import Action, ClusterEvent, Cure, Hint, Resource, nothing, queue_if
from bayplan.framework.handle import Handle
from bayplan.framework.intents import BindPod
from bayplan.framework.plugin import (
    MAX_SCORE,
    NarrowTo,
    Placement,
    PostFilterAnswer,
    Preflight,
    QueuedPod,
    Rejection,
    Wait,
    row_alone,
)
from bayplan.framework.registry import Registry
from bayplan.framework.scoring import default_normalize
from bayplan.framework.status import SKIP, SUCCESS, Code, Status, error, pending, unresolvable, unschedulable
from bayplan.objects.core import Node, Pod
from bayplan.snapshot import BoolVector, IntVector, NodeTable, NodeView, PodColumns, PodInfo, Snapshot

__all__ = [
    "MAX_SCORE",
    "SKIP",
    "SUCCESS",
    "Action",
    "ArgsKind",
    "BindPod",
    "BoolVector",
    "ClusterEvent",
    "Code",
    "Cure",
    "Cycle",
    "Diagnosis",
    "FieldError",
    "FieldPath",
    "Handle",
    "Hint",
    "IntVector",
    "Key",
    "NarrowTo",
    "Node",
    "NodeTable",
    "NodeView",
    "Placement",
    "Pod",
    "PodColumns",
    "PodInfo",
    "PostFilterAnswer",
    "Preflight",
    "QueuedPod",
    "Registry",
    "Rejection",
    "Resource",
    "Snapshot",
    "Status",
    "Wait",
    "Wire",
    "default_normalize",
    "error",
    "invalid",
    "nothing",
    "pending",
    "queue_if",
    "row_alone",
    "unresolvable",
    "unschedulable",
]
