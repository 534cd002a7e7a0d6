"""Gangs in two queues, for the batch engine."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from chaos.objects import Tree, group_of, is_deleted, is_terminal, is_waiting, node_of, spec, uid
from chaos.workload import shapes
from chaos.workload.pool import Pool

QUEUES = {"chaos-a": (2, ""), "chaos-b": (1, "12")}
"""Weight and capability in CPUs. The largest gang wants 12."""


@dataclass(slots=True)
class Gangs(Pool):
    """Gangs of two to six pods that come, run for a while and go as a whole."""

    engines: tuple[str, ...] = ("batch",)
    want_waiting: int = 2
    lifetime_s: float = 10.0
    _bound_since: dict[str, float] = field(default_factory=dict)

    def templates(self) -> list[Tree]:
        return [shapes.node(f"gangs-{number}", self.name, cpu="4", pods=8) for number in range(5)]

    async def setup(self) -> None:
        await super(Gangs, self).setup()
        for title, (weight, cpu) in QUEUES.items():
            await self.ensure(shapes.queue(title, weight, cpu))
            await self.stage.client.patch("Queue", "", title, {"status": {"state": "Open"}}, sub="status")

    def gangs(self) -> dict[str, list[Tree]]:
        found: dict[str, list[Tree]] = defaultdict(list)
        for each in self.pods():
            found[group_of(each)].append(each)
        return found

    async def step(self) -> None:
        now_s, chance = self.stage.now(), self.stage.chance
        gangs = self.gangs()
        waiting = [group for group, pods in gangs.items() if any(is_waiting(each) for each in pods)]
        if len(waiting) < self.want_waiting:
            await self.create_gang()
        for group, pods in gangs.items():
            tree = self.stage.world.record.named("PodGroup", group)
            size = spec(tree)["minMember"] if tree is not None else 0
            whole = all(node_of(each) for each in pods) and len(pods) >= size
            touched = any(is_deleted(each) or is_terminal(each) for each in pods) or len(pods) < size
            self._bound_since.setdefault(group, now_s) if whole else None
            old = now_s - self._bound_since.get(group, now_s) > chance.expovariate(1 / self.lifetime_s)
            if (whole and old) or touched or (not whole and chance.random() < 0.005):
                await self.delete_gang(group, pods)

    async def create_gang(self) -> None:
        chance, title = self.stage.chance, self.next_name("gang")
        size, cpu = chance.randint(2, 6), chance.choice(("1", "1", "2"))
        queue = chance.choice(list(QUEUES))
        await self.ensure(shapes.pod_group(title, self.name, size, queue))
        for number in range(size):
            member = shapes.pod(f"{title}-{number}", self.name, cpu=cpu)
            await self.create(shapes.of_batch(member, title))

    async def delete_gang(self, group: str, pods: list[Tree]) -> None:
        self._bound_since.pop(group, None)
        for each in pods:  # as one act: from the first deletion on the gang is no longer whole
            self.stage.world.acts.deleted[uid(each)] = self.stage.now()
        for each in pods:
            await self.delete(each)
        tree = self.stage.world.record.named("PodGroup", group)
        if tree is not None:
            await self.stage.client.delete("PodGroup", tree)

    async def drain(self, share: float) -> None:
        """Delete gangs that run."""
        whole = [(group, pods) for group, pods in self.gangs().items() if all(node_of(each) for each in pods)]
        count = min(len(whole), max(1, round(len(whole) * share)))
        for group, pods in self.stage.chance.sample(whole, count):
            await self.delete_gang(group, pods)

    async def clear(self) -> None:
        for group, pods in self.gangs().items():
            await self.delete_gang(group, pods)

    async def add_hopeless(self) -> None:
        """Create a gang that is larger than the pool."""
        title = self.next_name("hopeless")
        await self.ensure(shapes.pod_group(title, self.name, 20, "chaos-a"))
        for number in range(20):
            await self.create(shapes.of_batch(shapes.pod(f"{title}-{number}", self.name, cpu="2"), title))

    async def change_queue(self) -> None:
        """Change weight or capability of a queue."""
        chance = self.stage.chance
        title = chance.choice(list(QUEUES))
        body: Tree = {"spec": {"weight": chance.randint(1, 4)}}
        if title == "chaos-b":
            body["spec"]["capability"] = {"cpu": str(chance.choice((8, 10, 12, 14)))}
        await self.stage.client.patch("Queue", "", title, body)

    async def heal(self) -> None:
        for title, (weight, cpu) in QUEUES.items():
            spec_: Tree = {"weight": weight, "capability": {"cpu": cpu} if cpu else None}
            await self.stage.client.patch("Queue", "", title, {"spec": spec_})
