"""One attempt to place one pod: the pod, the snapshot, and the state that plugins share between extension points.

The counterpart of kube-scheduler's CycleState. State goes through typed keys: one plugin or point calls
`cycle.put(KEY, value)`, another calls `cycle.get(KEY)`. A key whose value changes during the dry runs of preemption
says how to clone it. Clones share all other values.
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
    """Name and type of one piece of state."""

    __slots__ = ("clone", "name")

    def __init__(self, name: str, *, clone: Callable[[T], T] | None = None) -> None:
        self.name = name
        self.clone = clone

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


class Cycle:
    """Everything that is known in one attempt."""

    __slots__ = (
        "_state",
        "allowed_rows",
        "info",
        "plugin_error",
        "pod",
        "pods_to_activate",
        "pre_filter_results",
        "skip_filter",
        "skip_pre_bind",
        "skip_score",
        "snapshot",
    )

    def __init__(self, info: PodInfo, snapshot: Snapshot, within: RowVector | None = None) -> None:
        self.info = info
        self.pod: Pod = info.pod
        self.snapshot = snapshot
        self.allowed_rows = within  # the rows that filters may evaluate; None: all rows
        self.skip_filter: set[str] = set()
        self.skip_score: set[str] = set()
        self.skip_pre_bind: set[str] = set()
        self.pods_to_activate: dict[str, Pod] = {}
        # of PreFilter plugins that ran before it was known whether the pod shares answers
        self.pre_filter_results: dict[str, Any] | None = None
        self.plugin_error: PluginFault | None = None  # fault of a plugin during the shared evaluation
        self._state: dict[StateKey[Any], Any] = {}

    def put(self, key: StateKey[T], value: T) -> None:
        self._state[key] = value

    def get(self, key: StateKey[T]) -> T:
        """Return the value of a key that must be present. `LookupError` names a missing key."""
        try:
            value: T = self._state[key]
            return value
        except KeyError:
            raise LookupError(f'reading "{key.name}" from cycleState: not found') from None

    def find(self, key: StateKey[T]) -> T | None:
        """Return the value of a key, or None if no plugin has put one."""
        return self._state.get(key)

    def delete(self, key: StateKey[Any]) -> None:
        """Delete a value, if there is one."""
        self._state.pop(key, None)

    def merge_state(self, other: Cycle) -> None:
        """Merge the state that plugins computed for a pod of the same equivalence class."""
        self._state.update(other._state)
        self.skip_filter |= other.skip_filter
        self.skip_score |= other.skip_score

    def merge_states(self, sources: Sequence[Cycle]) -> None:
        """Merge the state of several cycles."""
        for other in sources:
            if other._state:
                self._state.update(other._state)
        self.skip_filter = self.skip_filter.union(*[other.skip_filter for other in sources])
        self.skip_score = self.skip_score.union(*[other.skip_score for other in sources])

    def share_state(self, other: Cycle) -> None:
        """Merge the state of a cycle that does not change anymore.

        An empty state takes a copy, the most frequent case.
        """
        if self._state or self.skip_filter or self.skip_score:
            self.merge_state(other)
            return
        self._state = other._state.copy()
        self.skip_filter, self.skip_score = other.skip_filter, other.skip_score

    def reset_state(self) -> None:
        """Delete the state that plugins have put."""
        self._state = {}
        self.pre_filter_results = None
        self.skip_filter, self.skip_score = set(), set()

    def clone(self) -> Cycle:
        """Copy the attempt with its own changeable state, for a dry run."""
        twin = Cycle(self.info, self.snapshot, self.allowed_rows)
        twin.skip_filter, twin.skip_score, twin.skip_pre_bind = self.skip_filter, self.skip_score, self.skip_pre_bind
        twin.pods_to_activate = self.pods_to_activate
        twin._state = {key: key.clone(value) if key.clone else value for key, value in self._state.items()}
        return twin
