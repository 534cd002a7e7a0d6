"""The answer to "why": a frozen value that terminals, pages and programs read alike.

Made by whoever explains: the pod engine's explainer, the batch engine's, or a command that has a cluster in files.
Sent as JSON with the names of its fields in camel case; what is not known is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from bayplan.objects.pod_relaxations import SuggestedChange
from bayplan.telemetry.decisions import ScoredNode, display_score

PLACED, PENDING, BINDING, WAITING = "placed", "pending", "binding", "waiting"
"""Has a node; has none; is on its way to one; has one, and is held back there until others have theirs."""

RECORD, NOW = "record", "now"
"""Where an answer comes from: what was decided, or what would be decided at the moment of the question."""

MAX_NAMES = 50
"""So many nodes are named for one reason; a number says how many there are."""


class _AnswerPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    pass


class NodeRejection(_AnswerPart, frozen=True):
    """One reason, who gave it, how many nodes it holds for, and which: the first of them."""

    plugin: str
    text: str
    nodes: int
    names: tuple[str, ...] = ()


class RankedNode(_AnswerPart, frozen=True):
    """A node that was good enough, with its total and what each plugin added to it."""

    node: str
    total: int | float
    by_plugin: dict[str, int | float] = {}


class ScoreMargin(_AnswerPart, frozen=True):
    """What decided between the best node and the second."""

    second: str
    ahead: int | float
    plugin: str = ""
    """Who made the largest difference; empty where nobody did."""
    margin: int | float = 0


class GangMemberStatus(_AnswerPart, frozen=True):
    """A pod of a gang that has no node, and why."""

    pod: str
    reason: str


class GangStatus(_AnswerPart, frozen=True):
    """The group that starts together or not at all."""

    name: str
    phase: str = ""
    least: int = 0
    """So many must have a node before any of them starts."""
    ready: int = 0
    tasks: int = 0
    holding_back: tuple[GangMemberStatus, ...] = ()
    """Members without a node: those that found none first."""


class BorrowingQueue(_AnswerPart, frozen=True):
    """A queue that holds more than it deserves."""

    queue: str
    over: dict[str, str] = {}


class QueueShare(_AnswerPart, frozen=True):
    """What the pod's queue holds, may hold and deserves."""

    name: str
    share: float | None = None
    allocated: dict[str, str] = {}
    deserved: dict[str, str] = {}
    capability: dict[str, str] = {}
    borrowers: tuple[BorrowingQueue, ...] = ()


class BindRequestProgress(_AnswerPart, frozen=True):
    """The BindRequest that is to bring the pod to its node, and how far the binder has come with it."""

    name: str
    node: str
    # Sent even where they are the usual ones, as below.
    phase: str = msgspec.field(default_factory=str)
    failed_attempts: int = msgspec.field(default_factory=int)
    limit: int | None = None
    """So many failures end it; none: the first one does."""
    reason: str = ""
    made_at: datetime | None = None
    is_ours: bool = msgspec.field(default_factory=bool)
    """Whether Bayplan's own binder takes it, even without `--all`."""


HELD, EXPIRED, FREE, ABSENT, UNKNOWN = "held", "expired", "free", "absent", "unknown"
"""A binder is at work; it was, and died; it has stopped; there never was one that elects; we may not look."""


class BinderLease(_AnswerPart, frozen=True):
    """Whether anybody is there who could carry out a request, as far as the lease of binders tells."""

    lease: str
    state: str
    sentence: str
    holder: str = ""
    renewed_at: datetime | None = None


class ExcludedNode(_AnswerPart, frozen=True):
    """A node on which bindings of the pod were given up: how often, why the last time, until when it is left out."""

    node: str
    times: int
    error: str
    until: datetime | None = None
    """None: it may be tried there."""


class Answer(_AnswerPart, frozen=True):
    """Why a pod is where it is, or nowhere."""

    pod: str
    uid: str = ""
    # Made by a function, these are sent even where they are the usual ones: everybody reads them.
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
    """Each of them is enough, the smallest first."""
    together: tuple[SuggestedChange, ...] = ()
    """Where none is enough alone: these are, together."""
    no_change: str = ""
    """Why nothing is suggested."""
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
    """What decided; nothing where there was no second."""
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
