"""One configuration from its start to its end: set up, rounds of faults with calm times, the final checks.

round:  faults and churn, then calm: faults end, everything is put back, all pods that fit must be bound
end:    the workload is deleted, nothing may be left over, and a pod as large as each node must fit on it
"""

from __future__ import annotations

import asyncio
import random
import ssl
import sys
import time
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.checks import checkers_of
from chaos.child_processes import free_ports, spawn
from chaos.client import ApiClient, ApiError, Away
from chaos.configurations import Configuration
from chaos.director import Director
from chaos.endgame import Endgame
from chaos.invariants.base import Invariants, Violation, World
from chaos.invariants.evictions import Evictions
from chaos.journal import Journal
from chaos.kinds import KINDS
from chaos.objects import is_waiting, name
from chaos.processes import Ended, Slot, write_kubeconfig
from chaos.proxy.server import Proxy, WriteLog
from chaos.record import Change
from chaos.recovery import Recovery
from chaos.roles.controllers import Controllers
from chaos.roles.kubelet import Kubelet
from chaos.servers import SERVERS, ApiServer
from chaos.trace import Trace
from chaos.violations import describe
from chaos.watches import Watcher
from chaos.workload.pool import Pool, Stage
from chaos.workload.preemption import Preemption

ROUND_S = 180.0
_TICK_S, _STEP_S, _MEMORY_S = 0.25, 0.5, 10.0
_WATCHED = (
    *("Node", "Pod", "PersistentVolume", "PersistentVolumeClaim", "ResourceClaim", "ResourceSlice", "CSINode"),
    *("PodGroup", "Queue", "BindRequest"),
)
_AFTERMATH_S = 5.0
_WARM_UP_S, _FIRST_BINDINGS = 120.0, 10
_LONG_RUN_S = 1800.0


@dataclass(eq=False)
class Run:
    configuration: Configuration
    folder: Path
    seed: str
    journal: Journal
    trace: Trace
    world: World = field(default_factory=World)
    writes: WriteLog = field(default_factory=WriteLog)
    faults: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=3000))
    violations: int = 0
    slots: list[Slot] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._origin_s = time.monotonic()
        self._churning = asyncio.Event()
        self._places: set[str] = set()

    def now(self) -> float:
        return time.monotonic() - self._origin_s

    def chance(self, part: str) -> random.Random:
        """A generator for each part, so that one part does not shift the draws of another."""
        return random.Random(f"{self.seed}:{self.configuration.full_name}:{part}")

    def note(self, what: str, **fields: Any) -> None:
        """Into the journal. Faults are kept for the reports of violations, too."""
        self.journal.write(what, **fields)
        if what in ("fault", "effect", "silent-watch-replaced"):
            self.faults.append({"what": what, "at": round(self.now(), 2), **fields})

    # lifecycle

    async def execute(self, minutes: float) -> None:
        async with AsyncExitStack() as stack:
            self._stack = stack
            await self._set_up(minutes * 60)
            await self._warm_up()
            end_s = self.now() + minutes * 60
            self.note("started", configuration=self.configuration.full_name, seed=self.seed, minutes=minutes)
            while self.now() < end_s:
                await self._round(min(end_s, self.now() + ROUND_S))
            await self.endgame.finish()
            self._sum_up(done=True)

    async def _warm_up(self) -> None:
        """Let the processes start and bind the first pods before faults begin."""
        self._churning.set()
        deadline_s = self.now() + _WARM_UP_S
        while len(self.world.record.bindings) < _FIRST_BINDINGS and self.now() < deadline_s:
            await asyncio.sleep(_STEP_S)

    async def _round(self, end_s: float) -> None:
        self._churning.set()
        faults = asyncio.ensure_future(self.director.run())
        await asyncio.wait((faults, *self._background), timeout=end_s - self.now(), return_when=asyncio.FIRST_COMPLETED)
        self._raise_failures((faults, *self._background))
        faults.cancel()
        self._churning.clear()
        await self.director.calm()
        await self.endgame.settle()
        self._sum_up()

    def _raise_failures(self, tasks: tuple[asyncio.Future[None], ...]) -> None:
        """A task of the driver that ended has failed."""
        for each in tasks:
            if each.done():
                each.result()
                raise RuntimeError(f"a task of the driver ended: {each}")

    def _sum_up(self, *, done: bool = False) -> None:
        record, stage = self.world.record, self.stage
        evictions = next(each for each in self.invariants.checkers if isinstance(each, Evictions))
        self.note(
            "totals",
            done=done,
            at=round(self.now(), 1),
            created=stage.created,
            deleted=stage.deleted,
            bound=len(record.bindings),
            evicted=len(evictions.victims),
            evictions_allowed=evictions.allowed,
            scenarios=sum(each.finished for each in self.pools if isinstance(each, Preemption)),
            versions=record.versions_seen,
            relists=sum(each.relists for each in self._watchers),
            checks={each.name: each.checks for each in self.invariants.checkers},
        )

    # set-up

    async def _set_up(self, duration_s: float) -> None:
        self.server: ApiServer = SERVERS[self.configuration.server](self.folder)
        self._stack.callback(self.server.stop)
        await self.server.start()
        self.client = await self._stack.enter_async_context(ApiClient(self.server.access))
        await self._install_kinds()
        self._start_watches()
        stage_chance = self.chance("workload")
        self.stage = Stage(self.client, self.world, stage_chance, self.now)
        self.pools = self.configuration.pools(self.stage)
        self.recovery = Recovery(self._waiting, self._on_recovery)
        self.invariants = Invariants(self.world, checkers_of(self.world), self.on_violation)
        self.world.record.listeners += [self._on_change, self.trace.on_change]
        self.writes.listeners.append(self.trace.on_write)
        self.director = self._make_director(duration_s)
        self._kubelet = Kubelet(self.client, self.world, self.chance("kubelet"))
        self._stack.callback(self._kubelet.close)
        await self._start_processes()
        self.endgame = Endgame(self)
        await self._start_background()

    def _make_director(self, duration_s: float) -> Director:
        return Director(
            chance=self.chance("faults"),
            chances=self.configuration.chances,
            now=self.now,
            note=self.note,
            world=self.world,
            client=self.client,
            server=self.server,
            slots=self.slots,
            pools=self.pools,
            recovery=self.recovery,
            on_violation=self.on_violation,
            has_leases=self.configuration.has_leases,
            kills_until_s=self.now() + duration_s / 3 if duration_s >= _LONG_RUN_S else float("inf"),
        )

    async def _install_kinds(self) -> None:
        """CustomResourceDefinitions and namespaces, as a user would bring them."""
        port = int(self.server.access.url.rpartition(":")[2])
        direct = write_kubeconfig(
            self.folder / "direct.kubeconfig", self.server.access, self.server.access.ca_file, port
        )
        command = [sys.executable, "-m", "bayplan", "crds", "--install", "--kubeconfig", str(direct)]
        process = spawn(command, self.folder / "crds.log")
        code = await asyncio.to_thread(process.wait, 120)
        if code:
            raise RuntimeError(f"bayplan crds --install ended with {code}; see {self.folder / 'crds.log'}")
        for each in ("PodGroup", "Queue", "BindRequest"):
            await self._until_served(each)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "volcano-system"}}
        await self.client.create(namespace)

    async def _until_served(self, kind: str) -> None:
        for _ in range(300):
            try:
                await self.client.request("GET", KINDS[kind].path())
            except ApiError:
                await asyncio.sleep(0.2)
            else:
                return
        raise RuntimeError(f"{kind} is not served")

    def _start_watches(self) -> None:
        self._watchers = [Watcher(self.client, self.world.record, kind, self.now) for kind in _WATCHED]
        self._background: list[asyncio.Future[None]] = [asyncio.ensure_future(each.run()) for each in self._watchers]

    async def _start_processes(self) -> None:
        files, access = self.server.files(), self.server.access
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(files.certificate, files.key)
        specs = self.configuration.slots
        for spec, port in zip(specs, free_ports(len(specs)), strict=True):
            proxy = Proxy(spec.name, access, tls, self.director.plan, self.writes, port)
            proxy.on_watch_replaced = lambda request, muted_s, slot=spec.name: self.director.on_watch_replaced(  # type: ignore[misc]
                slot, request, muted_s
            )
            await proxy.start()
            self._stack.push_async_callback(proxy.stop)
            kubeconfig = write_kubeconfig(self.folder / f"{spec.name}.kubeconfig", access, files.ca, port)
            ends_alone = (1,) if self.configuration.has_leases else ()
            arguments = spec.arguments(self.folder, kubeconfig)
            slot = Slot(spec.name, spec.role, arguments, self.folder, proxy, self.now, ends_alone, self._on_end)
            self._stack.callback(slot.stop)
            self.slots.append(slot)

    async def _start_background(self) -> None:
        await asyncio.gather(*(each.listed.wait() for each in self._watchers))
        for pool in self.pools:
            await pool.setup()
            if isinstance(pool, Preemption):
                pool.judge = self._judge_scenario
        controllers = Controllers(self.client, self.world, self.now)
        work = [controllers.run(), self._kubelet.sweep(), self._tick(), self._watch_processes()]
        work += [slot.supervise() for slot in self.slots]
        work += [self._churn(pool) for pool in self.pools]
        self._background += [asyncio.ensure_future(each) for each in work]
        for slot in self.slots:
            slot.start()
        for each in self._background:
            self._stack.callback(each.cancel)

    # periodic work

    async def _churn(self, pool: Pool) -> None:
        while True:
            await asyncio.sleep(_STEP_S)
            await self._churning.wait()
            try:
                await pool.step()
            except (ApiError, Away) as fault:  # objects changed during the iteration
                self.note("driver", pool=pool.name, text=str(fault)[:500])

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.invariants.tick(self.now())

    async def _watch_processes(self) -> None:
        while True:
            await asyncio.sleep(_MEMORY_S)
            for slot in self.slots:
                if (mib := slot.resident_mib()) is not None and slot.running is not None:
                    age_s = self.now() - slot.running.started_s
                    self.note(
                        "memory", slot=slot.name, instance=slot.running.number, age=round(age_s), mib=round(mib, 1)
                    )
                self._report_tracebacks(slot)

    def _report_tracebacks(self, slot: Slot) -> None:
        """One violation for each place in the code; more of the same are noted."""
        for place, text in slot.new_tracebacks():
            if place in self._places:
                self.note("traceback", place=place)
            else:
                self._places.add(place)
                self.on_violation(Violation("traceback", self.now(), f"{place}\n{text}"))

    # record events

    def _waiting(self) -> int:
        return sum(is_waiting(each) for each in self.world.record.all("Pod"))

    def _on_change(self, change: Change) -> None:
        if change.is_binding:
            self.recovery.binding(change.at_s, name(change.tree))

    def _on_recovery(self, kind: str, took_s: float) -> None:
        self.note("recovery", kind=kind, took=round(took_s, 3))

    def on_violation(self, violation: Violation) -> None:
        self.violations += 1
        number, found = self.violations, describe(violation, self.world.record, self.writes, self.faults)
        self.journal.write("violation", number=number, **found)
        if violation.objects:
            asyncio.get_running_loop().call_later(_AFTERMATH_S, self._note_aftermath, number, violation)
        brief, who = violation.text.partition("\n")[0], self.configuration.full_name
        sys.stderr.write(f"{who} {violation.at_s:.1f} s: {violation.invariant}: {brief}\n")

    def _note_aftermath(self, number: int, violation: Violation) -> None:
        """The same once more, with what followed."""
        found = describe(violation, self.world.record, self.writes, self.faults)
        self.journal.write("aftermath", number=number, **found)

    def _on_end(self, ended: Ended) -> None:
        tail = ended.log.read_text(errors="replace")[-2000:]
        text = f"{ended.slot} ended by itself with {ended.code} after {ended.lived_s:.0f} s: {tail}"
        self.on_violation(Violation("process-ended", self.now(), text))

    def _judge_scenario(self, scenario: str, started_s: float) -> None:
        for checker in self.invariants.checkers:
            if isinstance(checker, Evictions):
                for each in checker.judge_scenario(scenario, started_s, self.now()):
                    self.on_violation(each)
