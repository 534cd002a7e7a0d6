"""Writes device claims: reserves, creates, unreserves, deallocates and deletes them.

Used by `ApiWrites` for the intents of `devices`. A claim is shared with other pods and with the controllers, so every
patch names the version that it changes and is made again after a conflict. A reservation waits for writes of the same
claim that were submitted earlier: they would otherwise take it back. Cost: one or two requests an intent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Coroutine
from typing import Any

from bayplan.api_writes.guarded_patches import GuardedPatches
from bayplan.api_writes.observer import FAILED, SUCCEEDED, SchedulerObserver
from bayplan.client import (
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Client,
    ConfirmedWrite,
    ConfirmedWrites,
    GroupVersionResource,
    NotWritten,
    WriteState,
)
from bayplan.clock import Clock
from bayplan.devices import claim_intents
from bayplan.devices.claims import FINALIZER
from bayplan.errors import ApiError, BayplanError, Conflict, NotFound
from bayplan.objects.core import Pod
from bayplan.objects.resource import ResourceClaim

ClaimRelease = claim_intents.UnreserveClaim | claim_intents.DeallocateClaim | claim_intents.DeleteClaim
"""Intents that take something back."""

_NAME_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5


class UnsupportedIntent(BayplanError):
    """An intent that cannot be carried out here."""


class ClaimWrites:
    """Carries out the intents of `devices`. `claims` is the resource of claims as the server offers it."""

    def __init__(
        self,
        client: Client,
        confirmed: ConfirmedWrites,
        patches: GuardedPatches,
        clock: Clock,
        claims: GroupVersionResource | None,
        observer: SchedulerObserver,
    ) -> None:
        self._client = client
        self._confirmed = confirmed
        self._patches = patches
        self._clock = clock
        self._claims = claims
        self._observer = observer
        self._withdrawals: dict[str, set[asyncio.Task[Any]]] = {}  # by claim key: all that are under way

    def track_release(self, intent: ClaimRelease, task: asyncio.Task[Any]) -> None:
        """A write that takes something back is under way: later reservations of the claim wait for it."""
        key = intent.claim.key
        self._withdrawals.setdefault(key, set()).add(task)
        task.add_done_callback(lambda done: self._on_release_done(key, done))

    def _on_release_done(self, key: str, task: asyncio.Task[Any]) -> None:
        tasks = self._withdrawals[key]
        tasks.remove(task)
        if not tasks:
            del self._withdrawals[key]

    async def reserve(self, intent: claim_intents.ReserveClaim) -> ResourceClaim:
        claim = intent.claim
        if withdrawals := self._withdrawals.get(claim.key):
            await asyncio.wait(set(withdrawals))
            claim = await self._client.get(ResourceClaim, claim.namespace, claim.name, resource=self._resource())

        async def attempt(claim: ResourceClaim) -> ResourceClaim:
            return claim if intent.is_done(claim) else await self._reserve_once(intent, claim)

        try:
            return await self._patches.repeat(claim, attempt, resource=self._resource())
        except Conflict as refusal:
            raise ApiError(f"{intent.describe()}: {refusal.details}", code=409, reason="Conflict") from refusal

    async def _reserve_once(self, intent: claim_intents.ReserveClaim, claim: ResourceClaim) -> ResourceClaim:
        finalizer = intent.finalizer_patch(claim)
        if finalizer is not None:
            with _ErrorContext(intent.describe(finalizer=True)):
                claim = await self._patch(claim, finalizer, is_done=lambda found: _is_protected(found))
        with _ErrorContext(intent.describe()):
            return await self._patch(claim, intent.status_patch(claim), is_done=intent.is_done, subresource="status")

    async def create(self, intent: claim_intents.CreateSpecialClaim) -> ResourceClaim:
        """The name is chosen here and not by the server, so that a repeated POST finds the claim it has created."""
        namespace, suffix = intent.claim.namespace, self._suffix(intent)

        async def send() -> ResourceClaim:
            body = intent.manifest(suffix)
            return await self._client.create_typed(ResourceClaim, body, namespace=namespace, resource=self._resource())

        async def find() -> WriteState[ResourceClaim]:
            try:
                name = intent.name(suffix)
                found = await self._client.get(ResourceClaim, namespace, name, resource=self._resource())
            except NotFound:
                return NotWritten.SO_FAR
            return ConfirmedWrite(found) if intent.is_done(found) else NotWritten.FOR_EVER

        result = FAILED
        try:
            with _ErrorContext(intent.describe()):
                claim = await self._confirmed.write(send, find, what=f"creating a claim for pod {intent.pod.key}")
            result = SUCCEEDED
            return claim
        finally:
            self._observer.observe_claim_created(result)

    def _suffix(self, intent: claim_intents.CreateSpecialClaim) -> str:
        """Differs between pods and between attempts, and needs no generator of random numbers."""
        seed = f"{intent.pod.uid} {self._clock.now().isoformat()}"
        digest = hashlib.sha256(seed.encode()).digest()
        return "".join(_NAME_CHARACTERS[byte % len(_NAME_CHARACTERS)] for byte in digest[:_SUFFIX_LENGTH])

    async def record(self, intent: claim_intents.RecordSpecialClaim) -> None:
        async def attempt(pod: Pod) -> Pod:
            if intent.is_done(pod):
                return pod
            return await self._patches.patch(
                pod, intent.patch(pod), is_done=intent.is_done, subresource="status", kind=STRATEGIC_PATCH
            )

        with _ErrorContext(intent.describe()):
            await self._patches.repeat(intent.pod, attempt)

    async def unreserve(self, intent: claim_intents.UnreserveClaim) -> None:
        async def attempt(claim: ResourceClaim) -> ResourceClaim:
            if intent.is_done(claim):
                return claim
            patch = intent.patch(claim)
            how = {"subresource": "status", "kind": STRATEGIC_PATCH}
            return await self._patch(claim, patch, is_done=intent.is_done, **how)

        await self._patches.repeat(intent.claim, attempt, resource=self._resource())

    async def deallocate(self, intent: claim_intents.DeallocateClaim) -> None:
        await self._patch(intent.claim, intent.patch(), is_done=intent.is_done, subresource="status")

    async def delete(self, intent: claim_intents.DeleteClaim) -> None:
        async def attempt(claim: ResourceClaim) -> ResourceClaim:
            patch = intent.finalizer_patch(claim)
            if patch is None:
                return claim
            return await self._patch(claim, patch, is_done=lambda found: not _is_protected(found))

        try:
            claim = await self._patches.repeat(intent.claim, attempt, resource=self._resource())
        except NotFound:
            return
        await self._delete(claim)

    async def _delete(self, claim: ResourceClaim) -> None:
        async def send() -> None:
            await self._client.delete(
                self._resource(), name=claim.name, namespace=claim.namespace, uid=claim.metadata.uid
            )

        async def find() -> WriteState[None]:
            try:
                found = await self._client.get(ResourceClaim, claim.namespace, claim.name, resource=self._resource())
            except NotFound:
                return ConfirmedWrite(None)
            is_gone = found.metadata.uid != claim.metadata.uid or found.metadata.deletion_timestamp is not None
            return ConfirmedWrite(None) if is_gone else NotWritten.SO_FAR

        with contextlib.suppress(NotFound):
            await self._confirmed.write(send, find, what=f"deleting claim {claim.key}", trust_refusal=True)

    def _patch(
        self, claim: ResourceClaim, patch: dict[str, Any], *, kind: str = MERGE_PATCH, **how: Any
    ) -> Coroutine[Any, Any, ResourceClaim]:
        return self._patches.patch(claim, patch, kind=kind, resource=self._resource(), **how)

    def _resource(self) -> GroupVersionResource:
        if self._claims is None:
            raise UnsupportedIntent("the API server offers no resource claims, so devices cannot be reserved")
        return self._claims


def _is_protected(claim: ResourceClaim) -> bool:
    return FINALIZER in claim.metadata.finalizers


class _ErrorContext:
    """Makes failures of the API say what was being done. Conflicts are for the caller."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ApiError) and not isinstance(error, Conflict):
            described = ApiError(f"{self._doing}: {error.details}", code=error.code, reason=error.reason)
            described.outcome_unknown = error.outcome_unknown
            raise described from error
