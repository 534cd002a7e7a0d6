"""Recovery times: from a fault to the first binding after it, where pods were waiting at the fault."""

from __future__ import annotations

from collections.abc import Callable


class Recovery:
    def __init__(self, waiting: Callable[[], int], on_recovery: Callable[[str, float], None]) -> None:
        self._waiting, self._on_recovery = waiting, on_recovery
        self._open: list[tuple[str, float, str]] = []

    def fault(self, kind: str, at_s: float, pod: str = "") -> None:
        """A fault had an effect, or the time began from which its recovery counts. `pod`: whose binding it hit."""
        if self._waiting():
            self._open.append((kind, at_s, pod))

    def binding(self, at_s: float, pod: str) -> None:
        """A pod was bound. The binding that a fault hit itself is no recovery from it."""
        left = []
        for kind, fault_s, hit in self._open:
            if hit == pod:
                left.append((kind, fault_s, hit))
            else:
                self._on_recovery(kind, max(0.0, at_s - fault_s))
        self._open = left

    def drop(self) -> None:
        """No pod waits any more: what is open was recovered from without a binding."""
        self._open.clear()
