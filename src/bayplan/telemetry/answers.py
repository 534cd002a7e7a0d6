"""Answer to "why is this pod there, or pending?": a frozen value for terminals, pages and programs.

Built by the pod engine's explainer, the batch engine's explainer, or a command that reads the cluster from files. Sent
as JSON with field names in camel case; unknown fields are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from bayplan.objects.pod_relaxations import SuggestedChange
from bayplan.telemetry.decisions import ScoredNode, display_score

PLACED, PENDING, BINDING, WAITING = "placed", "pending", "binding", "waiting"
"""Has a node; has none; is being bound; has a node and waits there for Permit or for its gang."""

RECORD, NOW = "record", "now"
"""The source of an answer: a record of a past decision, or a decision computed at the moment of the request."""

MAX_NAMES = 50
"""Maximum number of node names for one reason; `nodes` has the full count."""


class _AnswerPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    pass


class NodeRejection(_AnswerPart, frozen=True):
    """One reason, its plugin, the number of nodes that it holds for, and the names of the first of them."""

    plugin: str
    text: str
    nodes: int
    names: tuple[str, ...] = ()


class RankedNode(_AnswerPart, frozen=True):
    """A feasible node with its total and the score of each plugin."""

    node: str
    total: int | float
    by_plugin: dict[str, int | float] = {}


class ScoreMargin(_AnswerPart, frozen=True):
    """The difference between the best node and the second."""

    second: str
    ahead: int | float
    plugin: str = ""
    """The plugin with the largest difference; empty if there is none."""
    margin: int | float = 0


class GangMemberStatus(_AnswerPart, frozen=True):
    """A pod of a gang that has no node, and the reason."""

    pod: str
    reason: str


class GangStatus(_AnswerPart, frozen=True):
    """The gang: its pods start together or not at all."""

    name: str
    phase: str = ""
    least: int = 0
    """minMember: the number of pods that need a node before any of them starts."""
    ready: int = 0
    tasks: int = 0
    holding_back: tuple[GangMemberStatus, ...] = ()
    """Members without a node; those that no node fits come first."""


class BorrowingQueue(_AnswerPart, frozen=True):
    """A queue whose allocation is above its deserved share."""

    queue: str
    over: dict[str, str] = {}


class QueueShare(_AnswerPart, frozen=True):
    """Allocation, deserved share and capability of the pod's queue."""

    name: str
    share: float | None = None
    allocated: dict[str, str] = {}
    deserved: dict[str, str] = {}
    capability: dict[str, str] = {}
    borrowers: tuple[BorrowingQueue, ...] = ()


class BindRequestProgress(_AnswerPart, frozen=True):
    """The BindRequest of the pod, and the binder's progress with it."""

    name: str
    node: str
    # Sent also with their default values, as below.
    phase: str = msgspec.field(default_factory=str)
    failed_attempts: int = msgspec.field(default_factory=int)
    limit: int | None = None
    """backoffLimit: the number of failures that ends the request. None: the first failure ends it."""
    reason: str = ""
    made_at: datetime | None = None
    is_ours: bool = msgspec.field(default_factory=bool)
    """Whether Bayplan's own binder handles it, even without `--all`."""


HELD, EXPIRED, FREE, ABSENT, UNKNOWN = "held", "expired", "free", "absent", "unknown"
"""State of the binders' lease: held; expired without a release; released; does not exist; not readable."""


class BinderLease(_AnswerPart, frozen=True):
    """Whether a binder runs that can carry out a request, according to the binders' lease."""

    lease: str
    state: str
    sentence: str
    holder: str = ""
    renewed_at: datetime | None = None


class ExcludedNode(_AnswerPart, frozen=True):
    """A node that is excluded after failed bindings of the pod: the number, the last error, the end of the
    exclusion."""

    node: str
    times: int
    error: str
    until: datetime | None = None
    """None: the node may be tried again."""


class Answer(_AnswerPart, frozen=True):
    """Why a pod is on its node, or pending."""

    pod: str
    uid: str = ""
    # Default factories: msgspec sends these fields also with their default values, because all clients read them.
    engine: str = msgspec.field(default_factory=lambda: "pod")
    state: str = msgspec.field(default_factory=lambda: PENDING)
    source: str = msgspec.field(default_factory=lambda: RECORD)
    sentence: str = msgspec.field(default_factory=str)
    scheduler: str = ""
    decided_at: datetime | None = None
    node: str = ""
    nodes: int = 0
    feasible: int = 0
    best: tuple[RankedNode, ...] = ()
    choice: ScoreMargin | None = None
    reasons: tuple[NodeRejection, ...] = ()
    closest: str = ""
    changes: tuple[SuggestedChange, ...] = ()
    """Each change is sufficient alone; the smallest first."""
    together: tuple[SuggestedChange, ...] = ()
    """Changes that are sufficient only together."""
    no_change: str = ""
    """Why there is no suggestion."""
    nominated: str = ""
    victims: tuple[str, ...] = ()
    waits_for: str = ""
    since: datetime | None = None
    attempts: int = 0
    next_try: datetime | None = None
    gang: GangStatus | None = None
    queue: QueueShare | None = None
    request: BindRequestProgress | None = None
    binder: BinderLease | None = None
    excluded_nodes: tuple[ExcludedNode, ...] = ()


def ranked_nodes(best: Sequence[ScoredNode]) -> tuple[RankedNode, ...]:
    return tuple(RankedNode(node=each.node, total=each.total, by_plugin=dict(each.by_plugin)) for each in best)


def score_margin(best: Sequence[ScoredNode]) -> ScoreMargin | None:
    """The difference between the best two nodes; None without a second node."""
    if len(best) < 2:
        return None
    first, second = best[0], best[1]
    behind = dict(second.by_plugin)
    gaps = ((display_score(score - behind.get(name, 0)), name) for name, score in first.by_plugin)
    by, plugin = max(gaps, default=(0, ""))
    decided = (plugin, by) if by > 0 and first.total > second.total else ("", 0)
    return ScoreMargin(
        second=second.node, ahead=display_score(first.total - second.total), plugin=decided[0], margin=decided[1]
    )
