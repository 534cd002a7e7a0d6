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


class StateKey(Generic[T]):
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
        "allowed_rows",
        "info",
        "plugin_error",
        "pod",
        "pods_to_activate",
        "pre_filter_answers",
        "skip_filter",
        "skip_pre_bind",
        "skip_score",
        "snapshot",
    )

    def __init__(self, info: PodInfo, snapshot: Snapshot, within: RowVector | None = None) -> None:
        self.info = info
        self.pod: Pod = info.pod
        self.snapshot = snapshot
        self.allowed_rows = within  # the rows that filters may be asked about; None: all of them
        self.skip_filter: set[str] = set()
        self.skip_score: set[str] = set()
        self.skip_pre_bind: set[str] = set()
        self.pods_to_activate: dict[str, Pod] = {}
        self.pre_filter_answers: dict[str, Any] | None = (
            None  # by PreFilters, while it was found out whether the pod is shared
        )
        self.plugin_error: PluginFault | None = None  # a plugin, meanwhile
        self._state: dict[StateKey[Any], Any] = {}

    def put(self, key: StateKey[T], value: T) -> None:
        self._state[key] = value

    def get(self, key: StateKey[T]) -> T:
        """The value of a key that must be there; `LookupError` names the key when it is not."""
        try:
            value: T = self._state[key]
            return value
        except KeyError:
            raise LookupError(f'reading "{key.name}" from cycleState: not found') from None

    def find(self, key: StateKey[T]) -> T | None:
        """The value of a key, or None where no plugin has put one."""
        return self._state.get(key)

    def delete(self, key: StateKey[Any]) -> None:
        """Forget a value, if there is one."""
        self._state.pop(key, None)

    def merge_state(self, other: Cycle) -> None:
        """Take over what plugins found out about a pod that is like this one."""
        self._state.update(other._state)
        self.skip_filter |= other.skip_filter
        self.skip_score |= other.skip_score

    def merge_states(self, others: Sequence[Cycle]) -> None:
        """The same from several."""
        for other in others:
            if other._state:
                self._state.update(other._state)
        self.skip_filter = self.skip_filter.union(*[other.skip_filter for other in others])
        self.skip_score = self.skip_score.union(*[other.skip_score for other in others])

    def share_state(self, other: Cycle) -> None:
        """The same from one that is changed no more; most often this attempt has heard nothing yet."""
        if self._state or self.skip_filter or self.skip_score:
            self.merge_state(other)
            return
        self._state = other._state.copy()
        self.skip_filter, self.skip_score = other.skip_filter, other.skip_score

    def reset_state(self) -> None:
        """Forget what plugins said."""
        self._state = {}
        self.pre_filter_answers = None
        self.skip_filter, self.skip_score = set(), set()

    def clone(self) -> Cycle:
        """The same attempt with changeable state of its own, to try something out."""
        twin = Cycle(self.info, self.snapshot, self.allowed_rows)
        twin.skip_filter, twin.skip_score, twin.skip_pre_bind = self.skip_filter, self.skip_score, self.skip_pre_bind
        twin.pods_to_activate = self.pods_to_activate
        twin._state = {key: key.clone(value) if key.clone else value for key, value in self._state.items()}
        return twin
