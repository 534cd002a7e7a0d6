"""Chooses faults by a seeded generator, carries them out, and says what each did.

Faults of requests are armed in the proxies. Faults of processes, servers and nodes run as tasks; `calm` waits for
them and puts everything back.
"""

from __future__ import annotations

import asyncio
import copy
import random
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from chaos.client import ApiClient, ApiError, Away
from chaos.invariants.base import Violation, World
from chaos.knowledge import Interval
from chaos.objects import Tree, labels, name, spec, status
from chaos.processes import Slot
from chaos.proxy.faults import LEAVES_UNKNOWN, NOT_REFUSED, OF_READS, OF_WRITES, FaultPlan, RequestFault, Way
from chaos.proxy.requests import ApiRequest
from chaos.recovery import Recovery
from chaos.servers import ApiServer
from chaos.workload.gangs import Gangs
from chaos.workload.pool import Pool

_PAUSE_S = (0.3, 1.6)
_LATE_S = (0.3, 4.0)
_STOP_S = (0.5, 12.0)
_AFTER_CUT_S = 10.0
_SERVER_ERRORS = (500, 503, 504)
_CODES = {Way.REFUSED_AFTER_WRITE: (409, 404, 422), Way.REFUSED: (403, 422)}
_NODE_CHANGES: dict[str, Tree] = {
    "cordon": {"spec": {"unschedulable": True}},
    "relabel": {"metadata": {"labels": {"chaos/open": "no"}}},
    "taint": {"spec": {"taints": [{"key": "chaos/trouble", "effect": "NoSchedule"}]}},
}
_WATCHED = ("pods", "nodes", "pods", "nodes", "")


FAMILIES = {"request": 66, "process": 6, "watch": 7, "cut": 4, "server": 3, "node": 13, "queue": 1}
FAMILIES_OF_PAIRS = {**FAMILIES, "process": 2, "takeover": 1}
"""A takeover costs a lease duration: with more kills there would be no leader for most of the time."""


@dataclass(frozen=True, slots=True)
class Chances:
    """Relative frequency of each family of faults, and of each class of requests."""

    targets: dict[str, int]
    families: dict[str, int]


@dataclass(eq=False)
class Director:
    chance: random.Random
    chances: Chances
    now: Callable[[], float]
    note: Callable[..., None]
    world: World
    client: ApiClient
    server: ApiServer
    slots: list[Slot]
    pools: list[Pool]
    recovery: Recovery
    on_violation: Callable[[Violation], None]
    has_leases: bool = False
    kills_until_s: float = float("inf")
    """Until then processes are killed. Later they live on, so that their memory can be watched."""
    plan: FaultPlan = field(init=False)
    _number: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _silent: dict[str, Interval] = field(default_factory=dict)
    _server_busy: bool = False

    def __post_init__(self) -> None:
        self.plan = FaultPlan(self.now, self._on_effect, on_expiry=self._on_expiry)

    async def run(self) -> None:
        """Faults, until cancelled."""
        while True:
            await asyncio.sleep(self.chance.uniform(*_PAUSE_S))
            families = self.chances.families
            family = self.chance.choices(list(families), list(families.values()))[0]
            act: Callable[[], Awaitable[None] | None] = getattr(self, f"_{family}_fault")
            started = act()
            if started is not None:
                await started

    async def calm(self) -> None:
        """End all faults and put everything back."""
        self.plan.disarm_all()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=120)
        for slot in self.slots:
            slot.held = False
            slot.signal(signal.SIGCONT)
        await self.heal_nodes()
        for pool in self.pools:
            await pool.heal()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fault(self, kind: str, **fields: Any) -> int:
        self._number += 1
        self.note("fault", number=self._number, kind=kind, at=round(self.now(), 2), **fields)
        return self._number

    def _effect(self, number: int, kind: str, **fields: Any) -> None:
        self.note("effect", number=number, kind=kind, at=round(self.now(), 2), **fields)

    # requests

    def _request_fault(self) -> None:
        targets = self.chances.targets
        target = self.chance.choices(list(targets), list(targets.values()))[0]
        way = self.chance.choice(OF_READS if target in ("get", "list", "watch") else OF_WRITES)
        if target == "watch" and way is Way.CUT_ANSWER:
            way = Way.CUT
        if way is Way.REFUSED and target in NOT_REFUSED:
            way = Way.THROTTLED
        code = self.chance.choice(_CODES.get(way, _SERVER_ERRORS))
        is_late = way in (Way.LATE_WRITE, Way.DELAYED) or (way is Way.RETRY_AFTER and self.chance.random() < 0.5)
        delay_s = self.chance.uniform(*_LATE_S) if is_late else 0.0
        times = self.chance.choice((1, 1, 2, 3, 5)) if target not in ("lease",) else self.chance.choice((1, 2))
        self._arm(way, target, code, delay_s, times)
        if target == "bindrequest-create" and way in LEAVES_UNKNOWN and self.chance.random() < 0.5:
            # The binder gives the request up, so that its name is free when the write lands.
            self._arm(Way.REFUSED, "binding", self.chance.choice(_CODES[Way.REFUSED]), 0.0, self.chance.randint(3, 8))

    def _arm(self, way: Way, target: str, code: int, delay_s: float, times: int) -> None:
        number = self._fault(f"{way.name.lower()}:{target}", code=code, delay_s=round(delay_s, 2), times=times)
        self.plan.arm(RequestFault(number, way, target, "", self.now() + 20.0, times, code, delay_s))

    def _on_effect(self, fault: RequestFault, request: ApiRequest, detail: str) -> None:
        kind = f"{fault.way.name.lower()}:{fault.target}"
        self._effect(fault.number, kind, request=f"{request.slot} {request.method} {request.path}"[:300], detail=detail)
        self.recovery.fault(kind, self.now() - (0.0 if fault.way is Way.DELAYED else fault.delay_s), request.name)
        if request.target in ("watch", "list", "get"):
            self._news_late()

    def _on_expiry(self, fault: RequestFault) -> None:
        self.note("fault-over", number=fault.number, hits=fault.hits, effects=fault.effects)

    def _news_late(self) -> None:
        interval = self.world.knowledge.cut_off(self.now())
        self.world.knowledge.restore(interval, self.now() + _AFTER_CUT_S)

    # watches and connections

    def _watch_fault(self) -> None:
        slot, resource = self.chance.choice(self.slots), self.chance.choice(_WATCHED)
        if self.chance.random() < 0.4:
            self._silence(slot, resource)
            return
        number = self._fault("gone_watch", slot=slot.name, resource=resource or "all")
        count = slot.proxy.expire_watches(resource)
        if count:
            self._effect(number, "gone_watch", watches=count)
            self.recovery.fault("gone_watch", self.now())
            self._news_late()
        if self.chance.random() < 0.5:  # the next watch is refused, too, so that the client lists again
            times = self.chance.randint(1, 3)
            gone = RequestFault(number, Way.GONE, "watch", slot.name, self.now() + 5.0, times, 410, resource=resource)
            self.plan.arm(gone)

    def _silence(self, slot: Slot, resource: str) -> None:
        if slot.name in self._silent:
            return
        number = self._fault("silent_watch", slot=slot.name, resource=resource or "all")
        count = slot.proxy.mute_watches(resource)
        if not count:
            return
        self._effect(number, "silent_watch", watches=count)
        self._silent[slot.name] = self.world.knowledge.cut_off(self.now())

    def on_watch_replaced(self, slot: str, request: ApiRequest, muted_s: float) -> None:
        """The client gave up a watch that had gone silent."""
        interval = self._silent.pop(slot, None)
        if interval is not None:
            self.world.knowledge.restore(interval, self.now() + _AFTER_CUT_S)
        self.note("silent-watch-replaced", slot=slot, resource=request.resource, after_s=round(self.now() - muted_s, 2))

    def _cut_fault(self) -> None:
        slot = self.chance.choice(self.slots)
        number = self._fault("cut_all", slot=slot.name)
        if count := slot.proxy.cut_all():
            self._effect(number, "cut_all", connections=count)
            self.recovery.fault("cut_all", self.now())
            self._news_late()

    # processes

    def _process_fault(self) -> None:
        if self.now() > self.kills_until_s:
            return
        free = [slot for slot in self.slots if not slot.held and slot.running is not None]
        if not free:
            return
        slot = self.chance.choice(free)
        way = self.chance.choices((self._kill, self._terminate, self._stop), (5, 3, 3))[0]
        slot.held = True
        self._start(way(slot))

    async def _kill(self, slot: Slot) -> None:
        kind = f"kill:{slot.role}"
        number, start_s = self._fault(kind, slot=slot.name), self.now()
        await slot.kill()
        self._effect(number, kind)
        self.recovery.fault(kind, start_s)
        await asyncio.sleep(self.chance.uniform(0.0, 2.0))
        await self._revive(slot, start_s)

    async def _terminate(self, slot: Slot) -> None:
        kind = f"terminate:{slot.role}"
        number, start_s = self._fault(kind, slot=slot.name), self.now()
        starting = not slot.proxy.requests  # it has no signal handlers yet
        code = await slot.terminate()
        self._effect(number, kind, code=code, took_s=round(self.now() - start_s, 2))
        if code not in (0, *slot.ends_alone) and not (code == -signal.SIGTERM and starting):
            self.on_violation(Violation("process-ended", self.now(), f"{slot.name} ended with {code} after SIGTERM"))
        self.recovery.fault(kind, start_s)
        await self._revive(slot, start_s)

    async def _revive(self, slot: Slot, start_s: float) -> None:
        await slot.writes_landed()
        slot.start()
        slot.held = False
        self.world.acts.outages.append((start_s, self.now() + 5.0))

    async def _stop(self, slot: Slot) -> None:
        kind = f"stop:{slot.role}"
        number, start_s = self._fault(kind, slot=slot.name), self.now()
        interval = self.world.knowledge.cut_off(start_s)
        slot.signal(signal.SIGSTOP)
        await asyncio.sleep(self.chance.uniform(*_STOP_S) * (1.6 if self.has_leases else 1.0))
        slot.signal(signal.SIGCONT)
        self._effect(number, kind, took_s=round(self.now() - start_s, 2))
        self.recovery.fault(kind, self.now())
        self.world.knowledge.restore(interval, self.now() + _AFTER_CUT_S)
        self.world.acts.outages.append((start_s, self.now() + 2.0))
        slot.held = False

    def _takeover_fault(self) -> None:
        """One process of a pair receives no more pod events, and the other one is killed a little later."""
        deaf, killed = self.chance.sample(self.slots, 2)
        if not any(slot.held or slot.running is None for slot in (deaf, killed)) and self.now() < self.kills_until_s:
            deaf.held = killed.held = True
            self._start(self._take_over(deaf, killed))

    async def _take_over(self, deaf: Slot, killed: Slot) -> None:
        self._silence(deaf, "pods")
        await asyncio.sleep(self.chance.uniform(1.0, 4.0))
        deaf.held = False
        await self._kill(killed)

    # servers

    def _server_fault(self) -> None:
        if not self._server_busy:
            self._server_busy = True
            self._start(self._compact() if self.chance.random() < 0.3 else self._kill_server())

    async def _compact(self) -> None:
        number = self._fault("compaction")
        if await asyncio.to_thread(self.server.compact):
            self._effect(number, "compaction")
            for slot in self.slots:
                slot.proxy.cut_all()
            self._news_late()
        self._server_busy = False

    async def _kill_server(self) -> None:
        component = self.chance.choice(self.server.components)
        kind = f"kill:{component}"
        number, start_s = self._fault(kind), self.now()
        interval = self.world.knowledge.cut_off(start_s)
        self.server.kill(component)
        await asyncio.sleep(self.chance.uniform(0.0, 4.0))
        await self.server.restart(component)
        self._effect(number, kind, away_s=round(self.now() - start_s, 2))
        self.recovery.fault(kind, self.now())
        self.world.knowledge.restore(interval, self.now() + _AFTER_CUT_S)
        self.world.acts.outages.append((start_s, self.now() + 5.0))
        self._server_busy = False

    # nodes and queues

    def _node_fault(self) -> None:
        pools = [pool for pool in self.pools if pool.may_change_nodes]
        if not pools:
            return
        pool = self.chance.choice(pools)
        node = self.chance.choice(list(pool.nodes))
        way = self.chance.choice(("cordon", "delete", "resize", "relabel", "taint"))
        self._start(self._change_node(pool, node, way))

    async def _change_node(self, pool: Pool, node: str, way: str) -> None:
        number = self._fault(f"node:{way}", node=node)
        try:
            if way == "delete":
                await self.client.delete("Node", {"metadata": {"name": node}})
            elif way == "resize":
                half = {"status": {"allocatable": {"cpu": "2"}}}
                await self.client.patch("Node", "", node, half, sub="status")
            else:
                await self.client.patch("Node", "", node, copy.deepcopy(_NODE_CHANGES[way]))
            self._effect(number, f"node:{way}")
            await asyncio.sleep(self.chance.uniform(0.3, 8.0))
            await self._heal_node(pool.nodes[node])
        except (ApiError, Away) as fault:
            self.note("driver", text=f"node {node}: {fault}")

    async def heal_nodes(self) -> None:
        for pool in self.pools:
            for each in pool.nodes.values():
                await self._heal_node(each)

    async def _heal_node(self, template: Tree) -> None:
        """Make the node what its template says, or create it."""
        for _ in range(10):
            try:
                found = await self.client.get("Node", "", name(template))
            except ApiError:
                try:
                    await self.client.create(copy.deepcopy(template))
                except ApiError:
                    continue
                return
            changed = copy.deepcopy(found)
            changed["metadata"]["labels"] = {**labels(found), **labels(template)}
            changed["spec"] = {
                key: value for key, value in spec(found).items() if key not in ("unschedulable", "taints")
            }
            changed["spec"].update(copy.deepcopy(spec(template)))
            try:
                if changed != found:
                    changed = await self.client.replace(changed)
                if status(changed).get("allocatable") != status(template)["allocatable"]:
                    changed["status"].update(copy.deepcopy(status(template)))
                    await self.client.replace(changed, sub="status")
                return
            except ApiError:  # changed meanwhile
                continue

    async def _queue_fault(self) -> None:
        for pool in self.pools:
            if isinstance(pool, Gangs):
                number = self._fault("queue:change")
                await pool.change_queue()
                self._effect(number, "queue:change")
