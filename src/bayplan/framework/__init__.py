"""Extension points, statuses and everything a plugin author imports."""

from bayplan.config.field_errors import FieldError, FieldPath, invalid
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import Wire
from bayplan.framework.api.cycle import Cycle, Key
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.events import (
    Action,
    ClusterEvent,
    Cure,
    Hint,
    Resource,
    nothing,
    queue_if,
)
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import (
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
from bayplan.framework.api.status import (
    SKIP,
    SUCCESS,
    Code,
    Status,
    error,
    pending,
    unresolvable,
    unschedulable,
)
from bayplan.framework.runtime.registry import Registry
from bayplan.framework.runtime.scoring import default_normalize
from bayplan.intents.pod_intents import BindPod
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
