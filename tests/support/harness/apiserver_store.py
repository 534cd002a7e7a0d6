"""An API server without a network: its parts on a manual clock and a seeded random generator."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

from bayplan.apiserver.requests import MASTERS_GROUP, RequestUser, WriteOptions, WriteRequest
from bayplan.apiserver.resources.kinds import ResourceRegistry, ServedResource
from bayplan.apiserver.storage.selection_predicate import field_extractor
from bayplan.apiserver.storage.store import CommittedObjects, Store
from bayplan.apiserver.storage.store_lookup import StoreLookup
from bayplan.apiserver.writes.deletion import DeleteOptions
from bayplan.apiserver.writes.write_pipeline import WritePipeline
from bayplan.apiserver.writes.writer import ObjectWriter, UpdateFunction, WriteResult
from bayplan.clock import ManualClock

Tree = dict[str, Any]
ADMIN = RequestUser("admin", (MASTERS_GROUP,))


class ApiserverStore:
    """A store with a writer, and shorthands for tests."""

    def __init__(self, store: Store | None = None) -> None:
        self.clock = ManualClock()
        self.resources = ResourceRegistry()
        self.store = store or Store()
        for resource in self.resources:
            self.store.committed_objects(resource.storage).extract = field_extractor(resource)
        self.writer = ObjectWriter(
            self.store,
            WritePipeline(StoreLookup(self.store.uncommitted_objects), self.clock),
            self.clock,
            random.Random(0),
        )
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})

    def kind(self, kind: str, group: str = "") -> ServedResource:
        return self.resources.built_in(kind, group)

    def place(self, kind: str, group: str = "") -> CommittedObjects:
        return self.store.committed_objects(self.kind(kind, group).storage)

    def write(self, kind: str, group: str = "", *, namespace: str | None = None, **options: Any) -> WriteRequest:
        resource = self.kind(kind, group)
        where = ("default" if resource.namespaced else "") if namespace is None else namespace
        return WriteRequest(resource, where, ADMIN, WriteOptions(**options), "tests")

    def create(self, body: Tree) -> WriteResult:
        group = body["apiVersion"].rpartition("/")[0]
        return self.writer.create(self.write(body["kind"], group), deepcopy(body))

    def update(self, kind: str, name: str, revision: UpdateFunction, *, group: str = "") -> WriteResult:
        return self.writer.update(self.write(kind, group), name, revision)

    def delete(self, kind: str, name: str, *, group: str = "", **options: Any) -> WriteResult:
        return self.writer.delete(self.write(kind, group), name, DeleteOptions(**options))


def config_map(name: str, **metadata: Any) -> Tree:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"a": "b"}}


def pod(name: str, *, node: str = "", **metadata: Any) -> Tree:
    spec: Tree = {"containers": [{"name": "c", "image": "example.com/c:1"}]}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}
