"""Values of literal tokens.

Raises `ValueError` with the parser's message for a well-formed token without a value (a number too large, an escape of
no character).
"""

from __future__ import annotations

from bayplan.cel.values.values import INT_MAX, INT_MIN, UINT_MAX, Uint

_SIMPLE = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "`": "`",
    "?": "?",
}
_MAX_DIGITS = 20
_HEX_DIGITS = {"x": 2, "X": 2, "u": 4, "U": 8}


def parse_integer(text: str) -> int:
    value = _number(text)
    if value is None or not INT_MIN <= value <= INT_MAX:
        raise ValueError("invalid int literal")
    return value


def parse_unsigned(text: str) -> Uint:
    value = _number(text[:-1])
    if value is None or value > UINT_MAX:
        raise ValueError("invalid uint literal")
    return Uint(value)


def parse_double(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("invalid double literal")
    return value


def _number(text: str) -> int | None:
    """None if there are more digits than any 64-bit number has."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    base = 16 if digits.startswith("0x") else 10
    digits = digits.removeprefix("0x").lstrip("0") or "0"
    return sign * int(digits, base) if len(digits) <= _MAX_DIGITS else None


def parse_string(text: str) -> str:
    body, raw = _strip(text)
    if raw or "\\" not in body:
        return body
    return "".join(chr(c) for c in _unescape(body, is_bytes=False))


def parse_bytes(text: str) -> bytes:
    body, raw = _strip(text[1:])
    if raw or "\\" not in body:
        return body.encode()
    out = bytearray()
    for code in _unescape(body, is_bytes=True):
        # Escapes are single bytes; a negative sign marks them, so that plain text keeps its UTF-8.
        if code < 0:
            out.append(-code - 1)
        else:
            out += chr(code).encode()
    return bytes(out)


def _strip(text: str) -> tuple[str, bool]:
    """The text between the quotes with uniform line ends, and whether it is raw (without escapes)."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    raw = text[0] in "rR"
    if raw:
        text = text[1:]
    if len(text) >= 6 and text[:3] in ('"""', "'''"):
        return text[3:-3], raw
    return text[1:-1], raw


def _unescape(body: str, *, is_bytes: bool) -> list[int]:
    codes: list[int] = []
    at = 0
    while at < len(body):
        if body[at] != "\\":
            codes.append(ord(body[at]))
            at += 1
            continue
        code, at = _escape(body, at + 1, is_bytes=is_bytes)
        codes.append(code)
    return codes


def _escape(body: str, at: int, *, is_bytes: bool) -> tuple[int, int]:
    head = body[at]
    if head in _SIMPLE:
        return ord(_SIMPLE[head]), at + 1
    if head in _HEX_DIGITS:
        if is_bytes and head in "uU":
            raise ValueError("unable to unescape string")
        end = at + 1 + _HEX_DIGITS[head]
        return _code_point(int(body[at + 1 : end], 16), is_bytes=is_bytes), end
    return _code_point(int(body[at : at + 3], 8), is_bytes=is_bytes), at + 3


def _code_point(code: int, *, is_bytes: bool) -> int:
    if is_bytes:
        return -code - 1
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise ValueError("invalid unicode code point")
    return code
