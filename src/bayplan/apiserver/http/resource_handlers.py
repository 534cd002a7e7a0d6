"""Which answer has a request about objects? One method a verb; the work is done by readers, watches and writers.

Reads answer from committed objects and never wait for the journal. A write is answered after its commit.
Cost: that of the work; a body is read before anything is decided, and nothing is awaited between reading the store and
writing it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec.structs import replace

from bayplan.apiserver import api_errors
from bayplan.apiserver.content_negotiation import wanted
from bayplan.apiserver.http.output_shapes import Shown
from bayplan.apiserver.http.responses import Reply, Stream
from bayplan.apiserver.http.subresource_handlers import Parts, is_special
from bayplan.apiserver.http.watch_stream import Watch
from bayplan.apiserver.requests import Ask, WriteOptions, Writing
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.schema.body_decoding import (
    APPLY,
    converter,
    managed_type,
    media_type,
    read_applied,
    read_body,
    read_patch,
    reread,
)
from bayplan.apiserver.schema.decoder import Decoded
from bayplan.apiserver.schema.managed_fields.server_side_apply import apply
from bayplan.apiserver.schema.patches import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from bayplan.apiserver.storage import version_conversion
from bayplan.apiserver.storage.reader import (
    ListOptions,
    Reader,
    asked_version,
    invalid_options,
    not_ahead,
)
from bayplan.apiserver.storage.store import CommitError, Store
from bayplan.apiserver.storage.stored_objects import Entry, encode
from bayplan.apiserver.validation.field_errors import Faults
from bayplan.apiserver.writes.create_templates import Moulds
from bayplan.apiserver.writes.deletion import DeleteOptions, gone_status, shows_deleted
from bayplan.apiserver.writes.metadata import settle_name, timestamp
from bayplan.apiserver.writes.status_templates import StateMoulds
from bayplan.apiserver.writes.writer import Writer, Written
from bayplan.clock import Clock

Body = Callable[[], Awaitable[bytes]]
_PATCHES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY)
_LONGEST_WATCH_S = (1800.0, 3600.0)


@dataclass(slots=True)
class Endpoints:
    """The verbs of one cluster."""

    store: Store
    writer: Writer
    clock: Clock
    chance: random.Random
    parts: Parts
    moulds: Moulds
    states: StateMoulds

    async def answer(self, ask: Ask, body: Body) -> Reply | Stream:
        special = is_special(ask)
        match ask.verb:
            case "get":
                return self.parts.answer(ask, b"") if special else self._get(ask)
            case "list" if not special:
                return self._list(ask)
            case "watch" if not special:
                return self._watch(ask)
        content = await body()
        try:
            return self._write(ask, content)
        finally:  # a refusal too may rest on writes that are not committed
            await self._committed()

    def _write(self, ask: Ask, content: bytes) -> Reply:
        if is_special(ask):
            return self.parts.answer(ask, content)
        match ask.verb:
            case "create":
                return self._create(ask, content)
            case "update":
                return self._update(ask, content)
            case "patch":
                return self._patch(ask, content)
            case "delete":
                return self._delete(ask, content)
        return self._delete_all(ask, content)

    async def _committed(self) -> None:
        try:
            await self.store.settled()
        except CommitError as failure:
            raise api_errors.not_committed(str(failure)) from None

    # Reading.

    def _reader(self, ask: Ask) -> Reader:
        return Reader(ask.resource, self.store.place(ask.resource.storage))

    def _get(self, ask: Ask) -> Reply:
        not_ahead(asked_version(ask.query), self.store.version)  # there is one state, the last committed
        entry = self._reader(ask).get(ask.namespace, ask.name)
        return self._shown(ask, version_conversion.whole(ask.resource, entry))

    def _list(self, ask: Ask) -> Reply:
        reader = self._reader(ask)
        entries, metadata = reader.page(ask.namespace, ListOptions.of(ask.query), self.store.version)
        return Reply(self._listed(ask, reader, entries, metadata))

    def _listed(self, ask: Ask, reader: Reader, entries: list[Entry], metadata: Tree) -> bytes:
        shaped = self._show(ask).many(entries, metadata)
        return reader.list_text(entries, metadata) if shaped is None else shaped + b"\n"

    def _watch(self, ask: Ask) -> Stream:
        options = ListOptions.of(ask.query)
        reader = self._reader(ask)
        form, key = self._show(ask).watch_form()
        watch = Watch(self.store.place(ask.resource.storage), form, reader.select(ask.namespace, options), key)
        current = self.store.version
        initial = options.initial_events if options.initial_events is not None else not options.version
        watch.start(options.version or 0, current=current, initial=initial)
        if options.initial_events and options.bookmarks:
            watch.end_initial(current)
        timeout = float(options.timeout_s) if options.timeout_s else self.chance.uniform(*_LONGEST_WATCH_S)
        return Stream(watch, timeout, options.bookmarks)

    # Writing.

    def _writing(self, ask: Ask, kind: str) -> Writing:
        options = WriteOptions.of(kind, ask.query)
        return Writing(ask.resource, ask.namespace, ask.user, options, ask.manager, ask.path.subresource)

    def _create(self, ask: Ask, content: bytes) -> Reply:
        sought = self.moulds.sought(ask, content)
        if sought is not None and (cast := self.moulds.cast(ask, sought)) is not None:
            return self._written(ask, cast, [])
        write = self._writing(ask, "CreateOptions")
        read = self._read(ask, content, write)
        written = self.writer.create(write, read.object)
        if sought is not None and not write.warnings:
            self.moulds.learn(ask, sought, written)
        return self._written(ask, written, write.warnings)

    def _update(self, ask: Ask, content: bytes) -> Reply:
        write = self._writing(ask, "UpdateOptions")
        read = self._read(ask, content, write)
        written = self.writer.replace(write, ask.name, read.object)
        return self._written(ask, written, write.warnings)

    def _read(self, ask: Ask, content: bytes, write: Writing) -> Decoded:
        sub = ask.resource.subresource(ask.path.subresource) if ask.path.subresource else None
        validation = write.options.validation
        read = read_body(ask.resource, content, ask.headers.get("Content-Type", ""), validation, sub)
        write.warnings.extend(read.warnings)
        return read

    def _patch(self, ask: Ask, content: bytes) -> Reply:
        sought = self.states.reported(ask, content)
        if sought is not None and (cast := self.states.cast(ask, sought)) is not None:
            return self._written(ask, cast, [])
        write = self._writing(ask, "PatchOptions")
        media = media_type(ask.headers.get("Content-Type", ""))
        if media not in _PATCHES:
            raise api_errors.no_such_patch(ask.resource)
        if media == APPLY:
            return self._apply(ask, write, content)
        if write.options.force is not None:
            faults = Faults()
            faults.forbidden("force", "may not be specified for non-apply patch")
            raise invalid_options("PatchOptions", faults)

        def revision(live: Tree) -> Tree:
            read = read_patch(ask.resource, live, content, media, write.options.validation)
            write.warnings.extend(read.warnings)
            return read.object

        written = self.writer.revise(write, ask.name, revision)
        if sought is not None and not write.warnings:
            self.states.learn(sought, written)
        return self._written(ask, written, write.warnings)

    def _apply(self, ask: Ask, write: Writing, content: bytes) -> Reply:
        """Server-side apply: what is not there is created."""
        options = write.options
        if not options.manager:
            faults = Faults()
            faults.required("fieldManager", "is required for apply patch")
            raise invalid_options("PatchOptions", faults)
        read = read_applied(ask.resource, content, options.validation)
        write.warnings.extend(read.warnings)
        applied = read.object
        write = replace(write, tracked=True)
        known = self.store.uncommitted(ask.resource.storage).get(ask.namespace, ask.name)
        if known is not None:
            written = self.writer.revise(write, ask.name, lambda live: self._applied(ask, write, live, applied))
        else:
            tree = self._applied(ask, write, None, applied)
            tree["metadata"].pop("resourceVersion", None)  # of an object that was there once
            if given := tree["metadata"].get("uid"):
                why = f"uid mismatch: the provided object specified uid {given}, and no existing object was found"
                raise api_errors.conflict(ask.resource, ask.name, why)
            if ask.resource.custom:
                tree["metadata"].setdefault("name", ask.name)
            settle_name(tree, ask.name)
            written = self.writer.create(write, tree)
        return self._written(ask, written, write.warnings)

    def _applied(self, ask: Ask, write: Writing, live: Tree | None, applied: Tree) -> Tree:
        tree = apply(
            live,
            applied,
            manager=write.options.manager,
            force=bool(write.options.force),
            api_version=ask.resource.api_version,
            type=managed_type(ask.resource),
            now=timestamp(self.clock.now()),
            subresource=write.subresource,
            convert=converter(ask.resource),
        )
        return reread(ask.resource, tree)

    def _delete(self, ask: Ask, content: bytes) -> Reply:
        options = DeleteOptions.of_request(content, ask.query)
        write = Writing(ask.resource, ask.namespace, ask.user, WriteOptions(dry_run=options.dry_run), ask.manager)
        written = self.writer.delete(write, ask.name, options)
        if written.removed and not shows_deleted(ask.resource):
            return Reply(encode(gone_status(ask.resource, written.tree)) + b"\n")
        return self._shown(ask, written.text)

    def _delete_all(self, ask: Ask, content: bytes) -> Reply:
        options = DeleteOptions.of_request(content, ask.query)
        reader = Reader(ask.resource, self.store.uncommitted(ask.resource.storage))
        entries, metadata = reader.page(ask.namespace, ListOptions.of(ask.query), self.store.newest)
        for entry in entries:
            write = Writing(ask.resource, entry.namespace, ask.user, WriteOptions(dry_run=options.dry_run), ask.manager)
            self.writer.delete(write, entry.name, options)
        return Reply(self._listed(ask, reader, entries, metadata))

    # Answering.

    def _written(self, ask: Ask, written: Written, warnings: list[str]) -> Reply:
        reply = self._shown(ask, written.text)
        reply.code = 201 if written.created else 200
        reply.warnings = warnings
        return reply

    def _shown(self, ask: Ask, text: bytes) -> Reply:
        whole = not wanted(ask.headers.get("Accept", "")).shape
        return Reply((text if whole else self._show(ask).one(text)) + b"\n")

    def _show(self, ask: Ask) -> Shown:
        form = wanted(ask.headers.get("Accept", ""))
        return Shown(ask.resource, form, self.clock.now, ask.query.get("includeObject", ""))
