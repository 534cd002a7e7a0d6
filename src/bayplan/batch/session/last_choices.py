"""Choices of the previous session, which the next one repeats among equal candidates.

Read by every step of a session that otherwise chooses randomly among equal nodes or hypernodes. Without it, a pending
gang is tentatively placed on other nodes in each session, and the message of each of its pods changes each time. Only
live sessions keep it. Cost: one dictionary entry per choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class LastChoices:
    """Names chosen in the previous session and in this one, by scope and subject."""

    __slots__ = ("_current", "_previous", "_scope")

    def __init__(self) -> None:
        self._scope = ""
        self._previous: dict[tuple[str, str], str] = {}
        self._current: dict[tuple[str, str], str] = {}

    def begin_session(self) -> None:
        self._scope = ""
        self._previous, self._current = self._current, {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Separate the choices of one session for the same subject: by action, and by hypernode."""
        before = self._scope
        self._scope = f"{before}/{name}"
        try:
            yield
        finally:
            self._scope = before

    def previous(self, subject: str) -> str | None:
        """The choice of the previous session for this subject, in the same scope."""
        return self._previous.get((self._scope, subject))

    def record(self, subject: str, name: str) -> None:
        self._current[self._scope, subject] = name
