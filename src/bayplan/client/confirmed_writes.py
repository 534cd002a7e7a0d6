"""Writes whose outcome must be known: repeats a request until the API server's state shows what it did.

A 5xx answer, a cut connection or a timeout does not say whether a write took effect, and it may still take effect until
the API server's request timeout has passed. `ConfirmedWrites.write` returns or raises only when the outcome is known,
so the caller keeps what it has assumed for the write until then. Used for bindings, BindRequests, evictions, claims,
volumes, annotations and GPU reservations of both engines and of the binder.

Every write that comes here names the resourceVersion that it changes, deletes one uid, or creates an object under a
fixed name. The first two take effect at most once, however often they are sent. A create takes effect once as long as
its object exists: a caller that deletes the object has to wait until no earlier send can take effect (`LateCreates`).
Sending it again is therefore safe, and resolves most unknown outcomes within a second. Cost: nothing for a write that
is answered, one GET for a write that is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from bayplan.clock import LoopClock
from bayplan.errors import ApiError, ServerError, TooManyRequests, Unauthorized, Unreachable

T = TypeVar("T")

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 60.0
"""kube-apiserver's default for --request-timeout: after it a write that was not answered cannot take effect."""

_MAX_SENDS = 4
"""A write that fails more often is only looked up, so that a failing webhook is not called without end."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.25, 5.0

worker_slot: ContextVar[Callable[[], AbstractAsyncContextManager[None]]] = ContextVar(
    "worker_slot", default=nullcontext
)
"""Opens a block in which the calling worker only waits, so that the work queue may use its slot."""


@dataclass(frozen=True, slots=True)
class ConfirmedWrite(Generic[T]):
    """The write took effect; `value` is what sending it would have returned."""

    value: T


class NotWritten(Enum):
    SO_FAR = "it may still take effect"
    FOR_EVER = "it cannot take effect any more"


WriteState = ConfirmedWrite[T] | NotWritten


@dataclass(slots=True)
class ConfirmedWrites:
    """Sends writes and determines their outcomes. `request_timeout_s` is the API server's."""

    clock: LoopClock
    request_timeout_s: float = REQUEST_TIMEOUT_S
    open: int = 0
    """Writes in flight that may take effect, and whose outcome is unknown."""

    def unresolved_until_s(self) -> float:
        """Time until which an unanswered write may take effect, on the monotonic clock."""
        return self.clock.monotonic_s() + self.request_timeout_s

    async def write(
        self,
        send: Callable[[], Awaitable[T]],
        find: Callable[[], Awaitable[WriteState[T]]],
        *,
        what: str,
        retry_refused: bool = False,
        trust_refusal: bool = False,
        trusted: tuple[type[ApiError], ...] = (),
    ) -> T:
        """Send a write and return its result. Raises the API server's refusal once the write cannot take effect.

        `find` reads the object by a GET without a resourceVersion, which is consistent. `what` names the write in the
        log. `retry_refused`: also repeat a write that the server did not receive or had no time for. `trust_refusal`:
        do not look after a 4xx response; the caller finds out itself, or loses nothing, if the write took effect.
        `trusted`: the same for these refusals only.
        """
        self.open += 1
        try:
            trusted = (ApiError,) if trust_refusal else trusted
            return await self._write(send, find, what, trusted, retry_refused=retry_refused)
        finally:
            self.open -= 1

    async def _write(
        self,
        send: Callable[[], Awaitable[T]],
        find: Callable[[], Awaitable[WriteState[T]]],
        what: str,
        trusted: tuple[type[ApiError], ...],
        *,
        retry_refused: bool,
    ) -> T:
        unknown_until_s = float("-inf")
        pauses = _pauses()
        sends = 0
        while True:
            try:
                return await send()
            except ApiError as error:
                refusal = error
            sends += 1
            if refusal.outcome_unknown:
                unknown_until_s = self.unresolved_until_s()
                log.info("%s: the outcome is unknown: %s", what, refusal)
            elif unknown_until_s == float("-inf") and (
                _is_unsent(refusal)
                or isinstance(refusal, trusted)
                or (retry_refused and isinstance(refusal, TooManyRequests))
            ):
                can_retry = retry_refused and isinstance(refusal, Unreachable | TooManyRequests)
                if not can_retry or sends >= _MAX_SENDS:
                    raise refusal
                await self._pause(next(pauses))
                continue
            is_last = self.clock.monotonic_s() >= unknown_until_s  # a slow GET may show the state before that
            found = await self._read_state(find)
            if isinstance(found, ConfirmedWrite):
                log.info("%s: it took effect, although the response was: %s", what, refusal)
                return found.value
            if found is NotWritten.FOR_EVER or is_last:
                raise refusal
            if sends >= _MAX_SENDS and not _is_unsent(refusal):
                return await self._await_effect(find, unknown_until_s, refusal, what)
            await self._pause(next(pauses))

    async def _await_effect(
        self, find: Callable[[], Awaitable[WriteState[T]]], until_s: float, refusal: ApiError, what: str
    ) -> T:
        """Look until the write has taken effect or cannot take effect any more; then raise the refusal."""
        for pause_s in _pauses():
            await self._pause(min(pause_s, max(0.0, until_s - self.clock.monotonic_s())))
            is_last = self.clock.monotonic_s() >= until_s
            found = await self._read_state(find)
            if isinstance(found, ConfirmedWrite):
                log.info("%s: it took effect, although the response was: %s", what, refusal)
                return found.value
            if found is NotWritten.FOR_EVER or is_last:
                break
        raise refusal

    async def _read_state(self, find: Callable[[], Awaitable[WriteState[T]]]) -> WriteState[T]:
        """Read until the API server answers. An inconclusive response does not prove that the write had no effect."""
        for pause_s in _pauses():
            try:
                return await find()
            except (Unreachable, ServerError, TooManyRequests, Unauthorized):
                await self._pause(pause_s)
            except ApiError as error:
                log.warning("cannot look up the outcome of a write: %s", error)
                break
        return NotWritten.SO_FAR

    async def _pause(self, seconds: float) -> None:
        async with worker_slot.get()():
            await self.clock.sleep(seconds)


class LateCreates:
    """Creates with an unknown outcome, and until when each may take effect, even after its object was deleted."""

    def __init__(self, confirmed: ConfirmedWrites) -> None:
        self._confirmed = confirmed
        self._until_s: dict[str, float] = {}

    def note(self, key: str, refusal: ApiError) -> None:
        """Record the refusal of a create if its outcome is unknown."""
        if refusal.outcome_unknown:
            now_s = self._confirmed.clock.monotonic_s()
            self._until_s = {each: until_s for each, until_s in self._until_s.items() if until_s > now_s}
            self._until_s[key] = self._confirmed.unresolved_until_s()

    def until_s(self, key: str) -> float | None:
        """Time until which a create of `key` may take effect, on the monotonic clock; None if none can."""
        until_s = self._until_s.get(key)
        return until_s if until_s is not None and until_s > self._confirmed.clock.monotonic_s() else None


def _is_unsent(refusal: ApiError) -> bool:
    return isinstance(refusal, Unreachable) and not refusal.sent


def _pauses() -> Iterator[float]:
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
