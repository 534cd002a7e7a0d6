"""PreBind of the pods in a binding cycle, as tasks that preemption can cancel.

The binding cycle runs PreBind here; the preemption executor cancels it instead of deleting the pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from bayplan.client.cancellation import Cancellation, start_cancellable
from bayplan.framework.api.status import SUCCESS, Status, error


@dataclass(slots=True)
class PreBindTasks:
    """Pods in PreBind, which preemption can still cancel. A write in progress is finished first: the pod keeps its node
    and its devices until the outcome is known."""

    _cancellations: dict[str, Cancellation] = field(default_factory=dict)
    _causes: dict[str, str] = field(default_factory=dict)

    def __contains__(self, uid: str) -> bool:
        return uid in self._cancellations

    def cancel(self, uid: str, cause: str) -> bool:
        """Cancel PreBind of a pod. True: the pod will not be bound, even if PreBind has just ended."""
        cancellation = self._cancellations.get(uid)
        if cancellation is None:
            return False
        self._causes.setdefault(uid, cause)
        cancellation.cancel()
        return True

    async def run(self, uid: str, work: Coroutine[Any, Any, Status]) -> Status:
        task, self._cancellations[uid] = start_cancellable(work)
        try:
            status = await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if uid not in self._causes or current is None or current.cancelling():
                task.cancel()
                raise
            status = SUCCESS
        finally:
            self._cancellations.pop(uid, None)
            cause = self._causes.pop(uid, None)
        return status if cause is None else error(cause)
