"""Interface for metrics of live sessions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from bayplan.batch.session.outcome import SessionResult
from bayplan.objects.core import Pod


class BatchObserver(Protocol):
    """Receives the actions of a live batch engine. Each call costs a lookup and an addition."""

    def task_stage(self, stage: str, pod: Pod) -> None:
        """A pod reached a stage since its creation: Watched, Assumed, PreBound, Bound."""
        ...

    def stage(self, stage: str, seconds: float) -> None:
        """The duration of one step: PreBind, Bind."""
        ...

    def observe_bound(self, pod: Pod) -> None: ...

    def observe_failed(self, pod: Pod) -> None:
        """The binding of a pod failed."""
        ...

    def observe_evicted(self, reason: str) -> None: ...

    def observe_session(self, outcome: SessionResult, seconds: float, open_s: float) -> None:
        """A session ended."""
        ...

    def forget(self, jobs: Iterable[str]) -> None:
        """Drop the metrics of deleted jobs."""
        ...


class NoBatchObserver:
    """An observer that does nothing."""

    def task_stage(self, stage: str, pod: Pod) -> None: ...
    def stage(self, stage: str, seconds: float) -> None: ...
    def observe_bound(self, pod: Pod) -> None: ...
    def observe_failed(self, pod: Pod) -> None: ...
    def observe_evicted(self, reason: str) -> None: ...
    def observe_session(self, outcome: SessionResult, seconds: float, open_s: float) -> None: ...
    def forget(self, jobs: Iterable[str]) -> None: ...
