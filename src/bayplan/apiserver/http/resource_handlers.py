"""Handlers of requests for objects: one method for each verb.

`HandlerChain` calls them; readers, watches and writers do the work. Reads use committed objects and never wait for a
commit. A write is answered after its commit. Cost: that of the work. A body is read before any decision; nothing is
awaited between reading the store and writing it.
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
from bayplan.apiserver.writes.create_templates import CreateTemplates
from bayplan.apiserver.writes.deletion import DeleteOptions, deleted_status, returns_deleted_object
from bayplan.apiserver.writes.metadata import set_name, timestamp
from bayplan.apiserver.writes.status_templates import StatusTemplates
from bayplan.apiserver.writes.writer import ObjectWriter, WriteResult
from bayplan.clock import Clock
from bayplan.codec.field_errors import FieldErrorList

BodyReader = Callable[[], Awaitable[bytes]]
_PATCHES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY)
_WATCH_TIMEOUT_RANGE_S = (1800.0, 3600.0)


@dataclass(slots=True)
class ResourceHandlers:
    store: Store
    writer: ObjectWriter
    clock: Clock
    chance: random.Random
    subresource_handlers: SubresourceHandlers
    create_templates: CreateTemplates
    status_templates: StatusTemplates

    async def handle(self, request: ResourceRequest, body: BodyReader) -> ApiResponse | WatchResponse:
        own_handler = has_own_handler(request)
        match request.verb:
            case "get":
                return self.subresource_handlers.handle(request, b"") if own_handler else self._get(request)
            case "list" if not own_handler:
                return self._list(request)
            case "watch" if not own_handler:
                return self._watch(request)
        content = await body()
        try:
            return self._write(request, content)
        finally:  # a refusal, too, may depend on uncommitted writes
            await self._wait_committed()

    def _write(self, request: ResourceRequest, content: bytes) -> ApiResponse:
        if has_own_handler(request):
            return self.subresource_handlers.handle(request, content)
        match request.verb:
            case "create":
                return self._create(request, content)
            case "update":
                return self._update(request, content)
            case "patch":
                return self._patch(request, content)
            case "delete":
                return self._delete(request, content)
        return self._delete_all(request, content)

    async def _wait_committed(self) -> None:
        try:
            await self.store.wait_committed()
        except CommitError as failure:
            raise api_errors.not_committed(str(failure)) from None

    # Reads

    def _reader(self, request: ResourceRequest) -> ResourceReader:
        return ResourceReader(request.resource, self.store.committed_objects(request.resource.storage))

    def _get(self, request: ResourceRequest) -> ApiResponse:
        # only the last committed state exists
        check_not_future_version(requested_version(request.query), self.store.version)
        entry = self._reader(request).get(request.namespace, request.name)
        return self._object_response(request, version_conversion.to_json(request.resource, entry))

    def _list(self, request: ResourceRequest) -> ApiResponse:
        reader = self._reader(request)
        entries, metadata = reader.page(request.namespace, ListOptions.of(request.query), self.store.version)
        return ApiResponse(self._list_body(request, reader, entries, metadata))

    def _list_body(
        self, request: ResourceRequest, reader: ResourceReader, entries: list[StoredObject], metadata: Tree
    ) -> bytes:
        shaped = self._output_shape(request).render_list(entries, metadata)
        return reader.list_json(entries, metadata) if shaped is None else shaped + b"\n"

    def _watch(self, request: ResourceRequest) -> WatchResponse:
        options = ListOptions.of(request.query)
        reader = self._reader(request)
        watch_format, key = self._output_shape(request).watch_format()
        watch = Watch(
            self.store.committed_objects(request.resource.storage),
            watch_format,
            reader.select(request.namespace, options),
            key,
        )
        current = self.store.version
        initial = options.initial_events if options.initial_events is not None else not options.version
        watch.start(options.version or 0, current=current, initial=initial)
        if options.initial_events and options.bookmarks:
            watch.queue_initial_events_end(current)
        timeout_s = float(options.timeout_s) if options.timeout_s else self.chance.uniform(*_WATCH_TIMEOUT_RANGE_S)
        return WatchResponse(watch, timeout_s, options.bookmarks)

    # Writes

    def _write_request(self, request: ResourceRequest, kind: str) -> WriteRequest:
        options = WriteOptions.of(kind, request.query)
        return WriteRequest(
            request.resource, request.namespace, request.user, options, request.manager, request.path.subresource
        )

    def _create(self, request: ResourceRequest, content: bytes) -> ApiResponse:
        parsed = self.create_templates.parse(request, content)
        if parsed is not None and (written := self.create_templates.create(request, parsed)) is not None:
            return self._write_response(request, written, [])
        write = self._write_request(request, "CreateOptions")
        decoded = self._read(request, content, write)
        written = self.writer.create(write, decoded.object)
        if parsed is not None and not write.warnings:
            self.create_templates.learn(request, parsed, written)
        return self._write_response(request, written, write.warnings)

    def _update(self, request: ResourceRequest, content: bytes) -> ApiResponse:
        write = self._write_request(request, "UpdateOptions")
        decoded = self._read(request, content, write)
        written = self.writer.replace(write, request.name, decoded.object)
        return self._write_response(request, written, write.warnings)

    def _read(self, request: ResourceRequest, content: bytes, write: WriteRequest) -> DecodedObject:
        sub = request.resource.subresource(request.path.subresource) if request.path.subresource else None
        validation = write.options.validation
        decoded = decode_body(request.resource, content, request.headers.get("Content-Type", ""), validation, sub)
        write.warnings.extend(decoded.warnings)
        return decoded

    def _patch(self, request: ResourceRequest, content: bytes) -> ApiResponse:
        parsed = self.status_templates.parse_status_patch(request, content)
        if parsed is not None and (written := self.status_templates.apply(request, parsed)) is not None:
            return self._write_response(request, written, [])
        write = self._write_request(request, "PatchOptions")
        media = media_type(request.headers.get("Content-Type", ""))
        if media not in _PATCHES:
            raise api_errors.unsupported_patch_type(request.resource)
        if media == APPLY:
            return self._apply(request, write, content)
        if write.options.force is not None:
            errors = FieldErrorList()
            errors.forbidden("force", "may not be specified for non-apply patch")
            raise invalid_options("PatchOptions", errors)

        def patch(live: Tree) -> Tree:
            decoded = decode_patch(request.resource, live, content, media, write.options.validation)
            write.warnings.extend(decoded.warnings)
            return decoded.object

        written = self.writer.update(write, request.name, patch)
        if parsed is not None and not write.warnings:
            self.status_templates.learn(parsed, written)
        return self._write_response(request, written, write.warnings)

    def _apply(self, request: ResourceRequest, write: WriteRequest, content: bytes) -> ApiResponse:
        """Server-side apply. Creates the object if it does not exist."""
        options = write.options
        if not options.manager:
            errors = FieldErrorList()
            errors.required("fieldManager", "is required for apply patch")
            raise invalid_options("PatchOptions", errors)
        decoded = decode_apply_body(request.resource, content, options.validation)
        write.warnings.extend(decoded.warnings)
        applied = decoded.object
        write = replace(write, fields_tracked=True)
        current = self.store.uncommitted_objects(request.resource.storage).get(request.namespace, request.name)
        if current is not None:
            written = self.writer.update(
                write, request.name, lambda live: self._apply_tree(request, write, live, applied)
            )
        else:
            tree = self._apply_tree(request, write, None, applied)
            tree["metadata"].pop("resourceVersion", None)  # of an earlier object with this name
            if uid := tree["metadata"].get("uid"):
                message = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise api_errors.conflict(request.resource, request.name, message)
            if request.resource.custom:
                tree["metadata"].setdefault("name", request.name)
            set_name(tree, request.name)
            written = self.writer.create(write, tree)
        return self._write_response(request, written, write.warnings)

    def _apply_tree(self, request: ResourceRequest, write: WriteRequest, live: Tree | None, applied: Tree) -> Tree:
        tree = apply(
            live,
            applied,
            manager=write.options.manager,
            force=bool(write.options.force),
            api_version=request.resource.api_version,
            type=managed_type(request.resource),
            now=timestamp(self.clock.now()),
            subresource=write.subresource,
            convert=converter(request.resource),
        )
        return decode_tree(request.resource, tree)

    def _delete(self, request: ResourceRequest, content: bytes) -> ApiResponse:
        options = DeleteOptions.of_request(content, request.query)
        write = WriteRequest(
            request.resource, request.namespace, request.user, WriteOptions(dry_run=options.dry_run), request.manager
        )
        written = self.writer.delete(write, request.name, options)
        if written.removed and not returns_deleted_object(request.resource):
            return ApiResponse(encode(deleted_status(request.resource, written.tree)) + b"\n")
        return self._object_response(request, written.text)

    def _delete_all(self, request: ResourceRequest, content: bytes) -> ApiResponse:
        options = DeleteOptions.of_request(content, request.query)
        reader = ResourceReader(request.resource, self.store.uncommitted_objects(request.resource.storage))
        entries, metadata = reader.page(request.namespace, ListOptions.of(request.query), self.store.newest_version)
        for entry in entries:
            write = WriteRequest(
                request.resource, entry.namespace, request.user, WriteOptions(dry_run=options.dry_run), request.manager
            )
            self.writer.delete(write, entry.name, options)
        return ApiResponse(self._list_body(request, reader, entries, metadata))

    # Responses

    def _write_response(self, request: ResourceRequest, written: WriteResult, warnings: list[str]) -> ApiResponse:
        response = self._object_response(request, written.text)
        response.code = 201 if written.created else 200
        response.warnings = warnings
        return response

    def _object_response(self, request: ResourceRequest, text: bytes) -> ApiResponse:
        is_whole = not negotiate_media_type(request.headers.get("Accept", "")).shape
        return ApiResponse((text if is_whole else self._output_shape(request).render_object(text)) + b"\n")

    def _output_shape(self, request: ResourceRequest) -> OutputShape:
        shape = negotiate_media_type(request.headers.get("Accept", ""))
        return OutputShape(request.resource, shape, self.clock.now, request.query.get("includeObject", ""))
