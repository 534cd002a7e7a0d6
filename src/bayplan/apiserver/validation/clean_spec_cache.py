"""Was just this looked at before, and nothing found?

Pods of one template have the same spec, and what is held against it depends on nothing else: a thousand of them are
looked at once. Only what was found faultless is remembered; whatever has a fault is looked at each time, since its
words may name the pod. Cost: one encoding, a tenth of a look.
"""

from __future__ import annotations

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.storage.stored_objects import encode

MAX_ENTRIES = 2048


class CleanSpecCache:
    """The texts of what was faultless, as many as are worth their memory."""

    def __init__(self, most: int = MAX_ENTRIES) -> None:
        self._most = most
        self._texts: set[bytes] = set()

    def key(self, part: Tree) -> bytes:
        """Two parts have the same text only if they are the same."""
        return encode(part)

    def __contains__(self, text: bytes) -> bool:
        return text in self._texts

    def add(self, text: bytes) -> None:
        if len(self._texts) >= self._most:
            self._texts.clear()
        self._texts.add(text)
