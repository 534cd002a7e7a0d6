"""Default image pull policy. Used for every container and image volume; cached by image name."""

from __future__ import annotations

import re
from functools import lru_cache

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN = rf"(?:{_HOST}(?:\.{_HOST})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_TAG = r"\w[\w.-]{0,127}"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_REFERENCE = re.compile(rf"(?:({_DOMAIN})/)?({_COMPONENT}(?:/{_COMPONENT})*)(?::({_TAG}))?(?:@({_DIGEST}))?", re.ASCII)
_HASH = re.compile(r"[a-f0-9]{64}")


@lru_cache(maxsize=4096)
def default_pull_policy(image: str) -> str:
    """Always for the tag `latest` and for images without tag and digest; IfNotPresent otherwise."""
    reference = _parse_reference(image)
    if reference is None:
        return "IfNotPresent"
    tag, digest = reference
    return "Always" if tag == "latest" or not (tag or digest) else "IfNotPresent"


def _parse_reference(image: str) -> tuple[str | None, str | None] | None:
    """Tag and digest of an image reference; None if it is invalid."""
    if _HASH.fullmatch(image):
        return None
    match = _REFERENCE.fullmatch(_add_default_domain(image))
    return None if match is None else (match[3], match[4])


def _add_default_domain(image: str) -> str:
    """Adds the default registry, unless the first part looks like a host."""
    first, slash, _ = image.partition("/")
    host = slash and ("." in first or ":" in first or first == "localhost" or first != first.lower())
    return image if host else f"docker.io/{image}"
