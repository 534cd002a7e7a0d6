"""Semantic versions and their order.

The rules of semantic versioning 2.0.0 in strict form (three numbers, no leading zeros). Build metadata is stored but
never compared. Raises `ValueError` with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_DIGITS = frozenset("0123456789")
_IDENTIFIER = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-0123456789")
_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Semver:
    """Equal versions differ at most in their build metadata."""

    major: int
    minor: int
    patch: int
    pre: tuple[int | str, ...] = ()
    build: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def parse(cls, text: str) -> Semver:
        if not text:
            raise ValueError("Version string empty")
        parts = text.split(".", 2)
        if len(parts) != 3:
            raise ValueError("No Major.Minor.Patch elements found")
        major = _number(parts[0], "major", "Major")
        minor = _number(parts[1], "minor", "Minor")
        rest, plus, build = parts[2].partition("+")
        rest, dash, pre = rest.partition("-")
        patch = _number(rest, "patch", "Patch")
        pre_ids = tuple(_prerelease(p) for p in pre.split(".")) if dash else ()
        build_ids = tuple(_build(b) for b in build.split(".")) if plus else ()
        return cls(major, minor, patch, pre_ids, build_ids)

    @classmethod
    def parse_normalized(cls, text: str) -> Semver:
        """Also accepts `v1.2`, `1` and `01.02.03`."""
        parts = [_without_zeros(p) for p in text.removeprefix("v").split(".", 2)]
        if len(parts) < 3:
            if any(c in "+-" for c in parts[-1]):
                raise ValueError("short version cannot contain PreRelease/Build meta data")
            parts += ["0"] * (3 - len(parts))
        return cls.parse(".".join(parts))

    def compare(self, other: Semver) -> int:
        own_numbers, other_numbers = (self.major, self.minor, self.patch), (other.major, other.minor, other.patch)
        if own_numbers != other_numbers:
            return 1 if own_numbers > other_numbers else -1
        if not self.pre or not other.pre:
            return bool(other.pre) - bool(self.pre)
        left, right = [_rank(p) for p in self.pre], [_rank(p) for p in other.pre]
        return (left > right) - (left < right)

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.pre:
            text += "-" + ".".join(str(p) for p in self.pre)
        return text + ("+" + ".".join(self.build) if self.build else "")


def _rank(identifier: int | str) -> tuple[int, int, str]:
    """Numbers come before words."""
    return (0, identifier, "") if isinstance(identifier, int) else (1, 0, identifier)


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _number(text: str, name: str, title: str) -> int:
    if not _DIGITS.issuperset(text):
        raise ValueError(f"Invalid character(s) found in {name} number {_quote(text)}")
    if len(text) > 1 and text[0] == "0":
        raise ValueError(f"{title} number must not contain leading zeroes {_quote(text)}")
    return _uint64(text)


def _uint64(text: str) -> int:
    if not text:
        raise ValueError('strconv.ParseUint: parsing "": invalid syntax')
    value = int(text)
    if value > _MAX:
        raise ValueError(f'strconv.ParseUint: parsing "{text}": value out of range')
    return value


def _prerelease(text: str) -> int | str:
    if not text:
        raise ValueError("Prerelease is empty")
    if _DIGITS.issuperset(text):
        if len(text) > 1 and text[0] == "0":
            raise ValueError(f"Numeric PreRelease version must not contain leading zeroes {_quote(text)}")
        return _uint64(text)
    if not _IDENTIFIER.issuperset(text):
        raise ValueError(f"Invalid character(s) found in prerelease {_quote(text)}")
    return text


def _build(text: str) -> str:
    if not text:
        raise ValueError("Build meta data is empty")
    if not _IDENTIFIER.issuperset(text):
        raise ValueError(f"Invalid character(s) found in build meta data {_quote(text)}")
    return text


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped and stripped[0] in _DIGITS else "0" + stripped
