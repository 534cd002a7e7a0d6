"""What live sessions need of whoever writes to the API server; the composition root hands it over.

The pod engine's own writers fit these by shape, so that both engines share one set where they share a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from bayplan.api_writes.crash_points import CrashPointCallback
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject


class IntentWriter(Protocol):
    """Performs intents, and runs work that nobody waits for."""

    crash_point: CrashPointCallback
    """Told of every step at which a test may want the process to die."""

    async def perform(self, intent: object) -> Any: ...

    def submit(self, intent: object) -> None: ...

    def start(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Do it meanwhile; what goes wrong is logged with what it was."""
        ...

    @property
    def has_open_writes(self) -> bool:
        """Whether a write may still take effect."""
        ...

    async def drain(self) -> None: ...

    async def abandon(self) -> None: ...


class PodStatusWriter(Protocol):
    """Writes the status of pods."""

    def set_unschedulable(self, pod: Pod, reason: str, message: str, nominate: str | None) -> asyncio.Task[None] | None:
        """Write why a pod waits, unless its status says so: then None. `nominate`: None keeps its node."""
        ...

    def pending_write(self, uid: str) -> asyncio.Task[None] | None: ...

    async def patch(self, pod: Pod, patch: dict[str, Any]) -> bool:
        """Whether there still is such a pod; raises what goes wrong again and again."""
        ...


class ObjectEventRecorder(Protocol):
    """Tells people, by events about objects."""

    def record_core_event(self, regarding: KubeObject, kind: str, reason: str, note: str) -> None: ...
