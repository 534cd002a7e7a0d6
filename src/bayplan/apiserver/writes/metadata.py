"""Metadata that the server sets or restores.

Called for every create and update. Cost: a few dictionary writes; uids and generated names use the given random source.
"""

from __future__ import annotations

import random
from datetime import datetime

from bayplan.apiserver import api_errors
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.codec.field_errors import FieldErrorList
from bayplan.objects.meta import NAME_SUFFIX_ALPHABET

_SUFFIX_LENGTH = 5
_MAX_BASE_LENGTH = 58
_VERSION_4 = 0x4000_8000_0000_0000_0000
_RANDOM = (1 << 128) - 1 ^ 0xF000_C000_0000_0000_0000
_SERVER_FIELDS = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
)


class _TimestampCache:
    """The last formatted second: every write formats it a few times, and thousands of writes share it."""

    __slots__ = ("minute_of", "second", "text")

    def __init__(self) -> None:
        self.second = -1
        self.minute_of: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
        self.text = ""


_LAST_TIMESTAMP = _TimestampCache()


def timestamp(now: datetime) -> str:
    last = _LAST_TIMESTAMP
    minute_of = (now.minute, now.hour, now.day, now.month, now.year)
    if now.second != last.second or minute_of != last.minute_of:
        last.text = f"{now.isoformat(timespec='seconds')[:19]}Z"
        last.second, last.minute_of = now.second, minute_of
    return last.text


def new_uid(chance: random.Random) -> str:
    """A random UUID, version 4, as text."""
    digits = f"{chance.getrandbits(128) & _RANDOM | _VERSION_4:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def generate_name(base: str, chance: random.Random) -> str:
    return base[:_MAX_BASE_LENGTH] + "".join(chance.choices(NAME_SUFFIX_ALPHABET, k=_SUFFIX_LENGTH))


def set_namespace(resource: ServedResource, tree: Tree, namespace: str) -> None:
    """Set the namespace of the path. Cluster-scoped objects lose their namespace."""
    metadata = tree.setdefault("metadata", {})
    given = metadata.get("namespace") or ""
    if not resource.namespaced:
        metadata.pop("namespace", None)
        return
    if given and given != namespace:
        raise api_errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    metadata["namespace"] = namespace


def set_name(tree: Tree, name: str) -> None:
    """Check that the object has the name of the path."""
    metadata = tree.setdefault("metadata", {})
    given = metadata.get("name") or ""
    if not given:
        why = f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
        raise api_errors.bad_request(why)
    if given != name:
        raise api_errors.bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")


def prepare_create_metadata(resource: ServedResource, tree: Tree, now: datetime, chance: random.Random) -> None:
    """Set the metadata of a new object: uid and creation time come from the server."""
    metadata: Tree = tree["metadata"]
    metadata.pop("resourceVersion", None)
    generation = metadata.get("generation")
    for key in _SERVER_FIELDS:
        metadata.pop(key, None)
    if generation and not resource.custom:
        metadata["generation"] = generation
    metadata["uid"] = new_uid(chance)
    metadata["creationTimestamp"] = timestamp(now)


def check_has_name(resource: ServedResource, tree: Tree) -> None:
    metadata = tree["metadata"]
    if not metadata.get("name") and not metadata.get("generateName"):
        errors = FieldErrorList()
        errors.required("metadata.name", "name or generateName is required")
        raise api_errors.invalid(resource.kind, resource.group, "", errors)


def prepare_update_metadata(resource: ServedResource, tree: Tree, old: Tree) -> None:
    """Restore the metadata that an update cannot change, and refuse changes of immutable fields."""
    metadata, before = tree["metadata"], old["metadata"]
    errors = FieldErrorList()
    if metadata.get("uid") and metadata["uid"] != before.get("uid"):
        errors.invalid("metadata.uid", metadata["uid"], "field is immutable")
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        if metadata.get(key) is not None and metadata[key] != before.get(key):
            errors.invalid(f"metadata.{key}", metadata[key], "field is immutable")
    if errors:
        raise api_errors.invalid(resource.kind, resource.group, before["name"], errors)
    metadata.pop("selfLink", None)
    for key in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        if key in before:
            metadata[key] = before[key]
        else:
            metadata.pop(key, None)
