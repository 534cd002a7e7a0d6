"""The protocol `Writes`, which performs intents against the API server."""

from __future__ import annotations

from typing import Any, Protocol


class Writes(Protocol):
    """Performs intents against the API server."""

    async def perform(self, intent: object) -> Any: ...

    def submit(self, intent: object) -> None:
        """Perform the intent soon, without waiting; a failure is only logged. For callers that cannot await."""
        ...
