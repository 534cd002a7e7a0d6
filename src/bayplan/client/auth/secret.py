"""Wrapper for passwords, tokens and keys. Only `reveal` returns the text."""

from __future__ import annotations


class Secret:
    """Text that no repr, log line or error can show by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(…)"


NO_SECRET = Secret("")
