"""What does a get or a list answer?

The texts of the store are put together as they are; a list reads an object only when the client wants another form
(a Table, an event of the other group). There is one state, the newest: it answers every resourceVersion that is not
`Exact`, and a continuation goes on from a key in it.
Cost: joining the texts; matching every object of the namespace where a selector is given.
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
from bayplan.apiserver.validation.field_errors import FieldErrorList
from bayplan.codec import json_text
from bayplan.codec.json_text import JsonSyntaxError

_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The parameters of a list or watch, as they were given."""

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
        """Refuse what does not go together, in Kubernetes' words."""
        faults = FieldErrorList()
        (self._check_watch if self.watch else self._check_list)(faults)
        if faults:
            raise invalid_options("ListOptions", faults)
        if self.continue_token and self.version:
            raise api_errors.bad_request("specifying resource version is not allowed when using continue")

    def _check_list(self, faults: FieldErrorList) -> None:
        at = "resourceVersionMatch"
        if self.initial_events is not None:
            faults.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
        if not self.version_match:
            return
        if self.version is None:
            faults.forbidden(at, f"{at} is forbidden unless resourceVersion is provided")
        if self.continue_token:
            faults.forbidden(at, f"{at} is forbidden when continue is provided")
        if self.version_match not in ("Exact", "NotOlderThan"):
            faults.unsupported(at, self.version_match, ("Exact", "NotOlderThan", ""))
        elif self.version_match == "Exact" and self.version == 0:
            faults.forbidden(at, f'{at} "Exact" is forbidden for resourceVersion "0"')

    def _check_watch(self, faults: FieldErrorList) -> None:
        at = "resourceVersionMatch"
        if self.initial_events is None:
            if self.version_match:
                faults.forbidden(at, f"{at} is forbidden for watch unless sendInitialEvents is provided")
        elif self.version_match != "NotOlderThan":
            faults.forbidden(at, f"sendInitialEvents requires setting {at} to NotOlderThan")
            if self.version_match:
                faults.unsupported(at, self.version_match, ("NotOlderThan",))
        if self.continue_token:
            faults.forbidden(at, f"{at} is forbidden when continue is provided")


class ResourceReader:
    """Answers for one kind in one version."""

    def __init__(self, resource: ServedResource, place: ResourceObjects) -> None:
        self.resource = resource
        self.place = place

    def get(self, namespace: str, name: str) -> StoredObject:
        entry = self.place.get(namespace, name)
        if entry is None:
            raise api_errors.not_found(self.resource, name)
        return entry

    def select(self, namespace: str, options: ListOptions) -> SelectionPredicate:
        return parse_selectors(self.resource, namespace, options.label_selector, options.field_selector)

    def page(self, namespace: str, options: ListOptions, version: int) -> tuple[list[StoredObject], Tree]:
        """The entries of a list and its metadata."""
        wanted = self.select(namespace, options)
        limit = 0 if options.version == 0 and not options.continue_token else options.limit
        start, shown = (
            _continuation(options.continue_token, version, self.place.watch_cache.compacted_version)
            if options.continue_token
            else ("", 0)
        )
        shown = shown or version
        check_not_future_version(options.version, version)
        if options.version_match == "Exact" and options.version != version:
            raise api_errors.expired("The resourceVersion for the provided list is too old.")
        entries = self.place.entries(namespace, after=start)
        chosen = entries if wanted.matches_all else (each for each in entries if wanted.matches(each))
        if not limit:
            return list(chosen), {"resourceVersion": str(shown)}
        found = list(islice(chosen, limit + 1))
        metadata: Tree = {"resourceVersion": str(shown)}
        if len(found) > limit:
            found.pop()
            metadata["continue"] = _continue_token(shown, found[-1].key)
            if wanted.matches_all:
                rest = sum(1 for _ in self.place.entries(namespace, after=found[-1].key))
                metadata["remainingItemCount"] = rest
        return found, metadata

    def list_json(self, entries: list[StoredObject], metadata: Tree) -> bytes:
        """The body of a list."""
        kind = self.resource.list_kind or f"{self.resource.kind}List"
        start = encode({"kind": kind, "apiVersion": self.resource.api_version, "metadata": metadata})[:-1]
        items = b",".join([to_list_item(self.resource, entry) for entry in entries])
        return b"".join((start, b',"items":[', items, b"]}\n"))


def invalid_options(kind: str, faults: FieldErrorList) -> api_errors.StatusError:
    """The refusal of parameters that do not go together."""
    return api_errors.invalid(kind, "meta.k8s.io", "", faults)


def parse_bool(text: str) -> bool:
    """A boolean of the query: anything but what Kubernetes takes for no."""
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


def requested_version(query: Mapping[str, str], complaint: str = "") -> int | None:
    """The version that a request names. Nonsense is a bad request in a list, a mishap of the server's own elsewhere."""
    text = query.get("resourceVersion", "")
    if not text:
        return None
    why = "value out of range" if text.isascii() and text.isdigit() else "invalid syntax"
    if why == "value out of range" and int(text) < 1 << 64:
        return int(text)
    shown = json.dumps(text)
    told = f"{complaint}resourceVersion: Invalid value: {shown}: strconv.ParseUint: parsing {shown}: {why}"
    raise api_errors.bad_request(told) if complaint else api_errors.StatusError(500, "", told)


def check_not_future_version(asked: int | None, current: int) -> None:
    """Refuse to answer for a version that is still to come."""
    if asked is not None and asked > current:
        raise api_errors.resource_version_too_large(asked, current)


def _continue_token(version: int, key: str) -> str:
    content = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": f"{key}\0"}, separators=(",", ":"))
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def _decode_token(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("utf-8", "replace")


def _invalid_token(why: str) -> api_errors.StatusError:
    return api_errors.bad_request(f"invalid continue token: continue key is not valid: {why}")


def _continuation(token: str, version: int, forgotten: int) -> tuple[str, int]:
    """The key that the last page ended with, and the version that all pages show."""
    try:
        content = json_text.to_plain(json_text.parse(_decode_token(token)))
        start, shown = str(content["start"]).removesuffix("\0"), int(content["rv"])
    except JsonSyntaxError as fault:
        raise _invalid_token(str(fault)) from None
    except (ValueError, KeyError, TypeError):
        raise _invalid_token("illegal base64 data at input byte 0") from None
    if 0 < shown < forgotten:
        raise api_errors.expired(_TOO_OLD, _continue_token(-1, start))
    return start, version if shown < 0 else shown
