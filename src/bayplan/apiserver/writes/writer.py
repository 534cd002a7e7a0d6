"""Object writer: creates, updates and deletes objects, and returns what the response shows.

An update gets an `UpdateFunction` that makes the new state from the current one. Reading, deciding and writing happen
without awaiting, so nothing changes between them; requests wait for the commit afterwards. The writer works on the
uncommitted objects, so a write sees all earlier writes. Cost: decoding the old state, the write pipeline, and encoding
the new state.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.apiserver import api_errors
from bayplan.apiserver.requests import WriteRequest
from bayplan.apiserver.resources.autoscaler_conversion import is_v1_autoscaler, to_v1, to_v2
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.resources.lookup import built_in
from bayplan.apiserver.storage import version_conversion
from bayplan.apiserver.storage.store import ResourceObjects, Store
from bayplan.apiserver.storage.stored_objects import StoredObject, encode
from bayplan.apiserver.writes.deletion import DeleteOptions, begin_deletion, can_remove
from bayplan.apiserver.writes.metadata import (
    check_has_name,
    generate_name,
    prepare_create_metadata,
    prepare_update_metadata,
    set_name,
    set_namespace,
)
from bayplan.apiserver.writes.write_pipeline import WritePipeline
from bayplan.clock import Clock
from bayplan.codec.field_errors import FieldErrorList

_ALLOW_CREATE_ON_UPDATE = frozenset(
    {
        *(("", plural) for plural in ("endpoints", "events", "limitranges", "services")),
        ("coordination.k8s.io", "leases"),
        ("node.k8s.io", "runtimeclasses"),
        *(
            ("rbac.authorization.k8s.io", plural)
            for plural in ("clusterrolebindings", "clusterroles", "rolebindings", "roles")
        ),
    }
)
_REQUIRE_VERSION_ON_UPDATE = frozenset(
    {
        ("coordination.k8s.io", "leases"),
        ("node.k8s.io", "runtimeclasses"),
        ("policy", "poddisruptionbudgets"),
        *(
            ("storage.k8s.io", plural)
            for plural in ("csidrivers", "csinodes", "csistoragecapacities", "volumeattachments")
        ),
    }
)
"""Kinds whose replacement requires a resourceVersion."""
_IMMUTABLE = ("uid", "deletionTimestamp", "deletionGracePeriodSeconds")
_GENERATE_NAME_TRIES = 8

UpdateFunction = Callable[[Tree], Tree]
"""Returns the new state of an object. It may change its argument, the current state."""


class WriteResult(msgspec.Struct, frozen=True):
    """The result of a write. `text` is the object in the response."""

    text: bytes
    tree: Tree
    created: bool = False
    removed: bool = False
    entry: StoredObject | None = None


class ObjectWriter:
    def __init__(self, store: Store, pipeline: WritePipeline, clock: Clock, chance: random.Random) -> None:
        self._store = store
        self._pipeline = pipeline
        self._clock = clock
        self._chance = chance

    # Create

    def create(self, write: WriteRequest, tree: Tree) -> WriteResult:
        try:
            return self._create(write, tree)
        except api_errors.StatusError as refusal:
            refusal.warnings = write.warnings
            raise

    def _create(self, write: WriteRequest, tree: Tree) -> WriteResult:
        if is_v1_autoscaler(write.resource):
            return self._write_as_storage_version(
                write, lambda storage_write: self.create(storage_write, to_v2(_with_metadata(tree)))
            )
        resource = write.resource
        set_namespace(resource, tree, write.namespace)
        metadata = tree["metadata"]
        had_version = bool(metadata.get("resourceVersion"))
        prepare_create_metadata(resource, tree, self._clock.now(), self._chance)
        check_has_name(resource, tree)
        objects = self._store.uncommitted_objects(resource.storage)
        if not metadata.get("name"):
            metadata["name"] = self._generate_free_name(objects, write.namespace, metadata["generateName"])
        self._pipeline.prepare_create(write, tree)
        if had_version and not write.options.dry_run:  # the store refuses it, and a dry run does not reach the store
            raise api_errors.internal_error("resourceVersion should not be set on objects to be created")
        if objects.get(write.namespace, metadata["name"]) is not None:
            raise api_errors.already_exists(resource, metadata["name"])
        return self._store_object(write, tree, created=True)

    def _generate_free_name(self, objects: ResourceObjects, namespace: str, base: str) -> str:
        """A generated name; unused if a few tries find one."""
        for _ in range(_GENERATE_NAME_TRIES):
            name = generate_name(base, self._chance)
            if objects.get(namespace, name) is None:
                break
        return name

    # Update

    def replace(self, write: WriteRequest, name: str, tree: Tree) -> WriteResult:
        """PUT: the new state is the body."""
        set_namespace(write.resource, tree, write.namespace)
        set_name(tree, name)
        objects = self._store.uncommitted_objects(write.resource.storage)
        known = objects.get(write.namespace, name)
        missing = known is None
        given = tree["metadata"].get("uid")
        if known is not None and given and given != known.uid:
            raise api_errors.uid_conflict(write.resource, write.namespace, name, requested=given, found=known.uid)
        if missing and write.resource.storage in _ALLOW_CREATE_ON_UPDATE and not write.subresource:
            tree["metadata"].pop("resourceVersion", None)
            return self.create(write, tree)
        return self.update(write, name, lambda _: tree, is_replace=True)

    def update(
        self, write: WriteRequest, name: str, update_function: UpdateFunction, *, is_replace: bool = False
    ) -> WriteResult:
        """Every other update. `is_replace`: the new state names the resourceVersion it is based on."""
        try:
            return self._update(write, name, update_function, is_replace=is_replace)
        except api_errors.StatusError as refusal:
            refusal.warnings = write.warnings
            raise

    def _update(
        self, write: WriteRequest, name: str, update_function: UpdateFunction, *, is_replace: bool
    ) -> WriteResult:
        if is_v1_autoscaler(write.resource):

            def update_as_v1(live: Tree) -> Tree:
                return to_v2(_with_metadata(update_function(to_v1(live))))

            return self._write_as_storage_version(
                write, lambda storage_write: self.update(storage_write, name, update_as_v1, is_replace=is_replace)
            )
        resource = write.resource
        objects = self._store.uncommitted_objects(resource.storage)
        entry = objects.get(write.namespace, name)
        if entry is None:
            raise api_errors.not_found(resource, name)
        old = version_conversion.to_tree(resource, entry)
        if write.subresource == "status" and not resource.custom:
            # All fields but the status are restored, so the new state may share parts of the old one.
            tree = update_function({**old, "metadata": {**old["metadata"]}})
        else:
            tree = update_function(version_conversion.to_tree(resource, entry))
        set_namespace(resource, tree, write.namespace)
        set_name(tree, name)
        self._check_version(resource, tree["metadata"], entry, is_replace=is_replace)
        if resource.custom and write.subresource == "status":
            for key in _IMMUTABLE:  # the object of such a status is not checked, as in Kubernetes
                tree["metadata"].pop(key, None)
        prepare_update_metadata(resource, tree, old)
        self._pipeline.prepare_update(write, tree, old)
        if self._is_no_op(tree, old):
            return WriteResult(version_conversion.to_json(resource, entry), old, entry=entry)
        if can_remove(resource, tree):
            return self._remove(write, entry, tree)
        return self._store_object(write, tree)

    def update_unchecked(self, write: WriteRequest, name: str, update_function: UpdateFunction) -> WriteResult:
        """An update by the server itself, without validation and managed fields: bindings, evictions.

        The function must not change its argument, because the result is compared with it.
        """
        resource = write.resource
        objects = self._store.uncommitted_objects(resource.storage)
        entry = objects.get(write.namespace, name)
        if entry is None:
            raise api_errors.not_found(resource, name)
        live = version_conversion.to_tree(resource, entry)
        tree = update_function(live)
        if tree == live:
            return WriteResult(version_conversion.to_json(resource, entry), tree, entry=entry)
        return self._store_object(write, {**tree, "metadata": dict(tree["metadata"])})

    def _check_version(
        self, resource: ServedResource, metadata: Tree, entry: StoredObject, *, is_replace: bool
    ) -> None:
        given = metadata.get("resourceVersion") or ""
        if given and given != str(entry.version):
            raise api_errors.version_conflict(resource, entry.name)
        if not given and is_replace and (resource.custom or resource.storage in _REQUIRE_VERSION_ON_UPDATE):
            errors = FieldErrorList()
            errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise api_errors.invalid(resource.plural, resource.group, entry.name, errors)
        metadata["resourceVersion"] = str(entry.version)

    def _is_no_op(self, tree: Tree, old: Tree) -> bool:
        """Whether an update changes nothing, apart from the times in the managed fields."""
        fields, known = tree["metadata"].get("managedFields"), old["metadata"].get("managedFields")
        return _without_fields(tree) == _without_fields(old) and _without_times(fields) == _without_times(known)

    # Delete

    def delete(self, write: WriteRequest, name: str, options: DeleteOptions) -> WriteResult:
        if is_v1_autoscaler(write.resource):
            return self._write_as_storage_version(
                write, lambda storage_write: self.delete(storage_write, name, options)
            )
        resource = write.resource
        objects = self._store.uncommitted_objects(resource.storage)
        entry = objects.get(write.namespace, name)
        if entry is None:
            raise api_errors.not_found(resource, name)
        tree = version_conversion.to_tree(resource, entry)
        options.check(resource, tree)
        self._pipeline.check_delete(write, tree)
        outcome, write_mark = begin_deletion(resource, tree, options, self._clock.now())
        if outcome == "unchanged":
            return WriteResult(version_conversion.to_json(resource, entry), tree, entry=entry)
        if outcome == "marked":
            return self._store_object(write, tree)
        if write_mark and not write.options.dry_run:
            entry = self._store.put(resource.storage, version_conversion.to_storage_version(resource, tree))
        return self._remove(write, entry, version_conversion.to_tree(resource, entry))

    # Store

    def _write_as_storage_version(
        self, write: WriteRequest, work: Callable[[WriteRequest], WriteResult]
    ) -> WriteResult:
        """A write in an older version: done in the storage version, returned in the older one."""
        storage_resource = built_in(write.resource.kind, write.resource.group)
        written = work(replace(write, resource=storage_resource, request_version=write.resource))
        tree = to_v1(written.tree)
        return replace(written, tree=tree, text=encode(tree))

    def _store_object(self, write: WriteRequest, tree: Tree, *, created: bool = False) -> WriteResult:
        if write.options.dry_run:
            return WriteResult(encode(tree), tree, created=created)
        entry = self._store.put(write.resource.storage, version_conversion.to_storage_version(write.resource, tree))
        return WriteResult(version_conversion.to_json(write.resource, entry), tree, created=created, entry=entry)

    def _remove(self, write: WriteRequest, entry: StoredObject, tree: Tree) -> WriteResult:
        if write.options.dry_run:
            return WriteResult(encode(tree), tree, removed=True)
        last = self._store.delete(write.resource.storage, entry)
        shown = {**tree, "metadata": {**tree["metadata"], "resourceVersion": str(last.version)}}
        return WriteResult(encode(shown), shown, removed=True, entry=last)


def _with_metadata(tree: Tree) -> Tree:
    return tree if "metadata" in tree else {**tree, "metadata": {}}


def _without_fields(tree: Tree) -> Tree:
    metadata = {key: value for key, value in tree["metadata"].items() if key != "managedFields"}
    return {**tree, "metadata": metadata}


def _without_times(fields: list[Tree] | None) -> list[dict[str, Any]]:
    return [{key: value for key, value in each.items() if key != "time"} for each in fields or ()]
