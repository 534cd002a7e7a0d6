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
from bayplan.apiserver.resources.kinds import Resource, Tree
from bayplan.apiserver.storage.selection_predicate import Selection, selection
from bayplan.apiserver.storage.store import Objects
from bayplan.apiserver.storage.stored_objects import Entry, encode
from bayplan.apiserver.storage.version_conversion import item
from bayplan.apiserver.validation.field_errors import Faults
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
    match: str = ""
    limit: int = 0
    token: str = ""
    watch: bool = False
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout_s: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> ListOptions:
        watch = flag(query.get("watch", ""))
        options = cls(
            label_selector=query.get("labelSelector", ""),
            field_selector=query.get("fieldSelector", ""),
            version=asked_version(query, "" if watch else "invalid resource version: "),
            match=query.get("resourceVersionMatch", ""),
            limit=max(_number(query.get("limit", "")) or 0, 0),
            token=query.get("continue", ""),
            watch=watch,
            bookmarks=flag(query.get("allowWatchBookmarks", "")),
            initial_events=flag(query["sendInitialEvents"]) if query.get("sendInitialEvents") else None,
            timeout_s=_number(query.get("timeoutSeconds", "")),
        )
        options.check()
        return options

    def check(self) -> None:
        """Refuse what does not go together, in Kubernetes' words."""
        faults = Faults()
        (self._check_watch if self.watch else self._check_list)(faults)
        if faults:
            raise invalid_options("ListOptions", faults)
        if self.token and self.version:
            raise api_errors.bad_request("specifying resource version is not allowed when using continue")

    def _check_list(self, faults: Faults) -> None:
        at = "resourceVersionMatch"
        if self.initial_events is not None:
            faults.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
        if not self.match:
            return
        if self.version is None:
            faults.forbidden(at, f"{at} is forbidden unless resourceVersion is provided")
        if self.token:
            faults.forbidden(at, f"{at} is forbidden when continue is provided")
        if self.match not in ("Exact", "NotOlderThan"):
            faults.unsupported(at, self.match, ("Exact", "NotOlderThan", ""))
        elif self.match == "Exact" and self.version == 0:
            faults.forbidden(at, f'{at} "Exact" is forbidden for resourceVersion "0"')

    def _check_watch(self, faults: Faults) -> None:
        at = "resourceVersionMatch"
        if self.initial_events is None:
            if self.match:
                faults.forbidden(at, f"{at} is forbidden for watch unless sendInitialEvents is provided")
        elif self.match != "NotOlderThan":
            faults.forbidden(at, f"sendInitialEvents requires setting {at} to NotOlderThan")
            if self.match:
                faults.unsupported(at, self.match, ("NotOlderThan",))
        if self.token:
            faults.forbidden(at, f"{at} is forbidden when continue is provided")


class Reader:
    """Answers for one kind in one version."""

    def __init__(self, resource: Resource, place: Objects) -> None:
        self.resource = resource
        self.place = place

    def get(self, namespace: str, name: str) -> Entry:
        entry = self.place.get(namespace, name)
        if entry is None:
            raise api_errors.not_found(self.resource, name)
        return entry

    def select(self, namespace: str, options: ListOptions) -> Selection:
        return selection(self.resource, namespace, options.label_selector, options.field_selector)

    def page(self, namespace: str, options: ListOptions, version: int) -> tuple[list[Entry], Tree]:
        """The entries of a list and its metadata."""
        wanted = self.select(namespace, options)
        limit = 0 if options.version == 0 and not options.token else options.limit
        start, shown = _continuation(options.token, version, self.place.ring.forgotten) if options.token else ("", 0)
        shown = shown or version
        not_ahead(options.version, version)
        if options.match == "Exact" and options.version != version:
            raise api_errors.expired("The resourceVersion for the provided list is too old.")
        entries = self.place.entries(namespace, after=start)
        chosen = entries if wanted.everything else (each for each in entries if wanted.matches(each))
        if not limit:
            return list(chosen), {"resourceVersion": str(shown)}
        found = list(islice(chosen, limit + 1))
        metadata: Tree = {"resourceVersion": str(shown)}
        if len(found) > limit:
            found.pop()
            metadata["continue"] = _token(shown, found[-1].key)
            if wanted.everything:
                rest = sum(1 for _ in self.place.entries(namespace, after=found[-1].key))
                metadata["remainingItemCount"] = rest
        return found, metadata

    def list_text(self, entries: list[Entry], metadata: Tree) -> bytes:
        """The body of a list."""
        kind = self.resource.list_kind or f"{self.resource.kind}List"
        start = encode({"kind": kind, "apiVersion": self.resource.api_version, "metadata": metadata})[:-1]
        items = b",".join([item(self.resource, entry) for entry in entries])
        return b"".join((start, b',"items":[', items, b"]}\n"))


def invalid_options(kind: str, faults: Faults) -> api_errors.Refusal:
    """The refusal of parameters that do not go together."""
    return api_errors.invalid(kind, "meta.k8s.io", "", faults)


def flag(text: str) -> bool:
    """A boolean of the query: anything but what Kubernetes takes for no."""
    return text.lower() not in ("", "0", "f", "false")


def _number(text: str) -> int | None:
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        raise api_errors.bad_request(f"strconv.ParseInt: parsing {json.dumps(text)}: invalid syntax") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise api_errors.bad_request(f"strconv.ParseInt: parsing {json.dumps(text)}: value out of range")
    return number


def asked_version(query: Mapping[str, str], complaint: str = "") -> int | None:
    """The version that a request names. Nonsense is a bad request in a list, a mishap of the server's own elsewhere."""
    text = query.get("resourceVersion", "")
    if not text:
        return None
    why = "value out of range" if text.isascii() and text.isdigit() else "invalid syntax"
    if why == "value out of range" and int(text) < 1 << 64:
        return int(text)
    shown = json.dumps(text)
    told = f"{complaint}resourceVersion: Invalid value: {shown}: strconv.ParseUint: parsing {shown}: {why}"
    raise api_errors.bad_request(told) if complaint else api_errors.Refusal(500, "", told)


def not_ahead(asked: int | None, current: int) -> None:
    """Refuse to answer for a version that is still to come."""
    if asked is not None and asked > current:
        raise api_errors.too_large_version(asked, current)


def _token(version: int, key: str) -> str:
    content = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": f"{key}\0"}, separators=(",", ":"))
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def _unwrapped(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("utf-8", "replace")


def _no_token(why: str) -> api_errors.Refusal:
    return api_errors.bad_request(f"invalid continue token: continue key is not valid: {why}")


def _continuation(token: str, version: int, forgotten: int) -> tuple[str, int]:
    """The key that the last page ended with, and the version that all pages show."""
    try:
        content = json_text.plain(json_text.parse(_unwrapped(token)))
        start, shown = str(content["start"]).removesuffix("\0"), int(content["rv"])
    except JsonSyntaxError as fault:
        raise _no_token(str(fault)) from None
    except (ValueError, KeyError, TypeError):
        raise _no_token("illegal base64 data at input byte 0") from None
    if 0 < shown < forgotten:
        raise api_errors.expired(_TOO_OLD, _token(-1, start))
    return start, version if shown < 0 else shown
