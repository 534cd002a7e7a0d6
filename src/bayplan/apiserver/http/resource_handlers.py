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
from bayplan.apiserver.content_negotiation import negotiate_media_type
from bayplan.apiserver.http.output_shapes import OutputShape
from bayplan.apiserver.http.responses import ApiResponse, WatchResponse
from bayplan.apiserver.http.subresource_handlers import SubresourceHandlers, has_own_handler
from bayplan.apiserver.http.watch_stream import Watch
from bayplan.apiserver.requests import ResourceRequest, WriteOptions, WriteRequest
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.schema.body_decoding import (
    APPLY,
    converter,
    decode_apply_body,
    decode_body,
    decode_patch,
    decode_tree,
    managed_type,
    media_type,
)
from bayplan.apiserver.schema.decoder import DecodedObject
from bayplan.apiserver.schema.managed_fields.server_side_apply import apply
from bayplan.apiserver.schema.patches import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from bayplan.apiserver.storage import version_conversion
from bayplan.apiserver.storage.reader import (
    ListOptions,
    ResourceReader,
    check_not_future_version,
    invalid_options,
    requested_version,
)
from bayplan.apiserver.storage.store import CommitError, Store
from bayplan.apiserver.storage.stored_objects import StoredObject, encode
from bayplan.apiserver.validation.field_errors import FieldErrorList
from bayplan.apiserver.writes.create_templates import CreateTemplates
from bayplan.apiserver.writes.deletion import DeleteOptions, deleted_status, returns_deleted_object
from bayplan.apiserver.writes.metadata import set_name, timestamp
from bayplan.apiserver.writes.status_templates import StatusTemplates
from bayplan.apiserver.writes.writer import ObjectWriter, WriteResult
from bayplan.clock import Clock

BodyReader = Callable[[], Awaitable[bytes]]
_PATCHES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY)
_WATCH_TIMEOUT_RANGE_S = (1800.0, 3600.0)


@dataclass(slots=True)
class ResourceHandlers:
    """The verbs of one cluster."""

    store: Store
    writer: ObjectWriter
    clock: Clock
    chance: random.Random
    subresource_handlers: SubresourceHandlers
    create_templates: CreateTemplates
    status_templates: StatusTemplates

    async def handle(self, ask: ResourceRequest, body: BodyReader) -> ApiResponse | WatchResponse:
        special = has_own_handler(ask)
        match ask.verb:
            case "get":
                return self.subresource_handlers.handle(ask, b"") if special else self._get(ask)
            case "list" if not special:
                return self._list(ask)
            case "watch" if not special:
                return self._watch(ask)
        content = await body()
        try:
            return self._write(ask, content)
        finally:  # a refusal too may rest on writes that are not committed
            await self._wait_committed()

    def _write(self, ask: ResourceRequest, content: bytes) -> ApiResponse:
        if has_own_handler(ask):
            return self.subresource_handlers.handle(ask, content)
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

    async def _wait_committed(self) -> None:
        try:
            await self.store.wait_committed()
        except CommitError as failure:
            raise api_errors.not_committed(str(failure)) from None

    # Reading.

    def _reader(self, ask: ResourceRequest) -> ResourceReader:
        return ResourceReader(ask.resource, self.store.committed(ask.resource.storage))

    def _get(self, ask: ResourceRequest) -> ApiResponse:
        check_not_future_version(
            requested_version(ask.query), self.store.version
        )  # there is one state, the last committed
        entry = self._reader(ask).get(ask.namespace, ask.name)
        return self._object_response(ask, version_conversion.to_json(ask.resource, entry))

    def _list(self, ask: ResourceRequest) -> ApiResponse:
        reader = self._reader(ask)
        entries, metadata = reader.page(ask.namespace, ListOptions.of(ask.query), self.store.version)
        return ApiResponse(self._list_body(ask, reader, entries, metadata))

    def _list_body(
        self, ask: ResourceRequest, reader: ResourceReader, entries: list[StoredObject], metadata: Tree
    ) -> bytes:
        shaped = self._output_shape(ask).render_list(entries, metadata)
        return reader.list_json(entries, metadata) if shaped is None else shaped + b"\n"

    def _watch(self, ask: ResourceRequest) -> WatchResponse:
        options = ListOptions.of(ask.query)
        reader = self._reader(ask)
        form, key = self._output_shape(ask).watch_format()
        watch = Watch(self.store.committed(ask.resource.storage), form, reader.select(ask.namespace, options), key)
        current = self.store.version
        initial = options.initial_events if options.initial_events is not None else not options.version
        watch.start(options.version or 0, current=current, initial=initial)
        if options.initial_events and options.bookmarks:
            watch.queue_initial_events_end(current)
        timeout = float(options.timeout_s) if options.timeout_s else self.chance.uniform(*_WATCH_TIMEOUT_RANGE_S)
        return WatchResponse(watch, timeout, options.bookmarks)

    # Writing.

    def _write_request(self, ask: ResourceRequest, kind: str) -> WriteRequest:
        options = WriteOptions.of(kind, ask.query)
        return WriteRequest(ask.resource, ask.namespace, ask.user, options, ask.manager, ask.path.subresource)

    def _create(self, ask: ResourceRequest, content: bytes) -> ApiResponse:
        sought = self.create_templates.parse(ask, content)
        if sought is not None and (cast := self.create_templates.create(ask, sought)) is not None:
            return self._write_response(ask, cast, [])
        write = self._write_request(ask, "CreateOptions")
        read = self._read(ask, content, write)
        written = self.writer.create(write, read.object)
        if sought is not None and not write.warnings:
            self.create_templates.learn(ask, sought, written)
        return self._write_response(ask, written, write.warnings)

    def _update(self, ask: ResourceRequest, content: bytes) -> ApiResponse:
        write = self._write_request(ask, "UpdateOptions")
        read = self._read(ask, content, write)
        written = self.writer.replace(write, ask.name, read.object)
        return self._write_response(ask, written, write.warnings)

    def _read(self, ask: ResourceRequest, content: bytes, write: WriteRequest) -> DecodedObject:
        sub = ask.resource.subresource(ask.path.subresource) if ask.path.subresource else None
        validation = write.options.validation
        read = decode_body(ask.resource, content, ask.headers.get("Content-Type", ""), validation, sub)
        write.warnings.extend(read.warnings)
        return read

    def _patch(self, ask: ResourceRequest, content: bytes) -> ApiResponse:
        sought = self.status_templates.parse_status_patch(ask, content)
        if sought is not None and (cast := self.status_templates.apply(ask, sought)) is not None:
            return self._write_response(ask, cast, [])
        write = self._write_request(ask, "PatchOptions")
        media = media_type(ask.headers.get("Content-Type", ""))
        if media not in _PATCHES:
            raise api_errors.unsupported_patch_type(ask.resource)
        if media == APPLY:
            return self._apply(ask, write, content)
        if write.options.force is not None:
            faults = FieldErrorList()
            faults.forbidden("force", "may not be specified for non-apply patch")
            raise invalid_options("PatchOptions", faults)

        def revision(live: Tree) -> Tree:
            read = decode_patch(ask.resource, live, content, media, write.options.validation)
            write.warnings.extend(read.warnings)
            return read.object

        written = self.writer.update(write, ask.name, revision)
        if sought is not None and not write.warnings:
            self.status_templates.learn(sought, written)
        return self._write_response(ask, written, write.warnings)

    def _apply(self, ask: ResourceRequest, write: WriteRequest, content: bytes) -> ApiResponse:
        """Server-side apply: what is not there is created."""
        options = write.options
        if not options.manager:
            faults = FieldErrorList()
            faults.required("fieldManager", "is required for apply patch")
            raise invalid_options("PatchOptions", faults)
        read = decode_apply_body(ask.resource, content, options.validation)
        write.warnings.extend(read.warnings)
        applied = read.object
        write = replace(write, fields_tracked=True)
        known = self.store.uncommitted(ask.resource.storage).get(ask.namespace, ask.name)
        if known is not None:
            written = self.writer.update(write, ask.name, lambda live: self._apply_tree(ask, write, live, applied))
        else:
            tree = self._apply_tree(ask, write, None, applied)
            tree["metadata"].pop("resourceVersion", None)  # of an object that was there once
            if given := tree["metadata"].get("uid"):
                why = f"uid mismatch: the provided object specified uid {given}, and no existing object was found"
                raise api_errors.conflict(ask.resource, ask.name, why)
            if ask.resource.custom:
                tree["metadata"].setdefault("name", ask.name)
            set_name(tree, ask.name)
            written = self.writer.create(write, tree)
        return self._write_response(ask, written, write.warnings)

    def _apply_tree(self, ask: ResourceRequest, write: WriteRequest, live: Tree | None, applied: Tree) -> Tree:
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
        return decode_tree(ask.resource, tree)

    def _delete(self, ask: ResourceRequest, content: bytes) -> ApiResponse:
        options = DeleteOptions.of_request(content, ask.query)
        write = WriteRequest(ask.resource, ask.namespace, ask.user, WriteOptions(dry_run=options.dry_run), ask.manager)
        written = self.writer.delete(write, ask.name, options)
        if written.removed and not returns_deleted_object(ask.resource):
            return ApiResponse(encode(deleted_status(ask.resource, written.tree)) + b"\n")
        return self._object_response(ask, written.text)

    def _delete_all(self, ask: ResourceRequest, content: bytes) -> ApiResponse:
        options = DeleteOptions.of_request(content, ask.query)
        reader = ResourceReader(ask.resource, self.store.uncommitted(ask.resource.storage))
        entries, metadata = reader.page(ask.namespace, ListOptions.of(ask.query), self.store.newest_version)
        for entry in entries:
            write = WriteRequest(
                ask.resource, entry.namespace, ask.user, WriteOptions(dry_run=options.dry_run), ask.manager
            )
            self.writer.delete(write, entry.name, options)
        return ApiResponse(self._list_body(ask, reader, entries, metadata))

    # Answering.

    def _write_response(self, ask: ResourceRequest, written: WriteResult, warnings: list[str]) -> ApiResponse:
        reply = self._object_response(ask, written.text)
        reply.code = 201 if written.created else 200
        reply.warnings = warnings
        return reply

    def _object_response(self, ask: ResourceRequest, text: bytes) -> ApiResponse:
        whole = not negotiate_media_type(ask.headers.get("Accept", "")).shape
        return ApiResponse((text if whole else self._output_shape(ask).render_object(text)) + b"\n")

    def _output_shape(self, ask: ResourceRequest) -> OutputShape:
        form = negotiate_media_type(ask.headers.get("Accept", ""))
        return OutputShape(ask.resource, form, self.clock.now, ask.query.get("includeObject", ""))
