"""What does a write do to an object, and what does its answer show?

Creates, updates of every kind (a `Revision` says what the new state is made of the old one) and deletions, each from
the object that was read to the one that is stored. All of it is plain code without awaiting, so what was read is still
true when the write happens; requests wait for the commit afterwards. It works on the uncommitted state of the store, so
that a write sees the ones before it.
Cost: decoding the old state and encoding the new one, and the rules between.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.apiserver import api_errors
from bayplan.apiserver.requests import Writing
from bayplan.apiserver.resources.autoscaler_conversion import is_old_autoscaler, to_new, to_old
from bayplan.apiserver.resources.kinds import Resource, Tree
from bayplan.apiserver.resources.lookup import built_in
from bayplan.apiserver.storage import version_conversion
from bayplan.apiserver.storage.store import Objects, Store
from bayplan.apiserver.storage.stored_objects import Entry, encode
from bayplan.apiserver.validation.field_errors import Faults
from bayplan.apiserver.writes.deletion import DeleteOptions, begin_deletion, may_go
from bayplan.apiserver.writes.metadata import (
    begin,
    generated,
    go_on,
    need_name,
    settle_name,
    settle_namespace,
)
from bayplan.apiserver.writes.write_pipeline import Rulebook
from bayplan.clock import Clock

_CREATED_BY_PUT = frozenset(
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
_NEED_VERSION = frozenset(
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
_NAMES_TRIED = 8

Revision = Callable[[Tree], Tree]
"""The new state of an object, made of the one that is there, which it may change."""


class Written(msgspec.Struct, frozen=True):
    """What a write left. `text` is the object as the answer shows it."""

    text: bytes
    tree: Tree
    created: bool = False
    removed: bool = False
    entry: Entry | None = None


class Writer:
    """Writes objects of all kinds into one store."""

    def __init__(self, store: Store, rules: Rulebook, clock: Clock, chance: random.Random) -> None:
        self._store = store
        self._rules = rules
        self._clock = clock
        self._chance = chance

    # Creating.

    def create(self, write: Writing, tree: Tree) -> Written:
        try:
            return self._create(write, tree)
        except api_errors.Refusal as refusal:
            refusal.warnings = write.warnings
            raise

    def _create(self, write: Writing, tree: Tree) -> Written:
        if is_old_autoscaler(write.resource):
            return self._as_new(write, lambda newer: self.create(newer, to_new(_named(tree))))
        resource = write.resource
        settle_namespace(resource, tree, write.namespace)
        metadata = tree["metadata"]
        had_version = bool(metadata.get("resourceVersion"))
        begin(resource, tree, self._clock.now(), self._chance)
        need_name(resource, tree)
        place = self._store.uncommitted(resource.storage)
        if not metadata.get("name"):
            metadata["name"] = self._free_name(place, write.namespace, metadata["generateName"])
        self._rules.created(write, tree)
        if had_version and not write.options.dry_run:  # which only the store minds, and a dry run never comes there
            raise api_errors.internal("resourceVersion should not be set on objects to be created")
        if place.get(write.namespace, metadata["name"]) is not None:
            raise api_errors.already_exists(resource, metadata["name"])
        return self._keep(write, tree, created=True)

    def _free_name(self, place: Objects, namespace: str, base: str) -> str:
        """A name made of its beginning, that nobody has if one can be had in a few tries."""
        for _ in range(_NAMES_TRIED):
            name = generated(base, self._chance)
            if place.get(namespace, name) is None:
                break
        return name

    # Updating.

    def replace(self, write: Writing, name: str, tree: Tree) -> Written:
        """PUT: the new state is the one that was sent."""
        settle_namespace(write.resource, tree, write.namespace)
        settle_name(tree, name)
        place = self._store.uncommitted(write.resource.storage)
        known = place.get(write.namespace, name)
        missing = known is None
        given = tree["metadata"].get("uid")
        if known is not None and given and given != known.uid:
            raise api_errors.other_uid(write.resource, write.namespace, name, asked=given, found=known.uid)
        if missing and write.resource.storage in _CREATED_BY_PUT and not write.subresource:
            tree["metadata"].pop("resourceVersion", None)
            return self.create(write, tree)
        return self.revise(write, name, lambda _: tree, whole=True)

    def revise(self, write: Writing, name: str, revision: Revision, *, whole: bool = False) -> Written:
        """Any other change. `whole`: the new state says for itself which version it is based on."""
        try:
            return self._revise(write, name, revision, whole=whole)
        except api_errors.Refusal as refusal:
            refusal.warnings = write.warnings
            raise

    def _revise(self, write: Writing, name: str, revision: Revision, *, whole: bool) -> Written:
        if is_old_autoscaler(write.resource):

            def newly(live: Tree) -> Tree:
                return to_new(_named(revision(to_old(live))))

            return self._as_new(write, lambda newer: self.revise(newer, name, newly, whole=whole))
        resource = write.resource
        place = self._store.uncommitted(resource.storage)
        entry = place.get(write.namespace, name)
        if entry is None:
            raise api_errors.not_found(resource, name)
        old = version_conversion.tree(resource, entry)
        if write.subresource == "status" and not resource.custom:
            # All but the status is put back as it was, so the new state may have the very parts of the old one.
            tree = revision({**old, "metadata": {**old["metadata"]}})
        else:
            tree = revision(version_conversion.tree(resource, entry))
        settle_namespace(resource, tree, write.namespace)
        settle_name(tree, name)
        self._check_version(resource, tree["metadata"], entry, whole=whole)
        if resource.custom and write.subresource == "status":
            for key in _IMMUTABLE:  # such a status is taken whoever it is said to be for, as by Kubernetes itself
                tree["metadata"].pop(key, None)
        go_on(resource, tree, old)
        self._rules.updated(write, tree, old)
        if self._same(tree, old):
            return Written(version_conversion.whole(resource, entry), old, entry=entry)
        if may_go(resource, tree):
            return self._remove(write, entry, tree)
        return self._keep(write, tree)

    def overwrite(self, write: Writing, name: str, revision: Revision) -> Written:
        """A change by the server's own rules, which need no judging and leave no manager: bindings, evictions.

        The revision may not change what it is given, which is what its result is compared with.
        """
        resource = write.resource
        place = self._store.uncommitted(resource.storage)
        entry = place.get(write.namespace, name)
        if entry is None:
            raise api_errors.not_found(resource, name)
        live = version_conversion.tree(resource, entry)
        tree = revision(live)
        if tree == live:
            return Written(version_conversion.whole(resource, entry), tree, entry=entry)
        return self._keep(write, {**tree, "metadata": dict(tree["metadata"])})

    def _check_version(self, resource: Resource, metadata: Tree, entry: Entry, *, whole: bool) -> None:
        given = metadata.get("resourceVersion") or ""
        if given and given != str(entry.version):
            raise api_errors.modified(resource, entry.name)
        if not given and whole and (resource.custom or resource.storage in _NEED_VERSION):
            faults = Faults()
            faults.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise api_errors.invalid(resource.plural, resource.group, entry.name, faults)
        metadata["resourceVersion"] = str(entry.version)

    def _same(self, tree: Tree, old: Tree) -> bool:
        """Whether a write changes nothing; when its fields were touched last does not count."""
        fields, known = tree["metadata"].get("managedFields"), old["metadata"].get("managedFields")
        return _without_fields(tree) == _without_fields(old) and _timeless(fields) == _timeless(known)

    # Deleting.

    def delete(self, write: Writing, name: str, options: DeleteOptions) -> Written:
        if is_old_autoscaler(write.resource):
            return self._as_new(write, lambda newer: self.delete(newer, name, options))
        resource = write.resource
        place = self._store.uncommitted(resource.storage)
        entry = place.get(write.namespace, name)
        if entry is None:
            raise api_errors.not_found(resource, name)
        tree = version_conversion.tree(resource, entry)
        options.check(resource, tree)
        self._rules.deleted(write, tree)
        outcome, told = begin_deletion(resource, tree, options, self._clock.now())
        if outcome == "unchanged":
            return Written(version_conversion.whole(resource, entry), tree, entry=entry)
        if outcome == "marked":
            return self._keep(write, tree)
        if told and not write.options.dry_run:
            entry = self._store.put(resource.storage, version_conversion.stored(resource, tree))
        return self._remove(write, entry, version_conversion.tree(resource, entry))

    # The store.

    def _as_new(self, write: Writing, work: Callable[[Writing], Written]) -> Written:
        """A write in an old version: done in the one that is kept, shown in the old one."""
        kept = built_in(write.resource.kind, write.resource.group)
        written = work(replace(write, resource=kept, sent_as=write.resource))
        tree = to_old(written.tree)
        return replace(written, tree=tree, text=encode(tree))

    def _keep(self, write: Writing, tree: Tree, *, created: bool = False) -> Written:
        if write.options.dry_run:
            return Written(encode(tree), tree, created=created)
        entry = self._store.put(write.resource.storage, version_conversion.stored(write.resource, tree))
        return Written(version_conversion.whole(write.resource, entry), tree, created=created, entry=entry)

    def _remove(self, write: Writing, entry: Entry, tree: Tree) -> Written:
        if write.options.dry_run:
            return Written(encode(tree), tree, removed=True)
        last = self._store.delete(write.resource.storage, entry)
        shown = {**tree, "metadata": {**tree["metadata"], "resourceVersion": str(last.version)}}
        return Written(encode(shown), shown, removed=True, entry=last)


def _named(tree: Tree) -> Tree:
    return tree if "metadata" in tree else {**tree, "metadata": {}}


def _without_fields(tree: Tree) -> Tree:
    metadata = {key: value for key, value in tree["metadata"].items() if key != "managedFields"}
    return {**tree, "metadata": metadata}


def _timeless(fields: list[Tree] | None) -> list[dict[str, Any]]:
    return [{key: value for key, value in each.items() if key != "time"} for each in fields or ()]
