"""Leader election over a Lease, with client-go's algorithm, timings and record.

Run by the composition root over a client of its own, so that no queue of other requests can delay a renewal. Everything
that writes asks `check` first: it agrees only while the last renewal is younger than the renew deadline on a clock that
goes on while the process is stopped or the machine suspended. A process that was stopped and goes on therefore writes
nothing, whatever it had begun. A renewal counts from the moment it was sent, not from its answer.

A dead leader is replaced within 1.2 lease durations: a candidate sees each renewal at most 0.15 lease durations late,
because it looks that often, and tries to take the lease at the moment at which the observed record ends. Cost of a
candidate: one GET per retry period (at most an eighth of the lease duration), stretched by up to a fifth.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bayplan.client.client import Client
from bayplan.client.election.held_writes import HeldWrites
from bayplan.client.election.lease_lock import LeaderElectionRecord, LeaseLock
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, BayplanError, Conflict, LeaseLost, NotFound
from bayplan.objects.meta import format_micro_time

log = logging.getLogger(__name__)

JITTER = 1.2
"""client-go's jitter factor: the renew deadline must be longer than the retry period times this."""

_READS_PER_LEASE = 8
"""How often at least a candidate looks at the lease in one lease duration."""
_SPREAD = 0.2
"""Each wait between two looks is stretched by up to this part of it, so that candidates do not move in step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionTimings:
    """Upstream's defaults."""

    lease_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if self.lease_s <= self.renew_s:
            raise BayplanError(
                "leaseDuration must be greater than renewDeadline; correct the leader election's timings"
            )
        if self.renew_s <= JITTER * self.retry_s:
            raise BayplanError("renewDeadline must be greater than retryPeriod*JitterFactor; correct the timings")


DEFAULT_TIMINGS = ElectionTimings()


class LeaderElector:
    """One candidate: `acquire`, then `renew_until_lost` until it is lost; and the guard of everything that writes."""

    def __init__(
        self,
        client: Client,
        *,
        identity: str,
        name: str = "kube-scheduler",
        namespace: str = "kube-system",
        timings: ElectionTimings = DEFAULT_TIMINGS,
        on_new_leader: Callable[[str], None] | None = None,
        tell: Callable[[str], None] | None = None,
        marks: Mapping[str, str] | None = None,
    ) -> None:
        """`tell`: says to people what became of us, in upstream's words; only while the lease is ours to speak of.
        `marks`: annotations of the lease that say how the leader is reached."""
        self.identity = identity
        self.lock = LeaseLock(client, namespace=namespace, name=name, marks=marks)
        self.timings = timings
        self._clock: LoopClock = client.clock
        self._chance: random.Random = client.chance
        self.on_new_leader = on_new_leader
        """Told who leads, whenever that changes."""
        self._tell = tell or (lambda _: None)
        self._observed = LeaderElectionRecord()
        self._observed_at = 0.0
        self._reported = ""
        self._leading = False
        self._lost = False
        self._retained = False
        self._held_writes = HeldWrites(client.clock)
        self._renewed_at = 0.0
        self._told_of_namespace = False

    # What the guarded ask.

    @property
    def leader(self) -> str:
        """Who led when we last looked."""
        return self._observed.holder

    @property
    def leading(self) -> bool:
        """Whether we hold the lease and can be sure of it."""
        return self._leading and self.age_s() < self.timings.renew_s

    def age_s(self) -> float:
        """Seconds since the last renewal was sent, those of a stop or a suspension included."""
        return self._clock.uptime_s() - self._renewed_at

    def check(self) -> None:
        """Raise unless we may write now."""
        if not self.leading:
            why = f"its last renewal is {self.age_s():.0f} s old" if self._leading else "this process does not hold it"
            raise LeaseLost(f"the lease {self.lock} does not allow writing: {why}; whoever leads now carries on")

    @property
    def claimed(self) -> bool:
        """Whether this process holds the lease as far as it knows; it may have to renew it before it writes."""
        return self._leading

    @property
    def lost(self) -> bool:
        """Whether this process held the lease until another one took it, or until it could not be renewed."""
        return self._lost

    async def hold_back(self) -> None:
        """Wait with a write that `check` refused, because the process ends if the lease is lost. Raises `LeaseLost` if
        this process has never held the lease or has given it up."""
        if not (self._leading or self._lost):
            self.check()
        await self._held_writes.wait(self)

    def report_unsent(self) -> None:
        """Log how many writes were held back and never sent."""
        self._held_writes.report()

    def retain(self) -> None:
        """Do not give the lease up when `renew_until_lost` ends: a write of this process may still take effect. A
        successor waits until the lease expires."""
        self._retained = True

    def overdue_s(self) -> float:
        """How far past its expiry a lease is that we still believe to hold: 20 s of it are a failed health check."""
        return max(0.0, self.age_s() - self.timings.lease_s) if self._leading else 0.0

    # The life of a candidate.

    async def observe(self) -> None:
        """Read the lease until cancelled. A later `acquire` then knows how long the holder has not renewed it."""
        while True:
            await self.can_acquire()
            await self._clock.sleep(self.pause_s())

    async def acquire(self) -> None:
        """Return when this process leads."""
        log.info("attempting to acquire leader lease %s", self.lock)
        while not await self.try_acquire():
            await self._clock.sleep(self.pause_s())

    async def can_acquire(self) -> bool:
        """Read the lease; whether this process may take it now."""
        return await self._report(self._look())

    async def try_acquire(self) -> bool:
        """Take the lease; false when another process holds it. Refusals of the server are retried."""
        while not await self._try():
            if self._remaining_s() > 0:
                return False
            await self._clock.sleep(self.pause_s())
        self._tell(f"{self.identity} became leader")
        log.info("successfully acquired lease %s", self.lock)
        return True

    def pause_s(self) -> float:
        """How long a candidate waits before it looks again: until the observed lease ends, but no longer than usual."""
        usual_s = min(self.timings.retry_s, self.timings.lease_s / _READS_PER_LEASE)
        usual_s *= 1.0 + self._chance.random() * _SPREAD
        remaining_s = self._remaining_s()
        return min(usual_s, remaining_s) if remaining_s > 0 else usual_s

    async def renew_until_lost(self) -> None:
        """Renew until cancelled or lost: then `LeaseLost`, and no write any more. Cancelled, it gives the lease up,
        unless `retain` was called."""
        self._retained = False
        try:
            while self.leading:
                await self._clock.sleep(self.timings.retry_s)
                await self._renew()
            raise LeaseLost(f"the lease {self.lock} was lost: no renewal for {self.age_s():.0f} s; exiting")
        except asyncio.CancelledError:
            if self._retained:
                text = "the lease %s is not given up and expires in %.0f s: a write may still take effect"
                log.warning(text, self.lock, self.timings.lease_s)
            else:
                await asyncio.shield(self.release())
            raise
        except LeaseLost:
            self._lost = True
            raise
        finally:
            self._leading = False

    async def release(self) -> None:
        """Give up the lease, so that another need not wait for its end. Call it when nothing is under way."""
        if not self.leading:
            return
        self._leading = False
        now = format_micro_time(self._clock.now())
        empty = LeaderElectionRecord(duration_s=1, acquired=now, renewed=now, transitions=self._observed.transitions)
        try:
            async with asyncio.timeout(self.timings.renew_s):
                if (await self.lock.get()).holder == self.identity:
                    await self.lock.update(empty)
                    self._observe(empty)
                    self._tell(f"{self.identity} stopped leading")
        except (ApiError, TimeoutError) as fault:
            log.warning("cannot give up the lease %s: %s; it ends by itself", self.lock, fault)

    async def _renew(self) -> None:
        """One try, which must not last beyond the deadline; then either it worked or the next turn tries again."""
        left_s = self.timings.renew_s - self.age_s()
        if left_s <= 0:
            return
        if not await self._within(left_s) and self._observed.holder not in ("", self.identity):
            self._leading = False
            raise LeaseLost(f"the lease {self.lock} was lost: {self._observed.holder} holds it; exiting")

    async def _within(self, seconds: float) -> bool:
        """One try that is given up when the deadline comes: the loss of a lease must not wait for a hung server."""
        attempt = asyncio.ensure_future(self._try())
        limit = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((attempt, limit), return_when=asyncio.FIRST_COMPLETED)
            return attempt.done() and attempt.result()
        finally:
            attempt.cancel()
            limit.cancel()

    async def _try(self) -> bool:
        """Acquire or renew once; false when another process holds the lease or the server did not do it."""
        return await self._report(self._attempt())

    async def _report(self, step: Coroutine[Any, Any, bool]) -> bool:
        """The result of a step, false when the server refused it; logs the refusal and reports a new leader."""
        try:
            succeeded = await step
        except NotFound as fault:  # the lease itself is made where there is none
            if not self._told_of_namespace:
                text = "lease %s: %s; create that namespace, or name another one for the lease; it is tried again"
                log.warning(text, self.lock, fault)
            self._told_of_namespace = True
            succeeded = False
        except ApiError as fault:
            log.log(logging.WARNING if self._leading else logging.INFO, "lease %s: %s", self.lock, fault)
            succeeded = False
        if self._observed.holder != self._reported:
            self._reported = self._observed.holder
            if self.on_new_leader is not None:
                self.on_new_leader(self._reported)
        return succeeded

    async def _attempt(self) -> bool:
        started = self._clock.uptime_s()
        ours = self._own_record()
        if self._leading and started - self._observed_at < self.timings.lease_s:
            # Nobody else can have taken it by the rules: write over what we wrote last.
            try:
                await self.lock.update(self._keep_transitions(ours, self._observed))
                return self._on_acquired(self._keep_transitions(ours, self._observed), started)
            except (Conflict, NotFound):
                pass  # somebody touched it; look at what it says now
        try:
            found = await self._read()
        except NotFound:
            await self.lock.create(ours)
            return self._on_acquired(ours, started)
        if self._remaining_s() > 0:
            return False
        mine = found.holder == self.identity
        record = self._keep_transitions(ours, found) if mine else replace(ours, transitions=found.transitions + 1)
        await self.lock.update(record)
        return self._on_acquired(record, started)

    async def _look(self) -> bool:
        try:
            await self._read()
        except NotFound:
            return True
        return self._remaining_s() <= 0

    async def _read(self) -> LeaderElectionRecord:
        found = await self.lock.get()
        if found != self._observed:
            self._observe(found)
        return found

    def _own_record(self) -> LeaderElectionRecord:
        now = format_micro_time(self._clock.now())
        return LeaderElectionRecord(
            holder=self.identity, duration_s=int(self.timings.lease_s), acquired=now, renewed=now
        )

    @staticmethod
    def _keep_transitions(ours: LeaderElectionRecord, before: LeaderElectionRecord) -> LeaderElectionRecord:
        return replace(ours, acquired=before.acquired, transitions=before.transitions)

    def _remaining_s(self) -> float:
        """How long the observed lease of another process lasts; nothing where it has ended or is free or ours.

        Counted from when its last change was seen, not from the date in it: the clocks of two machines differ.
        """
        if self._observed.holder in ("", self.identity):
            return 0.0
        return self._observed_at + self._observed.duration_s - self._clock.uptime_s()

    def _on_acquired(self, record: LeaderElectionRecord, started: float) -> bool:
        self._observe(record)
        self._renewed_at = started
        self._leading, self._lost = True, False
        return True

    def _observe(self, record: LeaderElectionRecord) -> None:
        self._observed = record
        self._observed_at = self._clock.uptime_s()
