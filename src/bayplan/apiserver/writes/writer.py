"""What does a write do to an object, and what does its answer show?

Creates, updates of every kind (a `UpdateFunction` says what the new state is made of the old one) and deletions, each
from the object that was read to the one that is stored. All of it is plain code without awaiting, so what was read is
still true when the write happens; requests wait for the commit afterwards. It works on the uncommitted state of the
store, so that a write sees the ones before it. Cost: decoding the old state and encoding the new one, and the rules
between."""

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
from bayplan.apiserver.validation.field_errors import FieldErrorList
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
"""Kinds that are not replaced by somebody who does not say what he has seen."""
_IMMUTABLE = ("uid", "deletionTimestamp", "deletionGracePeriodSeconds")
_GENERATE_NAME_TRIES = 8

UpdateFunction = Callable[[Tree], Tree]
"""The new state of an object, made of the one that is there, which it may change."""


class WriteResult(msgspec.Struct, frozen=True):
    """What a write left. `text` is the object as the answer shows it."""

    text: bytes
    tree: Tree
    created: bool = False
    removed: bool = False
    entry: StoredObject | None = None


class ObjectWriter:
    """Writes objects of all kinds into one store."""

    def __init__(self, store: Store, rules: WritePipeline, clock: Clock, chance: random.Random) -> None:
        self._store = store
        self._rules = rules
        self._clock = clock
        self._chance = chance

    # Creating.

    def create(self, write: WriteRequest, tree: Tree) -> WriteResult:
        try:
            return self._create(write, tree)
        except api_errors.StatusError as refusal:
            refusal.warnings = write.warnings
            raise

    def _create(self, write: WriteRequest, tree: Tree) -> WriteResult:
        if is_v1_autoscaler(write.resource):
            return self._write_as_storage_version(write, lambda newer: self.create(newer, to_v2(_with_metadata(tree))))
        resource = write.resource
        set_namespace(resource, tree, write.namespace)
        metadata = tree["metadata"]
        had_version = bool(metadata.get("resourceVersion"))
        prepare_create_metadata(resource, tree, self._clock.now(), self._chance)
        check_has_name(resource, tree)
        place = self._store.uncommitted(resource.storage)
        if not metadata.get("name"):
            metadata["name"] = self._free_name(place, write.namespace, metadata["generateName"])
        self._rules.prepare_create(write, tree)
        if had_version and not write.options.dry_run:  # which only the store minds, and a dry run never comes there
            raise api_errors.internal_error("resourceVersion should not be set on objects to be created")
        if place.get(write.namespace, metadata["name"]) is not None:
            raise api_errors.already_exists(resource, metadata["name"])
        return self._store_object(write, tree, created=True)

    def _free_name(self, place: ResourceObjects, namespace: str, base: str) -> str:
        """A name made of its beginning, that nobody has if one can be had in a few tries."""
        for _ in range(_GENERATE_NAME_TRIES):
            name = generate_name(base, self._chance)
            if place.get(namespace, name) is None:
                break
        return name

    # Updating.

    def replace(self, write: WriteRequest, name: str, tree: Tree) -> WriteResult:
        """PUT: the new state is the one that was sent."""
        set_namespace(write.resource, tree, write.namespace)
        set_name(tree, name)
        place = self._store.uncommitted(write.resource.storage)
        known = place.get(write.namespace, name)
        missing = known is None
        given = tree["metadata"].get("uid")
        if known is not None and given and given != known.uid:
            raise api_errors.uid_conflict(write.resource, write.namespace, name, asked=given, found=known.uid)
        if missing and write.resource.storage in _ALLOW_CREATE_ON_UPDATE and not write.subresource:
            tree["metadata"].pop("resourceVersion", None)
            return self.create(write, tree)
        return self.update(write, name, lambda _: tree, whole=True)

    def update(self, write: WriteRequest, name: str, revision: UpdateFunction, *, whole: bool = False) -> WriteResult:
        """Any other change. `whole`: the new state says for itself which version it is based on."""
        try:
            return self._revise(write, name, revision, whole=whole)
        except api_errors.StatusError as refusal:
            refusal.warnings = write.warnings
            raise

    def _revise(self, write: WriteRequest, name: str, revision: UpdateFunction, *, whole: bool) -> WriteResult:
        if is_v1_autoscaler(write.resource):

            def newly(live: Tree) -> Tree:
                return to_v2(_with_metadata(revision(to_v1(live))))

            return self._write_as_storage_version(write, lambda newer: self.update(newer, name, newly, whole=whole))
        resource = write.resource
        place = self._store.uncommitted(resource.storage)
        entry = place.get(write.namespace, name)
        if entry is None:
            raise api_errors.not_found(resource, name)
        old = version_conversion.to_tree(resource, entry)
        if write.subresource == "status" and not resource.custom:
            # All but the status is put back as it was, so the new state may have the very parts of the old one.
            tree = revision({**old, "metadata": {**old["metadata"]}})
        else:
            tree = revision(version_conversion.to_tree(resource, entry))
        set_namespace(resource, tree, write.namespace)
        set_name(tree, name)
        self._check_version(resource, tree["metadata"], entry, whole=whole)
        if resource.custom and write.subresource == "status":
            for key in _IMMUTABLE:  # such a status is taken whoever it is said to be for, as by Kubernetes itself
                tree["metadata"].pop(key, None)
        prepare_update_metadata(resource, tree, old)
        self._rules.prepare_update(write, tree, old)
        if self._is_no_op(tree, old):
            return WriteResult(version_conversion.to_json(resource, entry), old, entry=entry)
        if can_remove(resource, tree):
            return self._remove(write, entry, tree)
        return self._store_object(write, tree)

    def update_unchecked(self, write: WriteRequest, name: str, revision: UpdateFunction) -> WriteResult:
        """A change by the server's own rules, which need no judging and leave no manager: bindings, evictions.

        The revision may not change what it is given, which is what its result is compared with.
        """
        resource = write.resource
        place = self._store.uncommitted(resource.storage)
        entry = place.get(write.namespace, name)
        if entry is None:
            raise api_errors.not_found(resource, name)
        live = version_conversion.to_tree(resource, entry)
        tree = revision(live)
        if tree == live:
            return WriteResult(version_conversion.to_json(resource, entry), tree, entry=entry)
        return self._store_object(write, {**tree, "metadata": dict(tree["metadata"])})

    def _check_version(self, resource: ServedResource, metadata: Tree, entry: StoredObject, *, whole: bool) -> None:
        given = metadata.get("resourceVersion") or ""
        if given and given != str(entry.version):
            raise api_errors.version_conflict(resource, entry.name)
        if not given and whole and (resource.custom or resource.storage in _REQUIRE_VERSION_ON_UPDATE):
            faults = FieldErrorList()
            faults.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise api_errors.invalid(resource.plural, resource.group, entry.name, faults)
        metadata["resourceVersion"] = str(entry.version)

    def _is_no_op(self, tree: Tree, old: Tree) -> bool:
        """Whether a write changes nothing; when its fields were touched last does not count."""
        fields, known = tree["metadata"].get("managedFields"), old["metadata"].get("managedFields")
        return _without_fields(tree) == _without_fields(old) and _without_times(fields) == _without_times(known)

    # Deleting.

    def delete(self, write: WriteRequest, name: str, options: DeleteOptions) -> WriteResult:
        if is_v1_autoscaler(write.resource):
            return self._write_as_storage_version(write, lambda newer: self.delete(newer, name, options))
        resource = write.resource
        place = self._store.uncommitted(resource.storage)
        entry = place.get(write.namespace, name)
        if entry is None:
            raise api_errors.not_found(resource, name)
        tree = version_conversion.to_tree(resource, entry)
        options.check(resource, tree)
        self._rules.check_delete(write, tree)
        outcome, told = begin_deletion(resource, tree, options, self._clock.now())
        if outcome == "unchanged":
            return WriteResult(version_conversion.to_json(resource, entry), tree, entry=entry)
        if outcome == "marked":
            return self._store_object(write, tree)
        if told and not write.options.dry_run:
            entry = self._store.put(resource.storage, version_conversion.to_storage_version(resource, tree))
        return self._remove(write, entry, version_conversion.to_tree(resource, entry))

    # The store.

    def _write_as_storage_version(
        self, write: WriteRequest, work: Callable[[WriteRequest], WriteResult]
    ) -> WriteResult:
        """A write in an old version: done in the one that is kept, shown in the old one."""
        kept = built_in(write.resource.kind, write.resource.group)
        written = work(replace(write, resource=kept, request_version=write.resource))
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
