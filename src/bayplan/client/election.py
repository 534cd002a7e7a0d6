"""Who leads? Leader election over a Lease with client-go's algorithm, timings and record.

Run by the composition root over a client of its own, so that no queue of other requests can delay a renewal. Everything
that writes asks `check` first: it agrees only while the last renewal is younger than the renew deadline on a clock that
goes on while the process is stopped or the machine suspended. A process that was stopped and goes on therefore writes
nothing, whatever it had begun. A renewal counts from the moment it was sent, not from its answer.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from bayplan.client.client import Client
from bayplan.client.lease import Lock, Record
from bayplan.clock import LoopClock
from bayplan.errors import ApiError, BayplanError, Conflict, LeaseLost, NotFound
from bayplan.objects.meta import micro_time

log = logging.getLogger(__name__)

JITTER = 1.2
"""How much longer than the retry period a candidate waits at most: so many times the period more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
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


UPSTREAM = Timings()


class Election:
    """One candidate: `acquire`, then `hold` until it is lost; and the guard of everything that writes."""

    def __init__(
        self,
        client: Client,
        *,
        identity: str,
        name: str = "kube-scheduler",
        namespace: str = "kube-system",
        timings: Timings = UPSTREAM,
        on_new_leader: Callable[[str], None] | None = None,
        tell: Callable[[str], None] | None = None,
        marks: Mapping[str, str] | None = None,
    ) -> None:
        """`tell`: says to people what became of us, in upstream's words; only while the lease is ours to speak of.
        `marks`: annotations of the lease that say how the leader is reached."""
        self.identity = identity
        self.lock = Lock(client, namespace=namespace, name=name, marks=marks)
        self.timings = timings
        self._clock: LoopClock = client.clock
        self._chance: random.Random = client.chance
        self.on_new_leader = on_new_leader
        """Told who leads, whenever that changes."""
        self._tell = tell or (lambda _: None)
        self._observed = Record()
        self._observed_at = 0.0
        self._reported = ""
        self._leading = False
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

    def overdue_s(self) -> float:
        """How far past its expiry a lease is that we still believe to hold: 20 s of it are a failed health check."""
        return max(0.0, self.age_s() - self.timings.lease_s) if self._leading else 0.0

    # The life of a candidate.

    async def acquire(self) -> None:
        """Return when this process leads."""
        log.info("attempting to acquire leader lease %s", self.lock)
        while not await self._try():
            await self._clock.sleep(self.timings.retry_s * (1.0 + self._chance.random() * JITTER))
        self._tell(f"{self.identity} became leader")
        log.info("successfully acquired lease %s", self.lock)

    async def hold(self) -> None:
        """Renew until cancelled (then the lease is given up) or lost: then `LeaseLost`, and no write any more."""
        try:
            while self.leading:
                await self._clock.sleep(self.timings.retry_s)
                await self._renew()
            raise LeaseLost(f"the lease {self.lock} was lost: no renewal for {self.age_s():.0f} s; exiting")
        except asyncio.CancelledError:
            await asyncio.shield(self.release())
            raise
        finally:
            self._leading = False

    async def release(self) -> None:
        """Give up the lease, so that another need not wait for its end. Call it when nothing is under way."""
        if not self.leading:
            return
        self._leading = False
        now = micro_time(self._clock.now())
        empty = Record(duration_s=1, acquired=now, renewed=now, transitions=self._observed.transitions)
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
        """Acquire or renew once; false when somebody else holds the lease or the server did not do it."""
        try:
            succeeded = await self._attempt()
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
        ours = self._ours()
        if self._leading and started - self._observed_at < self.timings.lease_s:
            # Nobody else can have taken it by the rules: write over what we wrote last.
            try:
                await self.lock.update(self._kept(ours, self._observed))
                return self._won(self._kept(ours, self._observed), started)
            except (Conflict, NotFound):
                pass  # somebody touched it; look at what it says now
        try:
            found = await self.lock.get()
        except NotFound:
            await self.lock.create(ours)
            return self._won(ours, started)
        if found != self._observed:
            self._observe(found)
        if found.holder and found.holder != self.identity and self._valid(found):
            return False
        mine = found.holder == self.identity
        record = self._kept(ours, found) if mine else replace(ours, transitions=found.transitions + 1)
        await self.lock.update(record)
        return self._won(record, started)

    def _ours(self) -> Record:
        now = micro_time(self._clock.now())
        return Record(holder=self.identity, duration_s=int(self.timings.lease_s), acquired=now, renewed=now)

    @staticmethod
    def _kept(ours: Record, before: Record) -> Record:
        return replace(ours, acquired=before.acquired, transitions=before.transitions)

    def _valid(self, record: Record) -> bool:
        """Judged by when we saw it change, not by the date in it: the clocks of two machines differ."""
        return self._clock.uptime_s() - self._observed_at < record.duration_s

    def _won(self, record: Record, started: float) -> bool:
        self._observe(record)
        self._renewed_at = started
        self._leading = True
        return True

    def _observe(self, record: Record) -> None:
        self._observed = record
        self._observed_at = self._clock.uptime_s()
