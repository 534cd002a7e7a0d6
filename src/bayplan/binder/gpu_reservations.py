"""Which device stands behind a GPU group? A pod that holds it, and says which one it is.

Fractional pods share a device that no kubelet may hand to others: a reservation pod asks for all of it, on the node,
and writes the device's id on itself. Its name follows from node and group, so that whoever comes after a crash finds
it. It goes when nobody uses the group and no request that may still be carried out names it.

Another binder may work in the same cluster, with the same groups. What we have made or labelled carries our mark, and
nothing else is ever deleted, unless everything was given to us: the device of a reservation that another binder has
made may be shared by our pods, and stays its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import msgspec

from bayplan.binder.view import View
from bayplan.binder.waiting import Waiting
from bayplan.client import (
    MERGE_PATCH,
    Client,
    ConfirmedWrites,
    Found,
    LateCreates,
    Missing,
    Selection,
    Written,
    resource_of,
)
from bayplan.config.reservation_settings import ReservationSettings
from bayplan.errors import AlreadyExists, ApiError, BayplanError, Conflict, NotFound, Unreachable
from bayplan.framework import steps
from bayplan.framework.steps import Reached
from bayplan.objects.bind_requests import OURS, TAKEN_BY, BindRequest, shares_on_its_node
from bayplan.objects.core import Node, Pod
from bayplan.objects.gpu_sharing import (
    DEVICE,
    GPU,
    GROUP_LABEL,
    RESERVATION_PREFIX,
    group_problem,
    groups_of,
    is_reservation,
)
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.telemetry.events import WARNING, EventRecorder

log = logging.getLogger(__name__)

APP_LABEL = "app"
_PODS = resource_of(kind_of(Pod))
_OVER = ("Succeeded", "Failed")
_TRIES = 5


class NoDevice(BayplanError):
    """A device could not be reserved, for now."""


class GpuReservations:
    """Reserves devices for groups, and gives back those that nobody uses."""

    def __init__(
        self,
        client: Client,
        view: View,
        settings: ReservationSettings,
        confirmed: ConfirmedWrites | None = None,
        *,
        takes_all: bool = False,
        waiting: Waiting = nullcontext,
        reached: Reached = steps.unarmed,
        speaker: EventRecorder | None = None,
    ) -> None:
        """`takes_all`: no other binder is at work here, and what carries no mark is ours, too. `speaker`: tells pods
        why they go."""
        self._client = client
        self._view = view
        self._settings = settings
        self._confirmed = confirmed or ConfirmedWrites(client.clock)
        self._takes_all = takes_all
        self._waiting = waiting
        self._reached = reached
        self._speaker = speaker
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()
        self._late_creates = LateCreates(self._confirmed)  # by the key of the reservation
        self._moved_from: set[str] = set()
        """Namespaces of which it was said that reservations are there, and not where they are to be."""

    # what the binder asks ---------------------------------------------------------------------------------------

    async def reserve(self, pod: Pod, node: Node, group: str, *, several: bool) -> str:
        async with self._alone(group):
            found, _ = await self._members(group)
            usable = (each for each in found if in_use(each) and not each.terminating)
            reservation = next((each for each in usable if each.spec.node_name == node.name), None)
            if reservation is None:
                reservation = await self._made(pod, node, group)
            device = reservation.metadata.annotations.get(DEVICE) or await self._told(reservation)
            self._reached(steps.RESERVED)
            await self._label(pod, group, several=several)
            self._reached(steps.LABELLED)
            return device

    async def leave_others(self, pod: Pod, groups: Sequence[str]) -> None:
        """Groups of a request before, which nobody took back: with their labels the pod would hold devices for as long
        as it lives, and use none of them."""

        def without_others(found: Pod) -> dict[str, str | None]:
            said = ((key, value) for key, value in found.labels.items() if key.partition("/")[0] == GROUP_LABEL)
            return {key: None for key, value in said if value not in groups}

        if without_others(pod):
            await self._change_labels(pod, without_others)

    async def release(self, pod: Pod, groups: Sequence[str]) -> None:
        """What ties a pod to devices of the node that it is on is not ours to take off, whichever request put it there;
        nor is the mark as long as it has any."""
        gone = [group for group in groups if not await self._is_on_device(pod, group)]
        stays = shares_on_its_node(pod) and groups_of(pod) - set(gone)
        await self._unlabel(pod, gone, mark=not stays)
        for group in groups:
            await self.sync_group(group)

    async def sync_node(self, node_name: str) -> None:
        """Repair every group of a node."""
        await self._sync_each(await self._groups_there(f"spec.nodeName={node_name}"))

    async def sync_all(self) -> None:
        """Repair every group that is known: those of reservations and their users, and those that requests name."""
        groups = await self._groups_there()
        groups |= {group for each in self._view.requests.values() for group in each.spec.selected_gpu_groups}
        await self._sync_each(groups)

    async def sync_group(self, group: str) -> None:
        """No reservation without users on its node, no users without a reservation.

        Who is being deleted counts until it is gone, on either side. A user in its grace period is on the device, which
        would be given to others with the reservation. A reservation in its grace period still holds the device, and
        the kubelet gives it to nobody: its users may come to an end by themselves, and go when it is really gone, of
        which a watch tells. What is going already is not deleted again.

        Both hold for what is ours. Who was bound by others is theirs to end, as is everybody in a group whose
        reservation they have made; as a user it counts whoever bound it. A name that no label can have is no group's:
        the request that has it is given up.
        """
        if group_problem(group):
            return
        async with self._alone(group):
            reservations, others = await self._members(group)
            users = [each for each in others if in_use(each)]
            unused = (each for each in reservations if not each.terminating and not _has_users(each, users))
            for each in filter(self._is_ours, unused):
                if not await self._is_wanted(group, each.spec.node_name):
                    log.info("GPU group %s has no users any more: reservation %s goes", group, each.key)
                    await self._delete_reservation(each)
            if users and all(self._is_ours(each) and not in_use(each) for each in reservations):  # ended: holds nothing
                for each in filter(self._is_ours, users):
                    if each.spec.node_name and each.status.phase == "Running" and not each.terminating:
                        log.warning("pod %s runs on GPU group %s, which nobody reserves: it goes", each.key, group)
                        self._say_farewell(each, group)
                        await self._delete(each)

    def is_reservation(self, pod: Pod) -> bool:
        return is_reservation(pod, self._settings.namespace)

    def is_busy(self, group: str) -> bool:
        """Whether somebody is at work on the group, of whom whoever comes has to wait for the end."""
        return self._users[group] > 0

    # inside -----------------------------------------------------------------------------------------------------

    async def _sync_each(self, groups: Iterable[str]) -> None:
        """What the server refuses for one group is told, and costs no other; where nobody answers it costs all. A group
        that somebody is at work on is left to it: who works there may wait for a device, and the others not for it."""
        for group in sorted(groups):
            if self.is_busy(group):
                continue
            try:
                await self.sync_group(group)
            except Unreachable:
                raise
            except ApiError as fault:
                log.warning("GPU group %s is not looked after: %s; trying again", group, fault)

    @asynccontextmanager
    async def _alone(self, group: str) -> AsyncIterator[None]:
        """One at a time for each group; locks that nobody waits for are not kept. Whoever has to wait for its turn
        keeps nobody else from work meanwhile: the one before may wait for a device."""
        lock = self._locks.setdefault(group, asyncio.Lock())
        self._users[group] += 1
        try:
            async with AsyncExitStack() as turn:
                async with self._waiting() if self._users[group] > 1 else nullcontext():
                    await turn.enter_async_context(lock)
                yield
        finally:
            self._users[group] -= 1
            if not self._users[group]:
                del self._users[group], self._locks[group]

    def _is_ours(self, pod: Pod) -> bool:
        """Whether we have made this reservation, or put this user on its device."""
        return self._takes_all or pod.labels.get(TAKEN_BY) == OURS

    async def _is_wanted(self, group: str, node_name: str) -> bool:
        """Whether a request that may still be carried out names the group, on this node, whoever is to do it."""
        names = partial(_names, group, node_name)
        if any(map(names, self._view.requests.values())):
            return True
        return not self._takes_all and any(map(names, await self._view.requests_of_others()))

    async def _groups_there(self, where: str = "") -> set[str]:
        """Of pods that carry their labels. Users of several devices have a label for each, of which nobody can select
        without knowing it: those that we have put there carry our mark."""
        found: set[str] = set()
        for labels in (GROUP_LABEL, f"{TAKEN_BY}={OURS}"):
            for each in await self._listed(Selection(label_selector=labels, field_selector=where)):
                found |= groups_of(each)
        return found

    async def _members(self, group: str) -> tuple[list[Pod], list[Pod]]:
        """Reservations and users of a group, also those that are going. Where reservations live now comes first: what
        was made elsewhere holds its device until nobody uses it, and no longer."""
        one = await self._listed(Selection(label_selector=f"{GROUP_LABEL}={group}"))
        several = await self._listed(Selection(label_selector=f"{GROUP_LABEL}/{group}"))
        reservations = [each for each in (*one, *several) if self.is_reservation(each)]
        self._say_where({each.namespace for each in reservations})
        users = [each for each in (*one, *several) if not self.is_reservation(each)]
        return sorted(reservations, key=lambda each: each.namespace != self._settings.namespace), users

    def _say_where(self, namespaces: set[str]) -> None:
        """Once for each namespace: whoever has moved reservations may take the old one away too early."""
        home = self._settings.namespace
        for namespace in sorted(namespaces - {home} - self._moved_from):
            self._moved_from.add(namespace)
            log.warning(
                "reservations of GPUs are in namespace %s, and new ones are made in %s: those hold their devices until "
                "nobody uses them, and the namespace has to stay so long",
                namespace,
                home,
            )

    async def _is_on_device(self, pod: Pod, group: str) -> bool:
        """Whether the device of the group is one of those that the pod was given where it is."""
        if not shares_on_its_node(pod) or group_problem(group):
            return False
        reservations, _ = await self._members(group)
        return any(each.spec.node_name == pod.spec.node_name for each in reservations)

    async def _listed(self, selection: Selection) -> list[Pod]:
        found = await self._client.list(_PODS, selection)
        return [each for each in found.items if isinstance(each, Pod)]

    async def _made(self, pod: Pod, node: Node, group: str) -> Pod:
        scaling = await self._listed(
            Selection(namespace=self._settings.scaling_pod_namespace, field_selector="spec.nodeName=")
        )
        if any(not each.terminating for each in scaling):
            raise NoDevice("the cluster is being scaled for pods that share devices; nothing is reserved meanwhile")
        await self._check_user(pod)
        body = self._manifest(pod, node, group)
        namespace, name = self._settings.namespace, body["metadata"]["name"]

        async def send() -> Pod:
            try:
                return await self._client.created(Pod, body, namespace=namespace)
            except ApiError as refusal:
                self._late_creates.note(f"{namespace}/{name}", refusal)
                raise

        async def find() -> Found[Pod]:
            try:
                found = await self._client.get(Pod, namespace, name)
            except NotFound:
                return Missing.SO_FAR
            is_ours = found.spec.node_name == node.name and found.labels.get(GROUP_LABEL) == group
            return Written(found) if is_ours and in_use(found) and not found.terminating else Missing.FOR_EVER

        what = f"creating the reservation {namespace}/{name}"
        try:
            return await self._confirmed.write(send, find, what=what)
        except NotFound as fault:
            wanted = f"create {namespace}, in which resourceReservation.namespace has pods that hold shared devices"
            raise NoDevice(f"no device can be reserved: {fault}; {wanted}") from None
        except AlreadyExists:
            found = await self._client.get(Pod, namespace, name)
            if not in_use(found):
                if not self._is_ours(found):
                    raise NoDevice(f"the reservation {found.key} has ended; whoever made it has to delete it") from None
                await self._delete_reservation(found)
                raise NoDevice(f"the reservation {found.key} has ended; it is made anew when it is gone") from None
            if found.terminating:
                raise NoDevice(f"the reservation {found.key} of an earlier pod is still going") from None
            return found

    async def _check_user(self, pod: Pod) -> None:
        """A process that was stopped may still act for a pod that is gone. The scheduler has given its device away."""
        try:
            found = await self._client.get(Pod, pod.namespace, pod.name)
        except NotFound:
            found = None
        if found is None or found.uid != pod.uid or found.terminating:
            raise NoDevice(f"pod {pod.key} is gone, so no device is reserved for it")

    def _manifest(self, pod: Pod, node: Node, group: str) -> dict[str, Any]:
        settings, device = self._settings, {GPU: "1"}
        also, runtime = settings.pod_resources, settings.runtime_class_name
        fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "NODE_NAME": "spec.nodeName"}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": reservation_name(node.name, group),
                "namespace": settings.namespace,
                "labels": {GROUP_LABEL: group, APP_LABEL: settings.app_label, TAKEN_BY: OURS},
                "annotations": {"karpenter.sh/do-not-disrupt": "true"},
            },
            "spec": {
                "nodeName": node.name,
                "serviceAccountName": settings.service_account_name,
                **({"runtimeClassName": runtime} if runtime else {}),
                "tolerations": msgspec.to_builtins(pod.spec.tolerations),
                "containers": [
                    {
                        "name": "reservation",
                        "image": settings.image,
                        "resources": {"requests": also.requests | device, "limits": also.limits | device},
                        "env": [
                            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                            for name, path in fields.items()
                        ],
                    }
                ],
            },
        }

    async def _told(self, reservation: Pod) -> str:
        """Which device it holds, as soon as it says so."""
        known: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def hear(_: KubeObject | None, new: KubeObject | None) -> None:
            device = new.metadata.annotations.get(DEVICE) if new is not None else None
            if device and not known.done():
                known.set_result(device)
            elif new is None and not known.done():
                known.set_exception(NoDevice(f"the reservation {reservation.key} went before it held a device"))

        selection = Selection(
            namespace=reservation.namespace, field_selector=f"metadata.name={reservation.metadata.name}"
        )
        watching = asyncio.ensure_future(self._client.informer(_PODS, hear, selection=selection).run())
        waiting = asyncio.ensure_future(self._client.clock.sleep(self._settings.patience_s))
        try:
            async with self._waiting():
                await asyncio.wait((known, waiting), return_when=asyncio.FIRST_COMPLETED)
            if known.done():
                return known.result()
        finally:
            for task in (watching, waiting):
                task.cancel()
            await asyncio.gather(watching, waiting, return_exceptions=True)
        if self._is_ours(reservation):
            await self._delete_reservation(reservation)
        patience_s = self._settings.patience_s
        raise NoDevice(f"the reservation {reservation.key} has not said for {patience_s:.0f} s which device it holds")

    async def _label(self, pod: Pod, group: str, *, several: bool) -> None:
        """Whatever the pod is known to say: we may have taken the label off since the watch told of it."""
        key = f"{GROUP_LABEL}/{group}" if several else GROUP_LABEL
        await self._change_labels(pod, lambda _: {key: group, TAKEN_BY: OURS})

    async def _change_labels(self, pod: Pod, wanted: Callable[[Pod], Mapping[str, str | None]]) -> None:
        """Only as long as the pod waits: once it has a node its labels say which devices it has there."""
        found = pod
        for tries_left in reversed(range(_TRIES)):
            if found.uid != pod.uid or found.spec.node_name:
                raise Conflict(f"pod {pod.key} does not wait for a node any more")
            try:
                await self._patch_labels(found, wanted(found))
                return
            except ApiError as refusal:
                # The version lets one patch of two through, so one with an unknown outcome is sent again.
                if not tries_left or not (isinstance(refusal, Conflict | NotFound) or refusal.outcome_unknown):
                    raise
            found = await self._client.get(Pod, pod.namespace, pod.name)

    async def _unlabel(self, pod: Pod, groups: Sequence[str], *, mark: bool = True) -> None:
        """Remove the labels of these groups that have the value we wrote. `mark`: also the label that names us.

        The patch names the version that it changes: applied late, it must not remove the labels of a later attempt.
        """
        wanted = {**{f"{GROUP_LABEL}/{group}": {group} for group in groups}, GROUP_LABEL: set(groups)}
        if mark:
            wanted[TAKEN_BY] = {OURS}
        for tries_left in reversed(range(_TRIES)):
            with contextlib.suppress(NotFound):
                found = await self._client.get(Pod, pod.namespace, pod.name)
                removed = {key: None for key, values in wanted.items() if found.labels.get(key) in values}
                if found.uid != pod.uid or not removed:
                    return
                try:
                    await self._patch_labels(found, removed)
                except ApiError as refusal:
                    if not tries_left or not (isinstance(refusal, Conflict | NotFound) or refusal.outcome_unknown):
                        raise
                    continue
            return

    async def _patch_labels(self, pod: Pod, labels: Mapping[str, str | None]) -> None:
        """Patch this version of a pod. Returns or raises when the patch cannot take effect later.

        The version alone is not enough: a later attempt that writes what is there already does not change it.
        """
        version = pod.metadata.resource_version
        body = {"metadata": {"uid": pod.uid, "resourceVersion": version, "labels": labels}}

        async def send() -> None:
            await self._client.patch(_PODS, body, name=pod.name, namespace=pod.namespace, kind=MERGE_PATCH)

        async def find() -> Found[None]:
            try:
                found = await self._client.get(Pod, pod.namespace, pod.name)
            except NotFound:
                return Missing.FOR_EVER
            return Missing.SO_FAR if found.metadata.resource_version == version else Missing.FOR_EVER

        await self._confirmed.write(send, find, what=f"labelling pod {pod.key}", trust_refusal=True)

    def _say_farewell(self, pod: Pod, group: str) -> None:
        if self._speaker is not None:
            note = f"Pod {pod.key} is deleted: nobody reserves the device of its GPU group {group} any more"
            self._speaker.event(
                pod, type=WARNING, reason="GPUNotReserved", action="Deleting", note=f"{note}, and others could get it"
            )

    async def _delete_reservation(self, pod: Pod) -> None:
        """Delete a reservation, unless a create of its name may still reach the API server and bring it back.

        Then it stays until the next look at its group: an orphan would hold a device that another pod was given.
        """
        if self._late_creates.until_s(pod.key) is not None:
            log.info("reservation %s stays until no earlier create of it can take effect any more", pod.key)
            return
        await self._delete(pod)

    async def _delete(self, pod: Pod) -> None:
        """Delete a pod. Returns when it is going or gone, and raises when the DELETE cannot take effect any more.

        Until then the group is locked: the next attempt must not use a reservation that a late DELETE still removes.
        """

        async def send() -> None:
            with contextlib.suppress(NotFound, Conflict):
                await self._client.delete(_PODS, name=pod.name, namespace=pod.namespace, uid=pod.uid)

        async def find() -> Found[None]:
            try:
                found = await self._client.get(Pod, pod.namespace, pod.name)
            except NotFound:
                return Written(None)
            return Written(None) if found.uid != pod.uid or found.terminating else Missing.SO_FAR

        try:
            await self._confirmed.write(send, find, what=f"deleting pod {pod.key}", trust_refusal=True)
        except ApiError as fault:
            log.warning("pod %s could not be deleted: %s", pod.key, fault)
            raise


def _names(group: str, node_name: str, request: BindRequest) -> bool:
    asked = group in request.spec.selected_gpu_groups and request.spec.selected_node == node_name
    return asked and request.is_live and not request.has_succeeded


def _has_users(reservation: Pod, users: Iterable[Pod]) -> bool:
    """Whether somebody is on the device, or may come to be: who has no node yet may come to any."""
    return any(each.spec.node_name in ("", reservation.spec.node_name) for each in users)


def in_use(pod: Pod) -> bool:
    """Whether a pod is on its device, or may come to be: Pending or Running, whoever wants it deleted."""
    return pod.status.phase not in _OVER


def reservation_name(node_name: str, group: str) -> str:
    """One name for a device's reservation, whoever makes it."""
    return f"{RESERVATION_PREFIX}{hashlib.sha256(f'{node_name}/{group}'.encode()).digest()[:8].hex()}"
