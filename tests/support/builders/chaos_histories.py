"""Histories for the tests of the chaos checks: hand-written objects and watch events, with their times."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from chaos.checks import checkers_of
from chaos.invariants.base import Checker, Invariants, Violation, World
from chaos.objects import Tree, uid
from chaos.workload import shapes

POOL = "p"


class EventHistory:
    """A sequence of events for the checkers of one invariant or all of them."""

    def __init__(self, *checkers: type[Checker]) -> None:
        self.world = World()
        self.found: list[Violation] = []
        made = [each(self.world) for each in checkers] or checkers_of(self.world)
        self.invariants = Invariants(self.world, made, self.found.append)
        self._version = 0

    def add(self, at_s: float, *trees: Tree) -> None:
        for each in trees:
            self._tell(at_s, "ADDED", each)

    def change(self, at_s: float, tree: Tree, **changes: Any) -> None:
        """`spec`, `status` and `metadata` of `changes` are merged over those of the tree."""
        for part, fields in changes.items():
            tree.setdefault(part, {}).update(copy.deepcopy(fields))
        self._tell(at_s, "MODIFIED", tree)

    def bind(self, at_s: float, tree: Tree, node: str) -> None:
        self.change(at_s, tree, spec={"nodeName": node})

    def delete(self, at_s: float, tree: Tree) -> None:
        self._tell(at_s, "DELETED", tree)

    def _tell(self, at_s: float, type_: str, tree: Tree) -> None:
        self.invariants.tick(at_s)
        self._version += 1
        tree["metadata"]["resourceVersion"] = str(self._version)
        tree["metadata"].setdefault("uid", f"uid-{tree['kind']}-{tree['metadata']['name']}-{self._version}")
        self.world.record.apply(tree["kind"], type_, copy.deepcopy(tree), at_s)

    def names(self, at_s: float = 10_000.0) -> list[str]:
        """Names of the violated invariants, after all deferred checks."""
        self.invariants.tick(at_s)
        return [each.invariant for each in self.found]

    def violations_at_rest(self, at_s: float) -> list[str]:
        self.invariants.tick(at_s)
        self.invariants.calm(at_s)
        return [each.invariant for each in self.found]

    def violations_when_empty(self, at_s: float) -> list[str]:
        self.invariants.tick(at_s)
        self.invariants.empty(at_s)
        return [each.invariant for each in self.found]


def node(name: str = "n", **more: Any) -> Tree:
    return shapes.node(name, POOL, **{"cpu": "8", **more})


def pod(name: str, **more: Any) -> Tree:
    return shapes.pod(name, POOL, **more)


def claim(name: str, device: str = "", users: Iterable[Tree] = (), pool: str = "n") -> Tree:
    tree = shapes.resource_claim(name, POOL)
    allocate(tree, device, users, pool)
    return tree


def allocate(tree: Tree, device: str, users: Iterable[Tree] = (), pool: str = "n") -> None:
    tree["status"] = {"reservedFor": [{"resource": "pods", "name": "x", "uid": uid(each)} for each in users]}
    if device:
        results = [{"request": "gpu", "driver": shapes.DRIVER, "pool": pool, "device": device}]
        tree["status"]["allocation"] = {"devices": {"results": results}}


def bind_request(of: Tree, node_name: str, name: str = "") -> Tree:
    return {
        "apiVersion": "scheduling.run.ai/v1alpha2",
        "kind": "BindRequest",
        "metadata": {"name": name or of["metadata"]["name"], "namespace": of["metadata"]["namespace"]},
        "spec": {"podUID": uid(of), "podName": of["metadata"]["name"], "selectedNode": node_name, "backoffLimit": 3},
        "status": {},
    }
