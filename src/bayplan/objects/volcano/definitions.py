"""What are Volcano's kinds to an API server? Their CustomResourceDefinitions, as Volcano 1.15 has them.

Asked by `bayplan crds` and by whoever sets up a cluster. The facts (names, columns, fields, types, limits) come from a
table that `scripts/volcano/make_definitions.py` derives from a Volcano release; descriptions are not in it. Reading it
costs some 10 ms, once.
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
    """All of them, by name. They are shared: who changes one copies it first."""
    packed = resources.files(__package__).joinpath("definitions.json.gz").read_bytes()
    table = msgspec.json.decode(gzip.decompress(packed))
    parts: list[Any] = []
    for part in table["parts"]:
        parts.append(_unpacked(part, parts))
    return tuple(_unpacked(table["definitions"], parts))


def _unpacked(value: Any, parts: list[Any]) -> Any:
    if isinstance(value, list):
        return [_unpacked(each, parts) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and "$" in value:
        return parts[value["$"]]
    return {key: _unpacked(each, parts) for key, each in value.items()}


def definitions_to_install(
    installed: Iterable[Mapping[str, Any]], wanted: Iterable[Definition] | None = None
) -> Iterator[Definition]:
    """The definitions, Volcano's unless others are `wanted`, that a cluster lacks. One of the same version that is
    there is somebody's, and stays as it is."""
    there = {each["metadata"]["name"]: _versions(each) for each in installed}
    for definition in volcano_definitions() if wanted is None else wanted:
        if not _versions(definition) <= there.get(definition["metadata"]["name"], set()):
            yield definition


def installed_definitions(installed: Iterable[Mapping[str, Any]], wanted: Iterable[Definition]) -> Iterator[Definition]:
    """Those that a cluster has exactly so: to apply them changes nothing. Somebody else's of the same version are not
    among them, though all that ours says may be in theirs: what theirs says besides would be taken away."""
    there = {each["metadata"]["name"]: each for each in installed}
    for definition in wanted:
        found = there.get(definition["metadata"]["name"])
        if found is not None and _authored_part(found) == _authored_part(definition):
            yield definition


def _authored_part(definition: Mapping[str, Any]) -> tuple[Any, ...]:
    """What somebody wrote of a definition, without what the server and kubectl add."""
    metadata, spec = definition["metadata"], dict(definition["spec"])
    if spec.get("conversion") == {"strategy": "None"}:
        del spec["conversion"]
    notes = {key for key in metadata.get("annotations") or {} if key != _LAST_APPLIED}
    return spec, notes, metadata.get("labels") or {}


def _versions(definition: Mapping[str, Any]) -> set[str]:
    return {version["name"] for version in definition["spec"]["versions"]}
