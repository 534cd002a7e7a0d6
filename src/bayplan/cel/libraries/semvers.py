"""Semantic versions."""

from __future__ import annotations

from bayplan.cel.errors import CelError
from bayplan.cel.types.declarations import Overload, function, method
from bayplan.cel.types.types import BOOL, INT, SEMVER, STRING
from bayplan.cel.values.semver import Semver

PAIR = (SEMVER, SEMVER)


def _parse(text: str, normalize: bool) -> Semver:
    return Semver.parse_normalized(text) if normalize else Semver.parse(text)


def semver(text: str, normalize: bool = False) -> Semver:
    try:
        return _parse(text, normalize)
    except ValueError as error:
        raise CelError(str(error)) from None


def is_semver(text: str, normalize: bool = False) -> bool:
    try:
        _parse(text, normalize)
    except ValueError:
        return False
    return True


def _to_signed(value: int) -> int:
    """Version numbers are unsigned; CEL's integers are signed."""
    return value - (1 << 64) if value >= 1 << 63 else value


OVERLOADS: list[Overload] = [
    function("semver", "string_to_semver", (STRING,), SEMVER, semver),
    function("semver", "string_bool_to_semver", (STRING, BOOL), SEMVER, semver),
    function("isSemver", "is_semver_string", (STRING,), BOOL, is_semver),
    function("isSemver", "is_semver_string_bool", (STRING, BOOL), BOOL, is_semver),
    method("isGreaterThan", "semver_is_greater_than", PAIR, BOOL, lambda a, b: a.compare(b) == 1),
    method("isLessThan", "semver_is_less_than", PAIR, BOOL, lambda a, b: a.compare(b) == -1),
    method("compareTo", "semver_compare_to", PAIR, INT, lambda a, b: a.compare(b)),
    method("major", "semver_major", (SEMVER,), INT, lambda v: _to_signed(v.major)),
    method("minor", "semver_minor", (SEMVER,), INT, lambda v: _to_signed(v.minor)),
    method("patch", "semver_patch", (SEMVER,), INT, lambda v: _to_signed(v.patch)),
]
