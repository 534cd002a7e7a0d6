"""Extension points, statuses and everything a plugin author imports."""

from bayplan.codec.field_errors import FieldError, FieldPath, invalid
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import ConfigStruct
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    no_hint_key,
    queue_hint_if,
)
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import (
    MAX_SCORE,
    PermitWait,
    Placement,
    PostFilterResult,
    PreBindPreFlightResult,
    PreFilterResult,
    QueuedPod,
    Rejection,
)
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.framework.api.status import SKIP, SUCCESS, Code, Status, error, pending, unresolvable, unschedulable
from bayplan.framework.runtime.registry import Registry
from bayplan.framework.runtime.scoring import default_normalize
from bayplan.intents.pod_intents import BindPod
from bayplan.objects.core import Node, Pod
from bayplan.snapshot import BoolVector, IntVector, NodeInfo, NodeTable, PodColumns, PodInfo, Snapshot

__all__ = [
    "MAX_SCORE",
    "SKIP",
    "SUCCESS",
    "ActionType",
    "ArgsKind",
    "BindPod",
    "BoolVector",
    "ClusterEvent",
    "ClusterEventWithHint",
    "Code",
    "ConfigStruct",
    "Cycle",
    "Diagnosis",
    "EventResource",
    "FieldError",
    "FieldPath",
    "Handle",
    "IntVector",
    "Node",
    "NodeInfo",
    "NodeTable",
    "PermitWait",
    "Placement",
    "PluginTraits",
    "Pod",
    "PodColumns",
    "PodInfo",
    "PostFilterResult",
    "PreBindPreFlightResult",
    "PreFilterResult",
    "QueuedPod",
    "QueueingHint",
    "Registry",
    "Rejection",
    "Snapshot",
    "StateKey",
    "Status",
    "default_normalize",
    "error",
    "invalid",
    "no_hint_key",
    "pending",
    "queue_hint_if",
    "row_local",
    "unresolvable",
    "unschedulable",
]
