"""Extension points, statuses and everything a plugin author imports."""

from bayplan.framework.cycle import Cycle, Key
from bayplan.framework.diagnosis import Diagnosis
from bayplan.framework.events import Action, Cure, Hint, Resource
from bayplan.framework.handle import Handle
from bayplan.framework.plugin import MAX_SCORE, NarrowTo, PostFilterAnswer, Preflight, Rejection, Wait
from bayplan.framework.registry import Registry
from bayplan.framework.scoring import default_normalize
from bayplan.framework.status import SKIP, SUCCESS, Code, Status, error, pending, unresolvable, unschedulable
from bayplan.snapshot import NodeTable, NodeView

__all__ = [
    "MAX_SCORE",
    "SKIP",
    "SUCCESS",
    "Action",
    "Code",
    "Cure",
    "Cycle",
    "Diagnosis",
    "Handle",
    "Hint",
    "Key",
    "NarrowTo",
    "NodeTable",
    "NodeView",
    "PostFilterAnswer",
    "Preflight",
    "Registry",
    "Rejection",
    "Resource",
    "Status",
    "Wait",
    "default_normalize",
    "error",
    "pending",
    "unresolvable",
    "unschedulable",
]
