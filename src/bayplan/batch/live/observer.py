"""What is worth counting of live sessions: told as it happens, to metrics or to nobody."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from bayplan.batch.session.outcome import SessionResult
from bayplan.objects.core import Pod


class BatchObserver(Protocol):
    """Told of what a live batch engine does. Each call costs a look-up and an addition."""

    def task_stage(self, stage: str, pod: Pod) -> None:
        """How far a pod has come since it was created: Watched, Assumed, PreBound, Bound."""
        ...

    def stage(self, stage: str, seconds: float) -> None:
        """One step took so long: PreBind, Bind."""
        ...

    def observe_bound(self, pod: Pod) -> None: ...

    def observe_failed(self, pod: Pod) -> None:
        """A pod that had a node did not get it."""
        ...

    def observe_evicted(self, reason: str) -> None: ...

    def observe_session(self, outcome: SessionResult, seconds: float, open_s: float) -> None:
        """A session is over."""
        ...

    def forget(self, jobs: Iterable[str]) -> None:
        """Jobs that are gone; nobody needs their numbers any more."""
        ...


class NoBatchObserver:
    """Nobody counts."""

    def task_stage(self, stage: str, pod: Pod) -> None: ...
    def stage(self, stage: str, seconds: float) -> None: ...
    def observe_bound(self, pod: Pod) -> None: ...
    def observe_failed(self, pod: Pod) -> None: ...
    def observe_evicted(self, reason: str) -> None: ...
    def observe_session(self, outcome: SessionResult, seconds: float, open_s: float) -> None: ...
    def forget(self, jobs: Iterable[str]) -> None: ...
