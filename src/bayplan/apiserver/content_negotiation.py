"""Content negotiation: the Accept header, parsed as kube-apiserver parses it.

JSON is the default, YAML is supported. Objects are returned whole, as their metadata, or as rows of a Table. A client
that prefers protobuf gets JSON if it accepts that too, otherwise 406. Cost: cached for each value of the header.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from bayplan.apiserver import api_errors

JSON = "application/json"
YAML = "application/yaml"
_META_KINDS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")


@dataclass(frozen=True, slots=True)
class MediaTypeOptions:
    """The media type and shape of a response. `shape` is empty for whole objects."""

    yaml: bool = False
    shape: str = ""
    shape_version: str = "v1"
    aggregated: bool = False
    """Whether discovery is aggregated into one document."""


@lru_cache(maxsize=512)
def negotiate_media_type(accept: str) -> MediaTypeOptions:
    """The first supported form of the Accept header, by its weights."""
    if not accept:
        return MediaTypeOptions()
    for clause in sorted(map(_parse_clause, accept.split(",")), key=lambda each: -each[2]):
        found = _match_media_type(*clause)
        if found is not None:
            return found
    raise api_errors.not_acceptable()


def _parse_clause(text: str) -> tuple[str, dict[str, str], float]:
    media, *more = (part.strip() for part in text.split(";"))
    options = {key.strip(): value.strip() for key, _, value in (each.partition("=") for each in more)}
    try:
        weight = float(options.pop("q", "1"))
    except ValueError:
        weight = 0.0
    return media.lower(), options, weight


def _match_media_type(media: str, options: dict[str, str], _: float) -> MediaTypeOptions | None:
    if media not in ("*/*", "application/*", JSON, YAML):
        return None
    yaml = media == YAML
    shape, group, version = options.get("as", ""), options.get("g", ""), options.get("v", "")
    if not shape:
        return MediaTypeOptions(yaml=yaml)
    if shape == "APIGroupDiscoveryList":
        return (
            MediaTypeOptions(aggregated=True)
            if group == "apidiscovery.k8s.io" and version == "v2" and not yaml
            else None
        )
    if shape in _META_KINDS and group == "meta.k8s.io" and version in ("v1", "v1beta1"):
        return MediaTypeOptions(yaml=yaml, shape=shape, shape_version=version)
    return None
