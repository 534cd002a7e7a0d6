"""Creates and deletes BindRequests. An existing request with the same name decides what a create does.

Called by `ApiWrites` for the intents of both engines. Cost: one request; four if a leftover has the name, and one more
if it cannot be decoded.
"""

from __future__ import annotations

import logging

from bayplan.client import Client, ConfirmedWrite, ConfirmedWrites, LateCreates, NotWritten, WriteState, resource_of
from bayplan.errors import AlreadyExists, ApiError, Conflict, NotFound, ObjectError
from bayplan.intents.pod_intents import CreateBindRequest, DeleteBindRequest
from bayplan.objects.kai.bind_request import (
    HANDLED_BY_BAYPLAN,
    HANDLED_BY_LABEL,
    BindRequest,
    decode_readable_fields,
    manifest_text,
)
from bayplan.objects.kinds import kind_of

BIND_REQUESTS = resource_of(kind_of(BindRequest))

log = logging.getLogger(__name__)


class BindRequestWrites:
    def __init__(self, client: Client, confirmed: ConfirmedWrites | None = None) -> None:
        self._client = client
        self._confirmed = confirmed or ConfirmedWrites(client.clock)
        self._late_creates = LateCreates(self._confirmed)  # by the uid of the pod

    async def create(self, intent: CreateBindRequest) -> BindRequest:
        """Create a request. Raises only when the binder cannot find one: the pod's capacity is free then."""

        async def find() -> WriteState[BindRequest]:
            pod = intent.pod
            try:
                found = await self._client.get(BindRequest, pod.namespace, pod.name, resource=BIND_REQUESTS)
            except (NotFound, ObjectError):
                return NotWritten.SO_FAR
            return ConfirmedWrite(found) if self._is_wanted(found, intent) else NotWritten.SO_FAR

        node = intent.request.spec.selected_node
        what = f"creating the bind request of pod {intent.pod.key} to node {node}"
        return await self._confirmed.write(lambda: self._create_once(intent), find, what=what)

    @staticmethod
    def _is_wanted(found: BindRequest, intent: CreateBindRequest) -> bool:
        is_terminating = found.metadata.deletion_timestamp is not None
        is_to_node = found.spec.selected_node == intent.request.spec.selected_node
        return found.is_for(intent.pod) and is_to_node and not found.has_failed and not is_terminating

    async def _create_once(self, intent: CreateBindRequest) -> BindRequest:
        pod = intent.pod
        try:
            return await self._post(intent)
        except AlreadyExists:
            existing = await self._read_existing(pod.namespace, pod.name, pod.uid)
        if existing is not None:
            if self._is_same_request(existing, intent):
                return existing
            if existing.is_for(pod) and self._late_creates.until_s(pod.uid) is not None:
                raise _name_conflict(f"the bind request {existing.key} was given up, and {_MAY_COME_BACK}")
            await self._delete(DeleteBindRequest(existing))
        return await self._post(intent)

    async def _post(self, intent: CreateBindRequest) -> BindRequest:
        body, pod = manifest_text(intent.request), intent.pod
        try:
            return await self._client.create_typed(BindRequest, body, namespace=pod.namespace, resource=BIND_REQUESTS)
        except ApiError as refusal:
            self._late_creates.note(pod.uid, refusal)
            raise

    async def delete(self, intent: DeleteBindRequest) -> None:
        """Delete a request, unless an earlier create of it may still take effect: then it blocks that create."""
        until_s = self._late_creates.until_s(intent.request.pod_uid)
        if until_s is None:
            await self._delete(intent)
            return
        log.info("bind request %s is not deleted yet: %s", intent.request.key, _MAY_COME_BACK)
        if intent.postponed is not None:
            intent.postponed(until_s)

    async def _delete(self, intent: DeleteBindRequest) -> None:
        meta, existing = intent.request.metadata, None
        try:
            await self._client.delete(
                BIND_REQUESTS,
                name=meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version if intent.only_if_unchanged else "",
            )
        except NotFound:
            there = await self._read_existing(meta.namespace, meta.name, intent.request.pod_uid)
            if there is not None and there.metadata.uid == meta.uid:
                raise  # it still exists and may be carried out: its pod keeps its node
        except Conflict:
            if intent.on_deleted is None:
                raise
            existing = await self._read_existing(meta.namespace, meta.name, intent.request.pod_uid)
        if intent.on_deleted is not None:
            intent.on_deleted(existing)

    async def _read_existing(self, namespace: str, name: str, pod_uid: str) -> BindRequest | None:
        try:
            return await self._client.get(BindRequest, namespace, name, resource=BIND_REQUESTS)
        except NotFound:
            return None  # deleted since the create
        except ObjectError as fault:
            undecodable = fault
        try:
            found = decode_readable_fields(await self._client.get_raw(BIND_REQUESTS, namespace, name))
        except NotFound:
            return None
        # No binder can carry it out. Once the binder has given it up it is a leftover; before that it blocks the name.
        if found.is_handled_by_bayplan and (found.has_failed or found.pod_uid not in ("", pod_uid)):
            return found
        raise undecodable

    @staticmethod
    def _is_same_request(existing: BindRequest, intent: CreateBindRequest) -> bool:
        """Whether the existing request is the wanted one; False: it is a leftover. Raises if it blocks the create."""
        if existing.has_failed:
            return False
        if not existing.is_for(intent.pod):
            if existing.has_succeeded or (existing.is_handled_by_bayplan and existing.spec.pod_name == intent.pod.name):
                return False
            raise _name_conflict(
                f"the bind request {existing.key} has the name that is needed: it is a live one for "
                f"{_target_text(existing)} that Bayplan did not create; its creator has to delete it"
            )
        if existing.metadata.deletion_timestamp is not None:
            raise Conflict(
                f"the bind request {existing.key} is being deleted; it is created again after that", code=409
            )
        if existing.spec.selected_node == intent.request.spec.selected_node:
            return True
        binder = (
            "the binder"
            if existing.is_handled_by_bayplan
            else f"another binder (it has no label {HANDLED_BY_LABEL}: {HANDLED_BY_BAYPLAN})"
        )
        raise _name_conflict(
            f"pod {intent.pod.key} already has a live bind request, to node {existing.spec.selected_node}; "
            f"{binder} has to carry that one out or give it up first"
        )


_MAY_COME_BACK = "an earlier create of it, whose outcome is unknown, could bring it back"


def _name_conflict(text: str) -> ApiError:
    return ApiError(text, code=409, reason="Conflict")


def _target_text(existing: BindRequest) -> str:
    """The pod of a request that is not for the current pod of its name."""
    if existing.spec.pod_name != existing.metadata.name:
        return f"pod {existing.pod_key}"
    return f"an earlier pod of that name, with uid {existing.pod_uid}"
