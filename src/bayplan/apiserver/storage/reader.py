"""Get and list.

A list joins the stored texts. It decodes an object only if the client asks for another form: a Table, or an event of
the other group. Only the newest committed state exists. It answers every resourceVersion that is not `Exact`, and a
continue token continues after a key in it.
Cost: joining the texts; with a selector, matching every object of the namespace.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from bayplan.apiserver import api_errors
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.storage.selection_predicate import SelectionPredicate, parse_selectors
from bayplan.apiserver.storage.store import ResourceObjects
from bayplan.apiserver.storage.stored_objects import StoredObject, encode
from bayplan.apiserver.storage.version_conversion import to_list_item
from bayplan.codec import json_text
from bayplan.codec.field_errors import FieldErrorList
from bayplan.codec.json_text import JsonSyntaxError

_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True, slots=True)
class ListOptions:
    label_selector: str = ""
    field_selector: str = ""
    version: int | None = None
    version_match: str = ""
    limit: int = 0
    continue_token: str = ""
    watch: bool = False
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout_s: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> ListOptions:
        watch = parse_bool(query.get("watch", ""))
        options = cls(
            label_selector=query.get("labelSelector", ""),
            field_selector=query.get("fieldSelector", ""),
            version=requested_version(query, "" if watch else "invalid resource version: "),
            version_match=query.get("resourceVersionMatch", ""),
            limit=max(_parse_int(query.get("limit", "")) or 0, 0),
            continue_token=query.get("continue", ""),
            watch=watch,
            bookmarks=parse_bool(query.get("allowWatchBookmarks", "")),
            initial_events=parse_bool(query["sendInitialEvents"]) if query.get("sendInitialEvents") else None,
            timeout_s=_parse_int(query.get("timeoutSeconds", "")),
        )
        options.check()
        return options

    def check(self) -> None:
        """Refuse invalid combinations, with the messages of kube-apiserver."""
        errors = FieldErrorList()
        (self._check_watch if self.watch else self._check_list)(errors)
        if errors:
            raise invalid_options("ListOptions", errors)
        if self.continue_token and self.version:
            raise api_errors.bad_request("specifying resource version is not allowed when using continue")

    def _check_list(self, errors: FieldErrorList) -> None:
        at = "resourceVersionMatch"
        if self.initial_events is not None:
            errors.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
        if not self.version_match:
            return
        if self.version is None:
            errors.forbidden(at, f"{at} is forbidden unless resourceVersion is provided")
        if self.continue_token:
            errors.forbidden(at, f"{at} is forbidden when continue is provided")
        if self.version_match not in ("Exact", "NotOlderThan"):
            errors.unsupported(at, self.version_match, ("Exact", "NotOlderThan", ""))
        elif self.version_match == "Exact" and self.version == 0:
            errors.forbidden(at, f'{at} "Exact" is forbidden for resourceVersion "0"')

    def _check_watch(self, errors: FieldErrorList) -> None:
        at = "resourceVersionMatch"
        if self.initial_events is None:
            if self.version_match:
                errors.forbidden(at, f"{at} is forbidden for watch unless sendInitialEvents is provided")
        elif self.version_match != "NotOlderThan":
            errors.forbidden(at, f"sendInitialEvents requires setting {at} to NotOlderThan")
            if self.version_match:
                errors.unsupported(at, self.version_match, ("NotOlderThan",))
        if self.continue_token:
            errors.forbidden(at, f"{at} is forbidden when continue is provided")


class ResourceReader:
    def __init__(self, resource: ServedResource, objects: ResourceObjects) -> None:
        self.resource = resource
        self.objects = objects

    def get(self, namespace: str, name: str) -> StoredObject:
        entry = self.objects.get(namespace, name)
        if entry is None:
            raise api_errors.not_found(self.resource, name)
        return entry

    def select(self, namespace: str, options: ListOptions) -> SelectionPredicate:
        return parse_selectors(self.resource, namespace, options.label_selector, options.field_selector)

    def page(self, namespace: str, options: ListOptions, version: int) -> tuple[list[StoredObject], Tree]:
        """The objects of a list and its metadata."""
        predicate = self.select(namespace, options)
        limit = 0 if options.version == 0 and not options.continue_token else options.limit
        start, shown = (
            _continuation(options.continue_token, version, self.objects.watch_cache.compacted_version)
            if options.continue_token
            else ("", 0)
        )
        shown = shown or version
        check_not_future_version(options.version, version)
        if options.version_match == "Exact" and options.version != version:
            raise api_errors.expired("The resourceVersion for the provided list is too old.")
        entries = self.objects.entries(namespace, after=start)
        selected = entries if predicate.matches_all else (each for each in entries if predicate.matches(each))
        if not limit:
            return list(selected), {"resourceVersion": str(shown)}
        found = list(islice(selected, limit + 1))
        metadata: Tree = {"resourceVersion": str(shown)}
        if len(found) > limit:
            found.pop()
            metadata["continue"] = _continue_token(shown, found[-1].key)
            if predicate.matches_all:
                rest = sum(1 for _ in self.objects.entries(namespace, after=found[-1].key))
                metadata["remainingItemCount"] = rest
        return found, metadata

    def list_json(self, entries: list[StoredObject], metadata: Tree) -> bytes:
        kind = self.resource.list_kind or f"{self.resource.kind}List"
        start = encode({"kind": kind, "apiVersion": self.resource.api_version, "metadata": metadata})[:-1]
        items = b",".join([to_list_item(self.resource, entry) for entry in entries])
        return b"".join((start, b',"items":[', items, b"]}\n"))


def invalid_options(kind: str, errors: FieldErrorList) -> api_errors.StatusError:
    return api_errors.invalid(kind, "meta.k8s.io", "", errors)


def parse_bool(text: str) -> bool:
    """A boolean of the query: true, except for the values that Kubernetes reads as false."""
    return text.lower() not in ("", "0", "f", "false")


def _parse_int(text: str) -> int | None:
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        raise api_errors.bad_request(f"strconv.ParseInt: parsing {json.dumps(text)}: invalid syntax") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise api_errors.bad_request(f"strconv.ParseInt: parsing {json.dumps(text)}: value out of range")
    return number


def requested_version(query: Mapping[str, str], prefix: str = "") -> int | None:
    """The resourceVersion of a request. An invalid one is a 400 in a list and a 500 otherwise."""
    text = query.get("resourceVersion", "")
    if not text:
        return None
    why = "value out of range" if text.isascii() and text.isdigit() else "invalid syntax"
    if why == "value out of range" and int(text) < 1 << 64:
        return int(text)
    shown = json.dumps(text)
    message = f"{prefix}resourceVersion: Invalid value: {shown}: strconv.ParseUint: parsing {shown}: {why}"
    raise api_errors.bad_request(message) if prefix else api_errors.StatusError(500, "", message)


def check_not_future_version(requested: int | None, current: int) -> None:
    if requested is not None and requested > current:
        raise api_errors.resource_version_too_large(requested, current)


def _continue_token(version: int, key: str) -> str:
    content = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": f"{key}\0"}, separators=(",", ":"))
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def _decode_token(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("utf-8", "replace")


def _invalid_token(why: str) -> api_errors.StatusError:
    return api_errors.bad_request(f"invalid continue token: continue key is not valid: {why}")


def _continuation(token: str, version: int, compacted_version: int) -> tuple[str, int]:
    """The last key of the previous page, and the resourceVersion that all pages show."""
    try:
        content = json_text.to_plain(json_text.parse(_decode_token(token)))
        start, shown = str(content["start"]).removesuffix("\0"), int(content["rv"])
    except JsonSyntaxError as error:
        raise _invalid_token(str(error)) from None
    except (ValueError, KeyError, TypeError):
        raise _invalid_token("illegal base64 data at input byte 0") from None
    if 0 < shown < compacted_version:
        raise api_errors.expired(_TOO_OLD, _continue_token(-1, start))
    return start, version if shown < 0 else shown
