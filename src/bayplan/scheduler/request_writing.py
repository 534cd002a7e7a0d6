"""How does a BindRequest come to be, and go? What is there under its name already decides.

Asked by `ApiWrites` for the intents of both engines. Cost: one request; four where a leftover is in the way, and
one more where that cannot be read.
"""

from __future__ import annotations

import logging

from bayplan.client import Client, ConfirmedWrites, Found, LateCreates, Missing, Written, resource_of
from bayplan.errors import AlreadyExists, ApiError, Conflict, NotFound, ObjectError
from bayplan.framework.intents import CreateBindRequest, DeleteBindRequest
from bayplan.objects.bind_requests import OURS, TAKEN_BY, BindRequest, as_far_as_readable, manifest_text
from bayplan.objects.kinds import kind_of

BIND_REQUESTS = resource_of(kind_of(BindRequest))

log = logging.getLogger(__name__)


class RequestWrites:
    """Creates and deletes BindRequests."""

    def __init__(self, client: Client, confirmed: ConfirmedWrites | None = None) -> None:
        self._client = client
        self._confirmed = confirmed or ConfirmedWrites(client.clock)
        self._late_creates = LateCreates(self._confirmed)  # by the uid of the pod

    async def create(self, intent: CreateBindRequest) -> BindRequest:
        """Create a request. Raises only when the binder cannot find one: the pod's capacity is free then."""

        async def find() -> Found[BindRequest]:
            pod = intent.pod
            try:
                found = await self._client.get(BindRequest, pod.namespace, pod.name, resource=BIND_REQUESTS)
            except (NotFound, ObjectError):
                return Missing.SO_FAR
            return Written(found) if self._is_wanted(found, intent) else Missing.SO_FAR

        node = intent.request.spec.selected_node
        what = f"creating the bind request of pod {intent.pod.key} to node {node}"
        return await self._confirmed.write(lambda: self._create_once(intent), find, what=what)

    @staticmethod
    def _is_wanted(found: BindRequest, intent: CreateBindRequest) -> bool:
        is_going = found.metadata.deletion_timestamp is not None
        is_to_node = found.spec.selected_node == intent.request.spec.selected_node
        return found.is_for(intent.pod) and is_to_node and not found.is_given_up and not is_going

    async def _create_once(self, intent: CreateBindRequest) -> BindRequest:
        pod = intent.pod
        try:
            return await self._post(intent)
        except AlreadyExists:
            there = await self._there(pod.namespace, pod.name, pod.uid)
        if there is not None:
            if self._is_same(there, intent):
                return there
            if there.is_for(pod) and self._late_creates.until_s(pod.uid) is not None:
                raise _in_the_way(f"the bind request {there.key} was given up, and {_MAY_COME_BACK}")
            await self._delete(DeleteBindRequest(there))
        return await self._post(intent)

    async def _post(self, intent: CreateBindRequest) -> BindRequest:
        body, pod = manifest_text(intent.request), intent.pod
        try:
            return await self._client.created(BindRequest, body, namespace=pod.namespace, resource=BIND_REQUESTS)
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
        meta, there = intent.request.metadata, None
        try:
            await self._client.delete(
                BIND_REQUESTS,
                name=meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version if intent.unchanged else "",
            )
        except NotFound:
            there = await self._there(meta.namespace, meta.name, intent.request.pod_uid)
            if there is not None and there.metadata.uid == meta.uid:
                raise  # it is there and may be carried out: its pod keeps its node
        except Conflict:
            if intent.then is None:
                raise
            there = await self._there(meta.namespace, meta.name, intent.request.pod_uid)
        if intent.then is not None:
            intent.then(there)

    async def _there(self, namespace: str, name: str, pod_uid: str) -> BindRequest | None:
        try:
            return await self._client.get(BindRequest, namespace, name, resource=BIND_REQUESTS)
        except NotFound:
            return None  # it went between the two questions
        except ObjectError as fault:
            unread = fault
        try:
            found = as_far_as_readable(await self._client.get_raw(BIND_REQUESTS, namespace, name))
        except NotFound:
            return None
        # Nobody can carry it out. It is a leftover once the binder has given it up; until then it is in the way.
        if found.is_ours and (found.is_given_up or found.pod_uid not in ("", pod_uid)):
            return found
        raise unread

    @staticmethod
    def _is_same(there: BindRequest, intent: CreateBindRequest) -> bool:
        """Whether what is there is what we want; false: it is a leftover. Raises where it is in the way."""
        if there.is_given_up:
            return False
        if not there.is_for(intent.pod):
            if there.has_succeeded or (there.is_ours and there.spec.pod_name == intent.pod.name):
                return False
            raise _in_the_way(
                f"the bind request {there.key} is in the way: it is a live one for {_meant(there)}, and not ours to "
                "delete; whoever made it can"
            )
        if there.metadata.deletion_timestamp is not None:
            raise Conflict(f"the bind request {there.key} is being deleted; it is made anew when it is gone", code=409)
        if there.spec.selected_node == intent.request.spec.selected_node:
            return True
        who = "the binder" if there.is_ours else f"it is not ours ({TAKEN_BY}: {OURS} is lacking), so another binder"
        raise _in_the_way(
            f"pod {intent.pod.key} already has a live bind request, to node {there.spec.selected_node}; "
            f"{who} carries that one out, or gives it up, first"
        )


_MAY_COME_BACK = "an earlier create of it, whose outcome is unknown, could bring it back"


def _in_the_way(text: str) -> ApiError:
    return ApiError(text, code=409, reason="Conflict")


def _meant(there: BindRequest) -> str:
    """Whom a request is for that is not for the pod of its name."""
    if there.spec.pod_name != there.metadata.name:
        return f"pod {there.pod_key}"
    return f"an earlier pod of that name, with uid {there.pod_uid}"
