"""Base64 decoding with the errors of Go.

A configuration may contain certificates as base64. Go's error message has the position of the wrong byte, which
Python's does not. Cost: linear in the text; called at most three times per extender.
"""

from __future__ import annotations

import base64
import string

_ALPHABET = frozenset((string.ascii_letters + string.digits + "+/").encode())
_NEWLINES = frozenset(b"\r\n")
_PAD = ord("=")
_QUANTUM = 4


class Base64Error(ValueError):
    """The text is not base64. The message is Go's."""

    def __init__(self, position: int) -> None:
        super().__init__(f"illegal base64 data at input byte {position}")


def decode_base64(text: str) -> bytes:
    """The bytes of a padded base64 text. Line ends are ignored, and left-over bits are dropped."""
    data = text.encode()
    digits = 0
    for at, byte in enumerate(data):
        if byte in _ALPHABET:
            digits += 1
        elif byte == _PAD:
            _check_padding(data, at, digits % _QUANTUM)
            break
        elif byte not in _NEWLINES:
            raise Base64Error(at)
    else:
        if digits % _QUANTUM:
            raise Base64Error(len(data) - digits % _QUANTUM)
    return base64.b64decode(bytes(byte for byte in data if byte not in _NEWLINES))


def _check_padding(data: bytes, at: int, filled: int) -> None:
    """Two pads must follow two digits, one pad three digits, and nothing after them."""
    if filled not in (2, 3):
        raise Base64Error(at)
    following = _skip_newlines(data, at + 1)
    if filled == 2:
        if following == len(data):
            raise Base64Error(len(data))
        if data[following] != _PAD:
            raise Base64Error(following - 1)
        following = _skip_newlines(data, following + 1)
    if following < len(data):
        raise Base64Error(following)


def _skip_newlines(data: bytes, at: int) -> int:
    while at < len(data) and data[at] in _NEWLINES:
        at += 1
    return at
