"""Short hash of a pod template, in letters and digits that form no words.

Equal templates have equal hashes; the controllers compare templates, not hashes. Upstream hashes Go's printed form of
the structs, which cannot be reproduced: the values differ.
"""

from __future__ import annotations

import json
from typing import Any

from bayplan.objects.meta import NAME_SUFFIX_ALPHABET

_OFFSET, _PRIME = 2166136261, 16777619


def short_hash(value: Any, collisions: int | None = None) -> str:
    """Hash of at most ten characters. `collisions`: changes the hash after a name collision."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    if collisions is not None:
        text += collisions.to_bytes(8, "little")
    number = _OFFSET
    for byte in text:
        number = (number ^ byte) * _PRIME & 0xFFFFFFFF
    return "".join(NAME_SUFFIX_ALPHABET[ord(digit) % len(NAME_SUFFIX_ALPHABET)] for digit in str(number))
