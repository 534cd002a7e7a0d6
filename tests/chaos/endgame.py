"""Calm times and the end of a run: every pod that fits is bound, nothing is left over, no capacity has leaked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from chaos.invariants.base import Violation
from chaos.node_fit import describe, fitting_pods
from chaos.objects import Tree, claims_of, group_of, is_waiting, key, name, namespace, reserved_for, uid
from chaos.workload import shapes
from chaos.workload.pool import Pool

if TYPE_CHECKING:
    from chaos.run import Run

LOST_S = 150.0
"""So long a pod may wait in calm times although it fits: writes of unknown outcome hold room for the server's request
timeout, which is 60 s, and bindings that were given up keep a pod from a node for 30 s."""
_CALM_S = 600.0
_LOOK_S = 1.0
_STUCK_S = 6.0
_EMPTY_S = 180.0
_PROBE_S = 150.0
_SETTLE_S, _QUIET_S, _QUIET_WRITES = 45.0, 20.0, 2
"""A watch may be silent for 30 s before it is noticed, and what it then delivers is written."""


class Endgame:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._record = run.world.record

    # calm

    async def settle(self) -> None:
        """Wait until no pod waits, deleting bound pods when those that wait do not fit."""
        started_s, fits_since = self._run.now(), dict[str, float]()
        idle_s = started_s
        while any(is_waiting(each) for each in self._record.all("Pod")):
            if self._run.now() - started_s > _CALM_S:
                raise RuntimeError(f"no calm after {_CALM_S:.0f} s; pods wait that fit on no node: {self._waiting()}")
            await asyncio.sleep(_LOOK_S)
            now_s, fitting = self._run.now(), fitting_pods(self._record)
            fits_since = {each: fits_since.get(each, now_s) for each in fitting}
            lost = [each for each, since_s in fits_since.items() if now_s - since_s > LOST_S]
            if lost:
                await self._give_up(lost, fitting)
                fits_since = {}
            if fitting:
                idle_s = now_s
            elif now_s - idle_s > _STUCK_S:
                idle_s = now_s
                await self._drain()
        await asyncio.sleep(8.0)
        self._run.recovery.drop()
        self._run.invariants.calm(self._run.now())
        self._run.note("calm", took_s=round(self._run.now() - started_s, 1))

    def _waiting(self) -> list[str]:
        return [describe(each) for each in self._record.all("Pod") if is_waiting(each)]

    async def _give_up(self, lost: list[str], fitting: dict[str, str]) -> None:
        """Report pods as lost, and delete them so that the run can go on."""
        for each in lost:
            pod = self._record.get("Pod", each)
            if pod is not None:
                text = f"pod {describe(pod)} waits although it fits: {fitting[each]}"
                self._run.on_violation(Violation("lost-pod", self._run.now(), text, (each,)))
                await self._pool_of(pod).delete(pod)

    def _pool_of(self, pod: Tree) -> Pool:
        return next(each for each in self._run.pools if shapes.namespace_of(each.name) == namespace(pod))

    async def _drain(self) -> None:
        for pool in self._run.pools:
            if pool.waiting():
                await pool.drain(0.3)

    # the end

    async def finish(self) -> None:
        """Delete the workload, look for leftovers, and fill every node once more."""
        run = self._run
        await self._stay_quiet()
        await self._clear()
        await self._until(self._is_empty, _EMPTY_S)
        run.invariants.empty(run.now())
        for each in self._record.all("Pod"):
            if not namespace(each).startswith("kai-"):
                run.on_violation(Violation("left-over", run.now(), f"pod {key(each)} is left", (uid(each),)))
        for engine in dict.fromkeys(engine for pool in run.pools for engine in pool.engines):
            await self._probe(engine)
        for slot in run.slots:
            slot.held = True
            code = await slot.terminate()
            if code != 0:
                run.on_violation(Violation("process-ended", run.now(), f"{slot.name} ended with {code} after SIGTERM"))

    async def _stay_quiet(self) -> None:
        """With pods that fit nowhere and nothing else to do, processes write nothing but leases."""
        run = self._run
        for pool in run.pools:
            await pool.add_hopeless()
        await asyncio.sleep(_SETTLE_S)
        start_s = run.now()
        await asyncio.sleep(_QUIET_S)
        roles = {slot.name for slot in run.slots}
        writes = [each for each in run.writes.lines if each.at_s > start_s and each.slot in roles]
        found = Counter(f"{each.method} {each.path}" for each in writes if "/leases" not in each.path)
        run.note("quiet", seconds=_QUIET_S, writes=found.total())
        if found.total() > _QUIET_WRITES:
            text = f"{found.total()} writes in {_QUIET_S:.0f} s in which nothing changed: {found.most_common(5)}"
            run.on_violation(Violation("writes-when-quiet", run.now(), text))

    async def _clear(self) -> None:
        for pool in self._run.pools:
            await pool.clear()

    def _is_empty(self) -> bool:
        reserved = any(reserved_for(each) for each in self._record.all("ResourceClaim"))
        return not reserved and not any(self._record.current[kind] for kind in ("Pod", "BindRequest"))

    async def _probe(self, engine: str) -> None:
        """A pod as large as each node, all at once."""
        run, made = self._run, dict[str, Tree]()
        for pool in run.pools:
            if engine not in pool.engines:
                continue
            for each in pool.probes():
                for claim in claims_of(each):
                    await pool.ensure(shapes.resource_claim(claim, pool.name))
                if engine == "batch":
                    await pool.ensure(shapes.pod_group(name(each), pool.name, 1))
                    shapes.of_batch(each, name(each))
                made[key(each)] = await run.client.create(each)
        await self._until(lambda: not self._unbound(made), _PROBE_S)
        for unbound in self._unbound(made):
            found = self._record.named("Pod", unbound)
            text = (
                f"the probe {describe(found) if found else unbound} of engine {engine} does not fit on its empty node"
            )
            run.on_violation(Violation("leaked-capacity", run.now(), text, (uid(made[unbound]),)))
        run.note("probe", engine=engine, pods=len(made), unbound=len(self._unbound(made)))
        for each in made.values():
            run.world.acts.deleted[uid(each)] = run.now()
            await run.client.delete("Pod", each, grace_s=0)
            if group_of(each):
                await run.client.delete("PodGroup", {"metadata": {"name": name(each), "namespace": namespace(each)}})
        await self._until(self._is_empty, _EMPTY_S)

    def _unbound(self, made: dict[str, Tree]) -> list[str]:
        found = ((each, self._record.named("Pod", each)) for each in made)
        return [each for each, pod in found if pod is None or is_waiting(pod)]

    async def _until(self, holds: Callable[[], bool], within_s: float) -> bool:
        deadline_s = self._run.now() + within_s
        while not holds():
            if self._run.now() > deadline_s:
                return False
            await asyncio.sleep(0.5)
        return True
