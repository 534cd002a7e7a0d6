"""Leader election over a Lease, with client-go's algorithm, timings and record.

The composition root runs it with its own client, so that no other request can delay a renewal. Every writer calls
`check` first. It allows the write while the last renewal is younger than the renew deadline, on a clock that runs while
the process is stopped or the machine suspended. A process that continues after a stop therefore writes nothing, even if
it had begun. A renewal counts from the moment it was sent, not from its response.

A dead leader is replaced within 1.2 lease durations: a candidate sees each renewal at most 0.15 lease durations late,
and tries to take the lease at the moment at which the observed record expires. Cost of a candidate: one GET per retry
period (at most an eighth of the lease duration), stretched by up to a fifth.
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
"""Minimum number of reads per lease duration."""
_SPREAD = 0.2
"""Each wait between two reads is stretched by up to this fraction, so that candidates do not run in step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionTimings:
    """Timings of an election. The defaults are upstream's."""

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
    """One candidate, and the guard of its process's writes. Call `acquire`, then `renew_until_lost`."""

    def __init__(
        self,
        client: Client,
        *,
        identity: str,
        name: str = "kube-scheduler",
        namespace: str = "kube-system",
        timings: ElectionTimings = DEFAULT_TIMINGS,
        on_new_leader: Callable[[str], None] | None = None,
        record_event: Callable[[str], None] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """`record_event`: called with upstream's event texts when this process gains or gives up the lease.
        `annotations`: annotations of the lease with the leader's address."""
        self.identity = identity
        self.lock = LeaseLock(client, namespace=namespace, name=name, annotations=annotations)
        self.timings = timings
        self._clock: LoopClock = client.clock
        self._chance: random.Random = client.chance
        self.on_new_leader = on_new_leader
        """Called with the identity of the leader whenever it changes."""
        self._report_change = record_event or (lambda _: None)
        self._observed = LeaderElectionRecord()
        self._observed_at = 0.0
        self._reported = ""
        self._leading = False
        self._lost = False
        self._retained = False
        self._held_writes = HeldWrites(client.clock)
        self._renewed_at = 0.0
        self._logged_missing_namespace = False

    # State of the lease, for guarded writers.

    @property
    def leader(self) -> str:
        """Identity of the last observed leader."""
        return self._observed.holder

    @property
    def leading(self) -> bool:
        """Whether this process holds the lease and may write."""
        return self._leading and self.age_s() < self.timings.renew_s

    def age_s(self) -> float:
        """Seconds since the last renewal was sent, including a stop or a suspension."""
        return self._clock.uptime_s() - self._renewed_at

    def check(self) -> None:
        """Raise `LeaseLost` unless this process may write now."""
        if not self.leading:
            why = f"its last renewal is {self.age_s():.0f} s old" if self._leading else "this process does not hold it"
            raise LeaseLost(f"the lease {self.lock} does not allow writing: {why}; the current leader takes over")

    @property
    def claimed(self) -> bool:
        """Whether this process holds the lease as far as it knows; it may have to renew it before it writes."""
        return self._leading

    @property
    def lost(self) -> bool:
        """Whether this process held the lease until another one took it, or until it could not be renewed."""
        return self._lost

    async def hold_back(self) -> None:
        """Hold back a write that `check` refused, because the process ends if the lease is lost. Raises `LeaseLost` if
        this process has never held the lease or has given it up."""
        if not (self._leading or self._lost):
            self.check()
        await self._held_writes.wait(self)

    def report_unsent(self) -> None:
        """Log how many writes were held back and never sent."""
        self._held_writes.report()

    def retain(self) -> None:
        """Do not release the lease when `renew_until_lost` ends: a write of this process may still take effect. A
        successor waits until the lease expires."""
        self._retained = True

    def overdue_s(self) -> float:
        """Seconds since the expiry of a lease that this process claims. Above 20 s the health check fails."""
        return max(0.0, self.age_s() - self.timings.lease_s) if self._leading else 0.0

    # Acquiring and renewing.

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
        """Read the lease. Returns whether this process may take it now."""
        return await self._report(self._read_expired())

    async def try_acquire(self) -> bool:
        """Take the lease. Returns False when another process holds it. Refusals of the server are retried."""
        while not await self._try():
            if self._remaining_s() > 0:
                return False
            await self._clock.sleep(self.pause_s())
        self._report_change(f"{self.identity} became leader")
        log.info("successfully acquired lease %s", self.lock)
        return True

    def pause_s(self) -> float:
        """Seconds until the next read: until the observed lease expires, at most the usual interval."""
        usual_s = min(self.timings.retry_s, self.timings.lease_s / _READS_PER_LEASE)
        usual_s *= 1.0 + self._chance.random() * _SPREAD
        remaining_s = self._remaining_s()
        return min(usual_s, remaining_s) if remaining_s > 0 else usual_s

    async def renew_until_lost(self) -> None:
        """Renew until cancelled or lost. Raises `LeaseLost` when lost; then no write is allowed. When cancelled, it
        releases the lease unless `retain` was called."""
        self._retained = False
        try:
            while self.leading:
                await self._clock.sleep(self.timings.retry_s)
                await self._renew()
            raise LeaseLost(f"the lease {self.lock} was lost: no renewal for {self.age_s():.0f} s; exiting")
        except asyncio.CancelledError:
            if self._retained:
                text = "the lease %s is not released and expires in %.0f s: a write may still take effect"
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
        """Release the lease, so that a successor need not wait for its expiry. No write may be in flight."""
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
                    self._report_change(f"{self.identity} stopped leading")
        except (ApiError, TimeoutError) as fault:
            log.warning("cannot release the lease %s: %s; it expires by itself", self.lock, fault)

    async def _renew(self) -> None:
        """Renew once before the deadline. A failed try is repeated after the retry period."""
        left_s = self.timings.renew_s - self.age_s()
        if left_s <= 0:
            return
        if not await self._try_within(left_s) and self._observed.holder not in ("", self.identity):
            self._leading = False
            raise LeaseLost(f"the lease {self.lock} was lost: {self._observed.holder} holds it; exiting")

    async def _try_within(self, seconds: float) -> bool:
        """Try once, until a deadline: the loss of a lease must not wait for a server that hangs."""
        attempt = asyncio.ensure_future(self._try())
        limit = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((attempt, limit), return_when=asyncio.FIRST_COMPLETED)
            return attempt.done() and attempt.result()
        finally:
            attempt.cancel()
            limit.cancel()

    async def _try(self) -> bool:
        """Acquire or renew once. Returns False when another process holds the lease or the server refused."""
        return await self._report(self._attempt())

    async def _report(self, step: Coroutine[Any, Any, bool]) -> bool:
        """Return the result of a step, False when the server refused it. Logs the refusal and reports a new leader."""
        try:
            succeeded = await step
        except NotFound as fault:  # the namespace: a missing lease is created
            if not self._logged_missing_namespace:
                text = "lease %s: %s; create that namespace, or name another one for the lease; retrying"
                log.warning(text, self.lock, fault)
            self._logged_missing_namespace = True
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
        own = self._own_record()
        if self._leading and started - self._observed_at < self.timings.lease_s:
            # No other process can have taken it by the rules: overwrite the last record.
            try:
                await self.lock.update(self._keep_transitions(own, self._observed))
                return self._on_acquired(self._keep_transitions(own, self._observed), started)
            except (Conflict, NotFound):
                pass  # another process changed it; read it again
        try:
            found = await self._read()
        except NotFound:
            await self.lock.create(own)
            return self._on_acquired(own, started)
        if self._remaining_s() > 0:
            return False
        is_own = found.holder == self.identity
        record = self._keep_transitions(own, found) if is_own else replace(own, transitions=found.transitions + 1)
        await self.lock.update(record)
        return self._on_acquired(record, started)

    async def _read_expired(self) -> bool:
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
    def _keep_transitions(own: LeaderElectionRecord, before: LeaderElectionRecord) -> LeaderElectionRecord:
        return replace(own, acquired=before.acquired, transitions=before.transitions)

    def _remaining_s(self) -> float:
        """Seconds until the observed lease of another process expires; 0 if it has expired, is free or is held here.

        Counted from the time at which its last change was seen, not from its renewTime: clocks of machines differ.
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
