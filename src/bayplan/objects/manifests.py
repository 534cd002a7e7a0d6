"""Reads objects from files: YAML or JSON, single objects, lists, several documents, folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayplan.codec.yaml import read_manifests
from bayplan.errors import ObjectError
from bayplan.objects.defaults import DEFAULT_NAMESPACE
from bayplan.objects.kinds import KINDS, Kind, convert, find_kind, kind_of, kinds_by_name
from bayplan.objects.meta import KubeObject

_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class LoadedManifests:
    """The objects of some files, the position of each, and the documents of kinds that a scheduler does not read."""

    objects: tuple[KubeObject, ...]
    skipped: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RawObject:
    """An object as it stands in a file."""

    value: dict[str, Any]
    api_version: str
    kind: str
    place: str
    path: Path

    @property
    def tree(self) -> dict[str, Any]:
        """The whole object. An item of a typed list has its kind, too."""
        return {**self.value, "apiVersion": self.api_version, "kind": self.kind}

    @property
    def name(self) -> str:
        """The name of the object, empty if it has none that is printable."""
        metadata = self.value.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return name if isinstance(name, str) else ""


def load_manifests(paths: Iterable[Path]) -> LoadedManifests:
    """Every object in the files; folders are searched for .yaml, .yml and .json.

    Defaults and checks are not applied yet: `defaults.with_all_defaults` does this, with the same positions.
    """
    objects: list[KubeObject] = []
    skipped: list[str] = []
    places: list[str] = []
    for raw in raw_objects(paths):
        kind = _kind(raw)
        if kind is None:
            skipped.append(_unsupported_text(raw))
        else:
            objects.append(_convert(raw, kind))
            places.append(raw.place)
    _reject_duplicates(objects, places)
    return LoadedManifests(tuple(objects), tuple(skipped), tuple(places))


def raw_objects(paths: Iterable[Path]) -> Iterator[RawObject]:
    """Every object in the files, of whatever kind, as it stands there."""
    # A folder and a file in it may both be given; the file is read once.
    for path in {each.resolve(): each for each in _files(paths)}.values():
        for manifest in read_manifests(path):
            yield from _flatten(RawObject(manifest.value, "", "", manifest.place, path))


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
            raise ObjectError(f"{path} does not exist; name a file or a folder of manifests")


def _flatten(raw: RawObject) -> Iterator[RawObject]:
    """The object itself, or the items of a list. Items of a typed list may omit kind and apiVersion."""
    kind = _string_field(raw, "kind", raw.kind)
    api_version = _string_field(raw, "apiVersion", raw.api_version)
    if not kind.endswith("List") or "items" not in raw.value:
        yield RawObject(raw.value, api_version, kind, raw.place, raw.path)
        return
    items = raw.value["items"] if raw.value["items"] is not None else []
    if not isinstance(items, list):
        raise ObjectError(f"{raw.place}: the items of the {kind} are not a list; write one with - before each item")
    own = (api_version, kind.removesuffix("List")) if kind != "List" else ("", "")
    for number, item in enumerate(items, 1):
        place = f"{raw.place}, item {number}"
        if not isinstance(item, dict):
            raise ObjectError(f"{place}: an item of the {kind} is not an object; write one with apiVersion and kind")
        yield from _flatten(RawObject(item, *own, place, raw.path))


def _string_field(raw: RawObject, key: str, default: str) -> str:
    found = raw.value.get(key) or default
    if isinstance(found, str) and found:
        return found
    kind = raw.value.get("kind")
    subject = f"{kind} {raw.name}".rstrip() + " " if isinstance(kind, str) and kind and key != "kind" else ""
    known = [each.api_versions[0] for each in KINDS if each.name == kind] if key == "apiVersion" else []
    remedy = f"add apiVersion: {' or '.join(known)}" if known else "a manifest starts with apiVersion and kind"
    raise ObjectError(f"{raw.place}: {subject}has no {key}; {remedy}")


def _kind(raw: RawObject) -> Kind | None:
    try:
        return find_kind(raw.api_version, raw.kind)
    except ObjectError as fault:
        raise ObjectError(f"{raw.place}: {fault}") from None


def _unsupported_text(raw: RawObject) -> str:
    # A kind of the same name in another group gets its apiVersion, to avoid confusion.
    kind = f"{raw.api_version} {raw.kind}" if raw.kind in kinds_by_name() else raw.kind
    return f"{kind} {raw.name} in {raw.path}"


def _convert(raw: RawObject, kind: Kind) -> KubeObject:
    try:
        return convert(raw.value, kind.struct)
    except ObjectError as fault:
        raise ObjectError(f"{raw.place}: {fault}") from None


def _reject_duplicates(objects: list[KubeObject], places: list[str]) -> None:
    """An API server stores one object of a kind and a name, so a duplicate is an error."""
    seen: dict[tuple[Kind, str, str], str] = {}
    for item, place in zip(objects, places, strict=True):
        kind = kind_of(type(item))
        namespace = item.namespace or (DEFAULT_NAMESPACE if kind.namespaced else "")
        first = seen.setdefault((kind, namespace, item.name), place)
        if first is not place and item.name:
            key = f"{namespace}/{item.name}" if namespace else item.name
            raise ObjectError(f"{kind.name} {key} is defined twice, in {first} and in {place}; remove one")
