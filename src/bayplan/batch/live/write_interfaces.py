"""Interfaces of live sessions to the writers of the API server, which the composition root provides.

The pod engine's writers implement these protocols, so that both engines share one set of writers in one process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from bayplan.api_writes.crash_points import CrashPointCallback
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject


class IntentWriter(Protocol):
    """Performs intents, and runs work in the background."""

    crash_point: CrashPointCallback
    """Called at every step at which a test can stop the process."""

    async def perform(self, intent: object) -> Any: ...

    def submit(self, intent: object) -> None: ...

    def start(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Run work in the background; an error is logged with `what`."""
        ...

    @property
    def has_open_writes(self) -> bool: ...

    async def drain(self) -> None: ...

    async def abandon(self) -> None: ...


class PodStatusWriter(Protocol):
    def set_unschedulable(self, pod: Pod, reason: str, message: str, nominate: str | None) -> asyncio.Task[None] | None:
        """Write the reason why a pod waits, or return None if its status has it already. `nominate`: None keeps its
        node."""
        ...

    def pending_write(self, uid: str) -> asyncio.Task[None] | None: ...

    async def patch(self, pod: Pod, patch: dict[str, Any]) -> bool:
        """Patch the status. False: the pod is deleted. Raises errors that persist after retries."""
        ...


class ObjectEventRecorder(Protocol):
    def record_core_event(self, regarding: KubeObject, kind: str, reason: str, note: str) -> None: ...
