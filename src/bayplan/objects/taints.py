"""Matching of taints and tolerations.

Used by TaintToleration and NodeUnschedulable for nodes, and by device allocation for devices. The numeric operators
`Lt` and `Gt` belong to a feature that is off; a toleration with one of them tolerates nothing, as in kube-scheduler.

Cost: string comparisons, one toleration after the other. Columns evaluate each distinct list of taints once, not each
node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from msgspec.structs import replace

from bayplan.objects.core import Taint

NO_SCHEDULE = "NoSchedule"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
NO_EXECUTE = "NoExecute"

DO_NOT_SCHEDULE = frozenset({NO_SCHEDULE, NO_EXECUTE})
"""The effects that keep a pod off a node."""

TAINT_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"

UNSCHEDULABLE = Taint(key=TAINT_UNSCHEDULABLE, effect=NO_SCHEDULE)
"""The taint that a cordoned node has implicitly."""


class TaintLike(Protocol):
    """A taint of a node or of a device."""

    @property
    def key(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def effect(self) -> str: ...


class TolerationLike(TaintLike, Protocol):
    """A toleration of a pod or of a device request."""

    @property
    def operator(self) -> str: ...


def tolerates(toleration: TolerationLike, taint: TaintLike) -> bool:
    """Whether the toleration tolerates the taint. An empty effect or key of the toleration matches any."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def tolerated(taint: TaintLike, tolerations: Iterable[TolerationLike]) -> bool:
    for toleration in tolerations:  # noqa: SIM110  (a generator costs more than the comparison)
        if tolerates(toleration, taint):
            return True
    return False


def find_untolerated_taint(
    taints: Iterable[Taint], tolerations: Collection[TolerationLike], effects: Collection[str] = DO_NOT_SCHEDULE
) -> Taint | None:
    """The first taint with one of the effects that is not tolerated, in the order of the node's list."""
    for taint in taints:
        if taint.effect in effects and not tolerated(taint, tolerations):
            return taint
    return None


def without_times(taints: tuple[Taint, ...]) -> tuple[Taint, ...]:
    """The taints without their times, which filters ignore, so that equal lists compare equal."""
    if all(taint.time_added is None for taint in taints):
        return taints
    return tuple(replace(taint, time_added=None) for taint in taints)
