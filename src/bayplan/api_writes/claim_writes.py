"""Writes device claims: reserves, creates, unreserves, deallocates and deletes them.

Used by `ApiWrites` for the intents of `devices`. A claim is shared with other pods and with the controllers, so every
patch has the resourceVersion that it changes and is made again after a conflict. A reservation waits for earlier
releases of the same claim: these would otherwise revert it. Cost: one or two requests for each intent.
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
"""Intents that release a claim."""

_NAME_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5


class UnsupportedIntent(BayplanError):
    """An intent that this process cannot perform."""


class ClaimWrites:
    """Performs the intents of `devices`. `claims`: the resource of claims as the API server serves it."""

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
        self._releases: dict[str, set[asyncio.Task[Any]]] = {}  # by claim key: all that are in progress

    def track_release(self, intent: ClaimRelease, task: asyncio.Task[Any]) -> None:
        """Register a release in progress: later reservations of the claim wait for it."""
        key = intent.claim.key
        self._releases.setdefault(key, set()).add(task)
        task.add_done_callback(lambda done: self._on_release_done(key, done))

    def _on_release_done(self, key: str, task: asyncio.Task[Any]) -> None:
        tasks = self._releases[key]
        tasks.remove(task)
        if not tasks:
            del self._releases[key]

    async def reserve(self, intent: claim_intents.ReserveClaim) -> ResourceClaim:
        claim = intent.claim
        if releases := self._releases.get(claim.key):
            await asyncio.wait(set(releases))
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
        """Create a claim. Its name is chosen here and not by the server, so that a repeated POST finds the created
        claim."""
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
        """Name suffix. Differs between pods and between attempts, without a random number generator."""
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
            options = {"subresource": "status", "kind": STRATEGIC_PATCH}
            return await self._patch(claim, patch, is_done=intent.is_done, **options)

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
            is_deleted = found.metadata.uid != claim.metadata.uid or found.metadata.deletion_timestamp is not None
            return ConfirmedWrite(None) if is_deleted else NotWritten.SO_FAR

        with contextlib.suppress(NotFound):
            await self._confirmed.write(send, find, what=f"deleting claim {claim.key}", trust_refusal=True)

    def _patch(
        self, claim: ResourceClaim, patch: dict[str, Any], *, kind: str = MERGE_PATCH, **options: Any
    ) -> Coroutine[Any, Any, ResourceClaim]:
        return self._patches.patch(claim, patch, kind=kind, resource=self._resource(), **options)

    def _resource(self) -> GroupVersionResource:
        if self._claims is None:
            raise UnsupportedIntent("the API server offers no resource claims, so devices cannot be reserved")
        return self._claims


def _is_protected(claim: ResourceClaim) -> bool:
    return FINALIZER in claim.metadata.finalizers


class _ErrorContext:
    """Adds a description of the operation to API errors. Conflicts pass unchanged: the caller handles them."""

    def __init__(self, operation: str) -> None:
        self._operation = operation

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ApiError) and not isinstance(error, Conflict):
            described = ApiError(f"{self._operation}: {error.details}", code=error.code, reason=error.reason)
            described.outcome_unknown = error.outcome_unknown
            raise described from error
