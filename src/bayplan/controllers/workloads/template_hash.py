"""Under which short name does a template go? A hash in letters and digits that make no words.

Like upstream's, it only has to be the same for the same template; whether two templates are the same is decided by
comparing them. Upstream hashes a printed form of Go's structs, which nobody else can make: the values differ.
"""

from __future__ import annotations

import json
from typing import Any

from bayplan.objects.meta import NAME_SUFFIX_ALPHABET

_OFFSET, _PRIME = 2166136261, 16777619


def short_hash(value: Any, collisions: int | None = None) -> str:
    """Ten characters at most; `collisions` makes another of it when the first was taken."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    if collisions is not None:
        text += collisions.to_bytes(8, "little")
    number = _OFFSET
    for byte in text:
        number = (number ^ byte) * _PRIME & 0xFFFFFFFF
    return "".join(NAME_SUFFIX_ALPHABET[ord(digit) % len(NAME_SUFFIX_ALPHABET)] for digit in str(number))
