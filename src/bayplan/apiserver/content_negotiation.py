"""In which form does the client want its answer? The Accept header, read as Kubernetes reads it.

JSON is always there, YAML on request, and objects can be shown whole, as their metadata alone, or as rows of a Table.
A client that would rather have protobuf takes JSON too, or it is refused. Cost: cached for each spelling.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from bayplan.apiserver import api_errors

JSON = "application/json"
YAML = "application/yaml"
_FORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The form of an answer: `shape` is empty for whole objects."""

    yaml: bool = False
    shape: str = ""
    shape_version: str = "v1"
    aggregated: bool = False
    """Discovery in one piece."""


@lru_cache(maxsize=512)
def wanted(accept: str) -> Wanted:
    """The first form of the client's list that there is."""
    if not accept:
        return Wanted()
    for clause in sorted(map(_clause, accept.split(",")), key=lambda each: -each[2]):
        found = _serve(*clause)
        if found is not None:
            return found
    raise api_errors.not_acceptable()


def _clause(text: str) -> tuple[str, dict[str, str], float]:
    media, *more = (part.strip() for part in text.split(";"))
    options = {key.strip(): value.strip() for key, _, value in (each.partition("=") for each in more)}
    try:
        weight = float(options.pop("q", "1"))
    except ValueError:
        weight = 0.0
    return media.lower(), options, weight


def _serve(media: str, options: dict[str, str], _: float) -> Wanted | None:
    if media not in ("*/*", "application/*", JSON, YAML):
        return None
    yaml = media == YAML
    shape, group, version = options.get("as", ""), options.get("g", ""), options.get("v", "")
    if not shape:
        return Wanted(yaml=yaml)
    if shape == "APIGroupDiscoveryList":
        return Wanted(aggregated=True) if group == "apidiscovery.k8s.io" and version == "v2" and not yaml else None
    if shape in _FORMS and group == "meta.k8s.io" and version in ("v1", "v1beta1"):
        return Wanted(yaml=yaml, shape=shape, shape_version=version)
    return None
