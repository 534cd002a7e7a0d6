"""Objects of a template file: one for each index, named and decoded as by an API server.

Called while a benchmark's operations create objects, never inside a measurement. A file without template marks is
parsed once, because its objects differ only in name. Go's JSON decoder ignores the case of field names, and one of the
files relies on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bayplan.codec.yaml import read_document
from bayplan.errors import BayplanError
from benchmarks.perf.go_templates import has_marks, render

Raw = dict[str, Any]

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX = 5
_FREE_KEYS = frozenset(
    {
        "allocatable",
        "annotations",
        "attributes",
        "capacity",
        "labels",
        "limits",
        "matchLabels",
        "nodeSelector",
        "requests",
        "selector",
    }
)
"""Members whose keys are data, not fields."""


class TemplateFault(BayplanError):
    """A template file is missing or contains no object."""


class Names:
    """Completes `generateName`, with suffixes like those of an API server, but in order."""

    def __init__(self) -> None:
        self._given = 0

    def after(self, prefix: str) -> str:
        number, text = self._given, ""
        self._given += 1
        for _ in range(_SUFFIX):
            number, digit = divmod(number, len(_ALPHABET))
            text = _ALPHABET[digit] + text
        return prefix + text


class Template:
    """One template file."""

    def __init__(self, path: Path, names: Names, *, parsed: Raw | None = None) -> None:
        self.path = path
        self._names = names
        self._parsed = parsed
        self._text = "" if parsed is not None else _text_of(path)

    @classmethod
    def of(cls, raw: Raw, names: Names) -> Template:
        """A template without a file."""
        return cls(Path("built-in"), names, parsed=raw)

    def objects(self, count: int) -> Iterator[Raw]:
        """The objects 0 to count - 1. They share equal parts, so callers must not change them in place."""
        return (self.object(index, count) for index in range(count))

    def object(self, index: int = 0, count: int = 1) -> Raw:
        found = self._read(index, count)
        metadata = dict(found.get("metadata") or {})
        prefix = metadata.pop("generateName", None)
        if not metadata.get("name") and prefix is not None:
            metadata["name"] = self._names.after(prefix)
        return {**found, "metadata": metadata}

    def _read(self, index: int, count: int) -> Raw:
        if self._parsed is not None:
            return self._parsed
        document = read_document(render(self._text, index=index, count=count))
        if not isinstance(document, dict):
            raise TemplateFault(f"{self.path} contains no object")
        found: Raw = _as_fields(document)
        if not has_marks(self._text):
            self._parsed = found
        return found


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as fault:
        raise TemplateFault(f"{path}: {fault.strerror}; the benchmark files are incomplete") from None


def _as_fields(value: Any) -> Any:
    """The tree with field names as Kubernetes spells them."""
    if isinstance(value, list):
        return [_as_fields(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key[:1].lower() + key[1:]: each if key in _FREE_KEYS else _as_fields(each) for key, each in value.items()}
