"""One attempt to place one pod: the pod, the snapshot, and what plugins tell each other between points.

State goes through typed keys: `cycle.put(KEY, value)` in one plugin or point, `cycle.get(KEY)` in another. A key
whose value changes while preemption tries things out says how to clone it; all others are shared between clones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bayplan.objects.core import Pod
from bayplan.snapshot import PodInfo, RowVector, Snapshot

if TYPE_CHECKING:
    from bayplan.framework.api.plugin_error import PluginFault

T = TypeVar("T")


class Key(Generic[T]):
    """The name and type of one piece of state."""

    __slots__ = ("clone", "name")

    def __init__(self, name: str, *, clone: Callable[[T], T] | None = None) -> None:
        self.name = name
        self.clone = clone

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


class Cycle:
    """Everything one attempt knows."""

    __slots__ = (
        "_state",
        "answered",
        "failed",
        "info",
        "pod",
        "pods_to_activate",
        "skip_filter",
        "skip_pre_bind",
        "skip_score",
        "snapshot",
        "within",
    )

    def __init__(self, info: PodInfo, snapshot: Snapshot, within: RowVector | None = None) -> None:
        self.info = info
        self.pod: Pod = info.pod
        self.snapshot = snapshot
        self.within = within  # the rows that filters may be asked about; None: all of them
        self.skip_filter: set[str] = set()
        self.skip_score: set[str] = set()
        self.skip_pre_bind: set[str] = set()
        self.pods_to_activate: dict[str, Pod] = {}
        self.answered: dict[str, Any] | None = None  # by PreFilters, while it was found out whether the pod is shared
        self.failed: PluginFault | None = None  # a plugin, meanwhile
        self._state: dict[Key[Any], Any] = {}

    def put(self, key: Key[T], value: T) -> None:
        self._state[key] = value

    def get(self, key: Key[T]) -> T:
        """The value of a key that must be there; `LookupError` names the key when it is not."""
        try:
            value: T = self._state[key]
            return value
        except KeyError:
            raise LookupError(f'reading "{key.name}" from cycleState: not found') from None

    def find(self, key: Key[T]) -> T | None:
        """The value of a key, or None where no plugin has put one."""
        return self._state.get(key)

    def drop(self, key: Key[Any]) -> None:
        """Forget a value, if there is one."""
        self._state.pop(key, None)

    def adopt(self, other: Cycle) -> None:
        """Take over what plugins found out about a pod that is like this one."""
        self._state.update(other._state)
        self.skip_filter |= other.skip_filter
        self.skip_score |= other.skip_score

    def adopt_all(self, others: Sequence[Cycle]) -> None:
        """The same from several."""
        for other in others:
            if other._state:
                self._state.update(other._state)
        self.skip_filter = self.skip_filter.union(*[other.skip_filter for other in others])
        self.skip_score = self.skip_score.union(*[other.skip_score for other in others])

    def share(self, other: Cycle) -> None:
        """The same from one that is changed no more; most often this attempt has heard nothing yet."""
        if self._state or self.skip_filter or self.skip_score:
            self.adopt(other)
            return
        self._state = other._state.copy()
        self.skip_filter, self.skip_score = other.skip_filter, other.skip_score

    def start_over(self) -> None:
        """Forget what plugins said."""
        self._state = {}
        self.answered = None
        self.skip_filter, self.skip_score = set(), set()

    def clone(self) -> Cycle:
        """The same attempt with changeable state of its own, to try something out."""
        twin = Cycle(self.info, self.snapshot, self.within)
        twin.skip_filter, twin.skip_score, twin.skip_pre_bind = self.skip_filter, self.skip_score, self.skip_pre_bind
        twin.pods_to_activate = self.pods_to_activate
        twin._state = {key: key.clone(value) if key.clone else value for key, value in self._state.items()}
        return twin
