"""Base of the pools: nodes, and a steady coming and going of pods at a demand above what the nodes hold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from chaos.client import STRATEGIC, ApiClient, ApiError
from chaos.invariants.base import World
from chaos.objects import Tree, group_of, is_deleted, is_terminal, is_waiting, name, namespace, node_of, uid
from chaos.workload import shapes


@dataclass(slots=True)
class Stage:
    """What all pools work with."""

    client: ApiClient
    world: World
    chance: random.Random
    now: Callable[[], float]
    created: int = 0
    deleted: int = 0


@dataclass(slots=True)
class Pool:
    """`engines`: "pods" and "batch", by which of them pods are placed."""

    name: str
    stage: Stage
    engines: tuple[str, ...] = ("pods",)
    nodes: dict[str, Tree] = field(default_factory=dict)
    number: int = 0
    may_change_nodes: bool = True

    # set-up

    def templates(self) -> list[Tree]:
        """The nodes of the pool, as they are when no fault has changed them."""
        raise NotImplementedError

    async def setup(self) -> None:
        namespace_tree = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": shapes.namespace_of(self.name)}}
        await self.ensure(namespace_tree)
        self.nodes = {name(each): each for each in self.templates()}
        for each in self.nodes.values():
            await self.ensure(each)

    async def ensure(self, tree: Tree) -> None:
        """Create an object unless it exists."""
        try:
            await self.stage.client.create(tree)
        except ApiError as fault:
            if fault.code != 409:
                raise

    # pods

    def pods(self) -> list[Tree]:
        found = shapes.namespace_of(self.name)
        return [each for each in self.stage.world.record.all("Pod") if namespace(each) == found]

    def bound(self) -> list[Tree]:
        return [each for each in self.pods() if node_of(each) and not is_deleted(each)]

    def waiting(self) -> list[Tree]:
        return [each for each in self.pods() if is_waiting(each)]

    def next_name(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}-{self.number}"

    async def step(self) -> None:
        """One turn of the workload."""
        raise NotImplementedError

    async def create(self, tree: Tree) -> None:
        """Create a pod by way of one of the engines of the pool. For the batch engine it is a gang of one."""
        engine = self.stage.chance.choice(self.engines)
        if engine == "batch" and not group_of(tree):
            urgent = tree["spec"].get("priorityClassName", "")
            await self.ensure(shapes.pod_group(name(tree), self.name, 1, priority_class=urgent))
            shapes.of_batch(tree, name(tree))
        await self.stage.client.create(tree)
        self.stage.created += 1

    async def delete(self, tree: Tree, *, grace_s: int | None = None) -> None:
        """Delete a pod, and its group when it is a gang of one."""
        self.stage.world.acts.deleted[uid(tree)] = self.stage.now()
        await self.stage.client.delete("Pod", tree, grace_s=grace_s)
        self.stage.deleted += 1
        if group_of(tree) == f"{namespace(tree)}/{name(tree)}":
            group = {"metadata": {"name": name(tree), "namespace": namespace(tree)}}
            await self.stage.client.delete("PodGroup", group)

    async def finish(self, tree: Tree) -> None:
        """The containers of a pod have ended with success."""
        body: Tree = {"metadata": {"uid": uid(tree)}, "status": {"phase": "Succeeded"}}
        try:
            await self.stage.client.patch("Pod", namespace(tree), name(tree), body, sub="status", content=STRATEGIC)
        except ApiError:  # deleted meanwhile
            return

    async def add_hopeless(self) -> None:
        """Create a pod that fits on no node."""
        await self.create(shapes.pod(self.next_name("hopeless"), self.name, cpu="1000"))

    async def drain(self, share: float) -> None:
        """Delete a share of the bound pods, at least one, so that those that wait find room."""
        bound = self.bound()
        for each in self.stage.chance.sample(bound, min(len(bound), max(1, round(len(bound) * share)))):
            await self.delete(each)

    async def clear(self) -> None:
        """Delete all pods."""
        await asyncio.gather(*(self.delete(each) for each in self.pods() if not is_deleted(each)))

    async def heal(self) -> None:
        """Put back what faults have changed, beside nodes."""

    # the end

    def probes(self) -> list[Tree]:
        """Pods that fill every node of the pool, for an empty cluster."""
        found = []
        for node_name, node in self.nodes.items():
            room = {key: amount for key, amount in node["status"]["allocatable"].items() if key != "pods"}
            selector = {"kubernetes.io/hostname": node_name}
            cpu = room.pop("cpu")
            probe = shapes.pod(f"probe-{node_name}", self.name, cpu=cpu, requests=room, selector=selector)
            probe["spec"]["tolerations"] = [{"operator": "Exists"}]
            found.append(probe)
        return found


@dataclass(slots=True)
class ChurnPool(Pool):
    """Keeps some pods waiting, and deletes bound ones after a while, so that room is always scarce."""

    want_waiting: int = 3
    lifetime_s: float = 8.0
    most: int = 60
    _bound_since: dict[str, float] = field(default_factory=dict)

    def make(self) -> Tree:
        """The next pod."""
        raise NotImplementedError

    async def step(self) -> None:
        chance, now_s = self.stage.chance, self.stage.now()
        waiting, bound = self.waiting(), self.bound()
        if len(waiting) < self.want_waiting and len(waiting) + len(bound) < self.most:
            for _ in range(chance.randint(1, 3)):
                await self.create(await self.prepare(self.make()))
        self._bound_since = {uid(each): self._bound_since.get(uid(each), now_s) for each in bound}
        for each in bound:
            if is_terminal(each):
                await self.discard(each)
            elif now_s - self._bound_since[uid(each)] > chance.expovariate(1 / self.lifetime_s):
                await self.end_of_life(each)
        if waiting and chance.random() < 0.06:
            await self.disturb(chance.choice(waiting))

    async def prepare(self, tree: Tree) -> Tree:
        """Create what the pod needs beside itself."""
        return tree

    async def discard(self, tree: Tree) -> None:
        """Delete a pod and what belongs to it."""
        await self.delete(tree)

    async def end_of_life(self, tree: Tree) -> None:
        chance = self.stage.chance.random()
        if chance < 0.25:
            await self.finish(tree)
        else:
            await self.delete(tree, grace_s=0 if chance < 0.5 else None) if chance < 0.5 else await self.discard(tree)

    async def disturb(self, tree: Tree) -> None:
        """Change a pod that waits or is on its way: delete it, create it again under its name, or label it."""
        chance = self.stage.chance.random()
        if chance < 0.3:
            await self.discard(tree)
        elif chance < 0.7:
            await self.recreate(tree)
        else:
            body = {"metadata": {"uid": uid(tree), "labels": {"chaos/touched": f"t{self.stage.now():.0f}"}}}
            try:
                await self.stage.client.patch("Pod", namespace(tree), name(tree), body)
            except ApiError:
                return

    async def recreate(self, tree: Tree) -> None:
        fresh = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name(tree),
                "namespace": namespace(tree),
                "labels": tree["metadata"].get("labels", {}),
                "annotations": {
                    key: value
                    for key, value in (tree["metadata"].get("annotations") or {}).items()
                    if "chaos" in key or key in ("gpu-fraction", "runai/shared-gpu-configmap", shapes.GROUP_NAME)
                },
            },
            "spec": {key: value for key, value in tree["spec"].items() if key in _OWN_FIELDS},
        }
        self.stage.world.acts.deleted[uid(tree)] = self.stage.now()
        await self.stage.client.delete("Pod", tree, grace_s=0)
        try:
            await self.stage.client.create(fresh)
            self.stage.created += 1
        except ApiError as fault:  # it was bound meanwhile, and its node has not finished it
            if fault.code != 409:
                raise


_OWN_FIELDS = (
    "affinity",
    "containers",
    "nodeSelector",
    "resourceClaims",
    "schedulerName",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
)
