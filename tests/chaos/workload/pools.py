"""Pools with churn: resources, constraints, devices, volumes, shares of GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos.client import ApiError
from chaos.objects import Tree, claims_of, name, namespace, uid, volume_claims_of
from chaos.workload import shapes
from chaos.workload.pool import ChurnPool

GADGET = "chaos.example/gadget"


@dataclass(slots=True)
class WholeNodes(ChurnPool):
    """8-CPU pods on 8-CPU nodes: one pod a node, so that every double booking shows."""

    lifetime_s: float = 6.0

    def templates(self) -> list[Tree]:
        return [shapes.node(f"whole-{number}", self.name, cpu="8", pods=4) for number in range(4)]

    def make(self) -> Tree:
        return shapes.pod(self.next_name("whole"), self.name, cpu="8")


@dataclass(slots=True)
class Dense(ChurnPool):
    """Nodes that hold one to four pods, with CPU, memory, extended resources, host ports and the number of pods."""

    want_waiting: int = 4

    def templates(self) -> list[Tree]:
        return [
            shapes.node(f"dense-{number}", self.name, cpu="8", memory="16Gi", pods=4, room={GADGET: "4"})
            for number in range(4)
        ]

    def make(self) -> Tree:
        title, draw = self.next_name("dense"), self.stage.chance.random()
        selector = {"chaos/open": "yes"} if self.stage.chance.random() < 0.3 else {}
        if draw < 0.25:
            return shapes.pod(title, self.name, cpu="4", selector=selector)
        if draw < 0.45:
            return shapes.pod(title, self.name, cpu="1", requests={"memory": "8Gi"}, selector=selector)
        if draw < 0.65:
            return shapes.pod(title, self.name, cpu="1", requests={GADGET: "2"}, selector=selector)
        if draw < 0.85:
            port = self.stage.chance.choice((7001, 7002))
            return shapes.pod(title, self.name, cpu="1", ports=(port,), selector=selector)
        return shapes.pod(title, self.name, cpu="2", selector=selector)


@dataclass(slots=True)
class Constrained(ChurnPool):
    """Anti-affinity, spread over two zones, tolerations."""

    want_waiting: int = 3

    def templates(self) -> list[Tree]:
        nodes = [
            shapes.node(f"constrained-{number}", self.name, cpu="4", zone=f"zone-{number % 2}") for number in range(4)
        ]
        nodes[3]["spec"]["taints"] = [{"key": "chaos/dedicated", "value": "yes", "effect": "NoSchedule"}]
        return nodes

    def make(self) -> Tree:
        title, draw = self.next_name("constrained"), self.stage.chance.random()
        if draw < 0.4:
            app = self.stage.chance.choice(("red", "blue"))
            term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
            affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            return shapes.pod(title, self.name, cpu="500m", labels={"app": app}, affinity=affinity)
        if draw < 0.75:
            spread = {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "spread"}},
            }
            return shapes.pod(title, self.name, labels={"app": "spread"}, topologySpreadConstraints=[spread])
        tolerations = [{"key": "chaos/dedicated", "operator": "Exists", "effect": "NoSchedule"}]
        return shapes.pod(title, self.name, cpu="2", tolerations=tolerations)


@dataclass(slots=True)
class Devices(ChurnPool):
    """Pods with one device each, on nodes with two. Half of the claims outlive their pod and are used again."""

    lifetime_s: float = 6.0

    def templates(self) -> list[Tree]:
        return [shapes.node(f"devices-{number}", self.name, cpu="8") for number in range(3)]

    async def setup(self) -> None:
        await super(Devices, self).setup()
        await self.ensure(shapes.device_class())
        for each in self.nodes:
            await self.ensure(shapes.resource_slice(each, 2))

    def make(self) -> Tree:
        title = self.next_name("device")
        return shapes.with_claim(shapes.pod(title, self.name), f"{title}-claim")

    async def prepare(self, tree: Tree) -> Tree:
        for each in claims_of(tree):
            await self.ensure(shapes.resource_claim(each, self.name))
        return tree

    async def discard(self, tree: Tree) -> None:
        await self.delete(tree)
        for each in claims_of(tree):
            found = self.stage.world.record.named("ResourceClaim", f"{namespace(tree)}/{each}")
            if found is not None:
                await self.stage.client.delete("ResourceClaim", found)

    async def end_of_life(self, tree: Tree) -> None:
        if self.stage.chance.random() < 0.3:
            await self.recreate(tree)
        else:
            await self.discard(tree)

    def probes(self) -> list[Tree]:
        found = []
        for node_name in self.nodes:
            for number in range(2):
                title = f"probe-{node_name}-{number}"
                selector = {"kubernetes.io/hostname": node_name}
                found.append(shapes.with_claim(shapes.pod(title, self.name, selector=selector), f"{title}-claim"))
        return found


@dataclass(slots=True)
class Volumes(ChurnPool):
    """Local volumes that wait for their pod, CSI volumes with a limit on each node, and claims for one pod."""

    lifetime_s: float = 6.0
    limit: int = 2
    exclusive: tuple[str, ...] = ("only-0", "only-1")
    _shared: list[str] = field(default_factory=list)

    def templates(self) -> list[Tree]:
        return [shapes.node(f"volumes-{number}", self.name, cpu="8") for number in range(3)]

    async def setup(self) -> None:
        await super(Volumes, self).setup()
        await self.ensure(shapes.storage_class())
        for each in self.nodes:
            await self.ensure(shapes.csi_node(each, self.limit))
            for number in range(2):
                await self.ensure(shapes.local_volume(f"local-{each}-{number}", each))
        for each in self.exclusive:
            await self._bound_claim(each, "ReadWriteOncePod")
        self._shared = [f"shared-{number}" for number in range(3 * self.limit + 2)]
        for each in self._shared:
            await self._bound_claim(each, "ReadWriteOnce")

    async def _bound_claim(self, title: str, mode: str) -> None:
        """A claim with a volume of its own."""
        await self.ensure(shapes.volume_claim(title, self.name, late=False, mode=mode, volume=f"{title}-volume"))
        claim = await self.stage.client.get("PersistentVolumeClaim", shapes.namespace_of(self.name), title)
        volume = shapes.csi_volume(f"{title}-volume", mode)
        volume["spec"]["claimRef"] = {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "name": title,
            "namespace": namespace(claim),
            "uid": uid(claim),
        }
        await self.ensure(volume)
        done = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}
        await self.stage.client.patch("PersistentVolumeClaim", namespace(claim), title, done)

    def make(self) -> Tree:
        title, draw = self.next_name("volume"), self.stage.chance.random()
        tree = shapes.pod(title, self.name, cpu="500m")
        if draw < 0.5:
            return shapes.with_volume(tree, f"{title}-claim")
        if draw < 0.7:
            return shapes.with_volume(tree, self.stage.chance.choice(self.exclusive))
        used = {each for found in self.pods() for each in volume_claims_of(found)}
        free = [each for each in self._shared if each not in used]
        return shapes.with_volume(tree, self.stage.chance.choice(free or [self.exclusive[0]]))

    async def prepare(self, tree: Tree) -> Tree:
        for each in volume_claims_of(tree):
            if each.endswith("-claim"):
                await self.ensure(shapes.volume_claim(each, self.name, late=True))
        return tree

    async def discard(self, tree: Tree) -> None:
        await self.delete(tree)
        for each in volume_claims_of(tree):
            found = self.stage.world.record.named("PersistentVolumeClaim", f"{namespace(tree)}/{each}")
            if found is not None and each.endswith("-claim"):
                await self.stage.client.delete("PersistentVolumeClaim", found)

    async def end_of_life(self, tree: Tree) -> None:
        await self.discard(tree)

    async def drain(self, share: float) -> None:
        """Delete pods, and the claims of pods that are gone: a claim without a pod would hold its volume for ever."""
        await super(Volumes, self).drain(share)
        record, claimed = self.stage.world.record, {each for pod in self.pods() for each in volume_claims_of(pod)}
        for claim in list(record.all("PersistentVolumeClaim")):
            in_pool = namespace(claim) == shapes.namespace_of(self.name)
            if in_pool and name(claim).endswith("-claim") and name(claim) not in claimed:
                await self.stage.client.delete("PersistentVolumeClaim", claim)

    async def clear(self) -> None:
        for each in self.pods():
            await self.discard(each)


@dataclass(slots=True)
class Shares(ChurnPool):
    """Halves of GPUs and whole GPUs, on nodes with two. Needs the plugin GpuSharing and the binder."""

    lifetime_s: float = 8.0

    def templates(self) -> list[Tree]:
        labels = {"nvidia.com/gpu.memory": "16000"}
        return [
            shapes.node(f"shares-{number}", self.name, cpu="16", labels=labels, room={"nvidia.com/gpu": "2"})
            for number in range(3)
        ]

    async def setup(self) -> None:
        await super(Shares, self).setup()
        reservations = {"name": "kai-resource-reservation"}
        await self.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": reservations})
        account = {**reservations, "namespace": "kai-resource-reservation"}
        await self.ensure({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})

    def make(self) -> Tree:
        title = self.next_name("share")
        if self.stage.chance.random() < 0.2:
            return shapes.pod(title, self.name, requests={"nvidia.com/gpu": "1"})
        annotations = {"gpu-fraction": "0.5", "runai/shared-gpu-configmap": f"{title}-gpu"}
        return shapes.pod(title, self.name, annotations=annotations)

    async def delete(self, tree: Tree, *, grace_s: int | None = None) -> None:
        await super(Shares, self).delete(tree, grace_s=grace_s)
        for suffix in ("-gpu-0", "-gpu-0-evar"):
            path = f"/api/v1/namespaces/{namespace(tree)}/configmaps/{name(tree)}{suffix}"
            try:
                await self.stage.client.request("DELETE", path)
            except ApiError as fault:
                if fault.code != 404:
                    raise
