"""Reads a cluster from files: YAML or JSON, single objects, lists, several documents, folders of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayplan.errors import ObjectError
from bayplan.objects.kinds import convert, kinds_by_name
from bayplan.objects.meta import KubeObject
from bayplan.objects.quantity import QuantityError, parse_quantity
from bayplan.objects.yaml import Manifest, read_manifests

_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The objects of some files, and the documents whose kind a scheduler does not look at."""

    objects: tuple[KubeObject, ...]
    skipped: tuple[str, ...] = ()


def load_manifests(paths: Iterable[Path]) -> Loaded:
    """Every object in the files; folders are searched for .yaml, .yml and .json."""
    objects: list[KubeObject] = []
    skipped: list[str] = []
    for path in _files(paths):
        for manifest in read_manifests(path):
            for raw in _items(manifest):
                found = _object(raw, manifest)
                if found is None:
                    skipped.append(f"{raw.get('kind')} {(raw.get('metadata') or {}).get('name', '')} in {path}")
                else:
                    objects.append(found)
    return Loaded(tuple(objects), tuple(skipped))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            files = sorted(each for each in path.rglob("*") if each.suffix in _SUFFIXES and each.is_file())
            if not files:
                raise ObjectError(f"{path} has no .yaml, .yml or .json file")
            yield from files
        elif path.exists():
            yield path
        else:
            raise ObjectError(f"{path} does not exist")


def _items(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """The document itself, or the items of a list."""
    raw = manifest.value
    kind = raw.get("kind")
    if not isinstance(kind, str) or not kind:
        raise ObjectError(f"{manifest.place} has no kind; a manifest starts with apiVersion and kind")
    if not kind.endswith("List") or "items" not in raw:
        yield raw
        return
    for item in raw["items"] or ():
        if not isinstance(item, dict):
            raise ObjectError(f"{manifest.place}: an item of the {kind} is not an object")
        yield {"kind": kind.removesuffix("List"), **item} if kind != "List" else item


def _object(raw: dict[str, Any], manifest: Manifest) -> KubeObject | None:
    kind = kinds_by_name().get(str(raw.get("kind")))
    if kind is None:
        return None
    try:
        item = convert(raw, kind.struct)
        _check_quantities(raw, "")
    except ObjectError as fault:
        raise ObjectError(f"{manifest.place}: {fault}") from None
    return item


def _check_quantities(value: Any, where: str) -> None:
    """Find impossible quantities while the file and the field are still known."""
    if isinstance(value, list):
        for position, item in enumerate(value):
            _check_quantities(item, f"{where}[{position}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            place = f"{where}.{key}" if where else str(key)
            if key in ("requests", "limits", "allocatable", "capacity", "overhead") and isinstance(item, dict):
                for name, text in item.items():
                    _check_quantity(text, f"{place}.{name}")
            else:
                _check_quantities(item, place)


def _check_quantity(text: Any, where: str) -> None:
    if isinstance(text, dict):  # a device's capacity: an object with a value
        text = text.get("value", 0)
    try:
        parse_quantity(text)
    except QuantityError as fault:
        raise ObjectError(f'{where}: "{text}" is no quantity ({fault.reason}); write it like 500m, 2 or 4Gi') from None
