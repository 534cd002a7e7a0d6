"""The protocol `Writes`, which performs intents against the API server."""

from __future__ import annotations

from typing import Any, Protocol


class Writes(Protocol):
    """Performs intents against the API server."""

    async def perform(self, intent: object) -> Any: ...

    def submit(self, intent: object) -> None:
        """Perform it some time soon: nobody waits for it, and a failure is only logged. For points that cannot wait."""
        ...
