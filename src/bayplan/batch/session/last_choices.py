"""Memory of the choices of the previous session, so that the next one repeats them among equals.

Read by every step of a session that otherwise draws one of several equal nodes or hypernodes. Without it a gang that
waits is tentatively placed on other nodes in each session, and the message of each of its pods changes each time.
Only live sessions keep the memory; a session without it draws every choice. Cost: a dictionary entry for each choice.
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
        """Tell choices apart that one session makes for the same subject: by action, and by hypernode that is tried."""
        before = self._scope
        self._scope = f"{before}/{name}"
        try:
            yield
        finally:
            self._scope = before

    def previous(self, subject: str) -> str | None:
        """What the previous session chose for this subject, in the same scope."""
        return self._previous.get((self._scope, subject))

    def record(self, subject: str, name: str) -> None:
        self._current[self._scope, subject] = name
