"""The CustomResourceDefinitions of Volcano 1.15.

Used by `bayplan crds` and by code that sets up a cluster. Names, columns, fields, types and limits come from a table
that `scripts/volcano/make_definitions.py` derives from a Volcano release, without descriptions. Reading it costs about
10 ms, once.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

Definition = dict[str, Any]

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@cache
def volcano_definitions() -> tuple[Definition, ...]:
    """All definitions, by name. They are shared; copy one before changing it."""
    packed = resources.files(__package__).joinpath("definitions.json.gz").read_bytes()
    table = msgspec.json.decode(gzip.decompress(packed))
    parts: list[Any] = []
    for part in table["parts"]:
        parts.append(_unpack(part, parts))
    return tuple(_unpack(table["definitions"], parts))


def _unpack(value: Any, parts: list[Any]) -> Any:
    if isinstance(value, list):
        return [_unpack(each, parts) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and "$" in value:
        return parts[value["$"]]
    return {key: _unpack(each, parts) for key, each in value.items()}


def definitions_to_install(
    installed: Iterable[Mapping[str, Any]], wanted: Iterable[Definition] | None = None
) -> Iterator[Definition]:
    """The definitions that a cluster lacks: those of Volcano, or `wanted`.

    An installed definition of the same version is left as it is.
    """
    there = {each["metadata"]["name"]: _versions(each) for each in installed}
    for definition in volcano_definitions() if wanted is None else wanted:
        if not _versions(definition) <= there.get(definition["metadata"]["name"], set()):
            yield definition


def installed_definitions(installed: Iterable[Mapping[str, Any]], wanted: Iterable[Definition]) -> Iterator[Definition]:
    """The definitions that a cluster has exactly as here, so that applying them changes nothing.

    A definition of the same version with additional content is not among them, since applying ours would remove that
    content.
    """
    there = {each["metadata"]["name"]: each for each in installed}
    for definition in wanted:
        found = there.get(definition["metadata"]["name"])
        if found is not None and _authored_part(found) == _authored_part(definition):
            yield definition


def _authored_part(definition: Mapping[str, Any]) -> tuple[Any, ...]:
    """The authored part of a definition, without the fields that the server and kubectl add."""
    metadata, spec = definition["metadata"], dict(definition["spec"])
    if spec.get("conversion") == {"strategy": "None"}:
        del spec["conversion"]
    notes = {key for key in metadata.get("annotations") or {} if key != _LAST_APPLIED}
    return spec, notes, metadata.get("labels") or {}


def _versions(definition: Mapping[str, Any]) -> set[str]:
    return {version["name"] for version in definition["spec"]["versions"]}
