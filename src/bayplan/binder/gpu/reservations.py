"""GPU reservation pods: each holds the device behind one GPU group, and reports the device's id.

Fractional pods share a device that no kubelet may allocate to another pod. So a reservation pod on the node requests
the whole device and writes its id into an annotation. Its name is a hash of node and group, so that a process finds it
after a crash. It is deleted when the group has no users and no active request names it.

Another binder may run in the same cluster, with the same groups. What this binder creates or labels has its own label,
and nothing else is deleted, unless the settings give it all groups: the device of a reservation of another binder may
be shared by our pods, and the reservation stays that binder's.
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

from bayplan.api_writes import crash_points
from bayplan.api_writes.crash_points import CrashPointCallback
from bayplan.binder.cancellable_waits import WaitContext
from bayplan.binder.informer_cache import InformerCache
from bayplan.client import (
    MERGE_PATCH,
    Client,
    ConfirmedWrite,
    ConfirmedWrites,
    LateCreates,
    NotWritten,
    Selection,
    WriteState,
    resource_of,
)
from bayplan.config.reservation_settings import ReservationSettings
from bayplan.errors import AlreadyExists, ApiError, BayplanError, Conflict, NotFound, Unreachable
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import (
    HANDLED_BY_BAYPLAN,
    HANDLED_BY_LABEL,
    BindRequest,
    is_bound_with_shared_gpus,
)
from bayplan.objects.kai.gpu_sharing import (
    DEVICE_INDEX_ANNOTATION,
    GPU,
    GROUP_LABEL,
    RESERVATION_PREFIX,
    gpu_group_error,
    gpu_groups_of,
    is_reservation,
)
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.telemetry.events import WARNING, EventRecorder

log = logging.getLogger(__name__)

APP_LABEL = "app"
_PODS = resource_of(kind_of(Pod))
_TERMINAL_PHASES = ("Succeeded", "Failed")
_MAX_TRIES = 5


class DeviceNotReserved(BayplanError):
    """A device could not be reserved for now."""


class GpuReservations:
    """Reserves devices for groups, and releases those without users."""

    def __init__(
        self,
        client: Client,
        view: InformerCache,
        settings: ReservationSettings,
        confirmed: ConfirmedWrites | None = None,
        *,
        takes_all: bool = False,
        waiting: WaitContext = nullcontext,
        on_crash_point: CrashPointCallback = crash_points.ignore_crash_point,
        recorder: EventRecorder | None = None,
    ) -> None:
        """`takes_all`: no other binder runs in the cluster, so reservations without our label belong to this one, too.
        `recorder`: records why users are deleted."""
        self._client = client
        self._view = view
        self._settings = settings
        self._confirmed = confirmed or ConfirmedWrites(client.clock)
        self._takes_all = takes_all
        self._waiting = waiting
        self._on_crash_point = on_crash_point
        self._recorder = recorder
        self._locks: dict[str, asyncio.Lock] = {}
        self._lock_users: Counter[str] = Counter()
        self._late_creates = LateCreates(self._confirmed)  # by the key of the reservation
        self._warned_namespaces: set[str] = set()
        """Namespaces for which `_warn_other_namespaces` has logged its warning."""

    # methods for the binder

    async def reserve(self, pod: Pod, node: Node, group: str, *, several: bool) -> str:
        async with self._group_lock(group):
            found, _ = await self._members(group)
            usable = (each for each in found if is_using_device(each) and not each.terminating)
            reservation = next((each for each in usable if each.spec.node_name == node.name), None)
            if reservation is None:
                reservation = await self._create_reservation(pod, node, group)
            device = reservation.metadata.annotations.get(DEVICE_INDEX_ANNOTATION) or await self._wait_for_device_index(
                reservation
            )
            self._on_crash_point(crash_points.GPU_RESERVED)
            await self._add_group_label(pod, group, several=several)
            self._on_crash_point(crash_points.POD_LABELLED)
            return device

    async def remove_other_groups(self, pod: Pod, groups: Sequence[str]) -> None:
        """Remove the labels of groups of an earlier request without a rollback: with them the pod would hold devices
        for all its life without using them."""

        def outdated_labels(found: Pod) -> dict[str, str | None]:
            labels = ((key, value) for key, value in found.labels.items() if key.partition("/")[0] == GROUP_LABEL)
            return {key: None for key, value in labels if value not in groups}

        if outdated_labels(pod):
            await self._change_labels(pod, outdated_labels)

    async def release(self, pod: Pod, groups: Sequence[str]) -> None:
        """Remove the pod's labels of these groups, and sync the groups. Labels of devices on the node that the pod is
        on stay, whichever request set them. Our own label stays as long as the pod has any."""
        released = [group for group in groups if not await self._is_on_device(pod, group)]
        stays = is_bound_with_shared_gpus(pod) and gpu_groups_of(pod) - set(released)
        await self._remove_group_labels(pod, released, mark=not stays)
        for group in groups:
            await self.sync_group(group)

    async def sync_node(self, node_name: str) -> None:
        await self._sync_each(await self._existing_groups(f"spec.nodeName={node_name}"))

    async def sync_all(self) -> None:
        """Repair every known group: those of reservations and their users, and those that requests name."""
        groups = await self._existing_groups()
        groups |= {group for each in self._view.requests.values() for group in each.spec.selected_gpu_groups}
        await self._sync_each(groups)

    async def sync_group(self, group: str) -> None:
        """Delete reservations without users on their node, and running users without a reservation.

        A terminating pod counts until it is deleted, on either side. A terminating user still uses the device, which
        would be given to another pod with the reservation. A terminating reservation still holds the device, and the
        kubelet allocates it to no pod: its users may end by themselves, and are deleted only after the reservation. A
        watch shows that. A terminating pod is not deleted again.

        Both rules apply to our pods only. Pods that another binder bound are its own to delete, and so are all users of
        a group whose reservation it created; as users they count in any case. A name that is no valid label value is no
        group: its request fails.
        """
        if gpu_group_error(group):
            return
        async with self._group_lock(group):
            reservations, members = await self._members(group)
            users = [each for each in members if is_using_device(each)]
            unused = (each for each in reservations if not each.terminating and not _has_users(each, users))
            for each in filter(self._is_ours, unused):
                if not await self._is_requested(group, each.spec.node_name):
                    log.info("GPU group %s has no users: deleting reservation %s", group, each.key)
                    await self._delete_reservation(each)
            # reservations that have ended hold nothing
            if users and all(self._is_ours(each) and not is_using_device(each) for each in reservations):
                for each in filter(self._is_ours, users):
                    if each.spec.node_name and each.status.phase == "Running" and not each.terminating:
                        log.warning("pod %s runs on GPU group %s without a reservation: deleting it", each.key, group)
                        self._record_unreserved(each, group)
                        await self._delete(each)

    def is_reservation(self, pod: Pod) -> bool:
        return is_reservation(pod, self._settings.namespace)

    def is_busy(self, group: str) -> bool:
        """Whether a task has locked the group, or waits for that: another one would have to wait."""
        return self._lock_users[group] > 0

    # internal

    async def _sync_each(self, groups: Iterable[str]) -> None:
        """Sync the groups. A refusal of the API server affects one group; an unreachable server ends the loop. A locked
        group is skipped: the task that locked it may wait for a device, and the loop must not wait for that."""
        for group in sorted(groups):
            if self.is_busy(group):
                continue
            try:
                await self.sync_group(group)
            except Unreachable:
                raise
            except ApiError as fault:
                log.warning("cannot sync GPU group %s: %s; retrying", group, fault)

    @asynccontextmanager
    async def _group_lock(self, group: str) -> AsyncIterator[None]:
        """A lock for each group; locks without users are dropped. A task that has to wait for it releases its worker
        meanwhile, because the task before may wait for a device."""
        lock = self._locks.setdefault(group, asyncio.Lock())
        self._lock_users[group] += 1
        try:
            async with AsyncExitStack() as turn:
                async with self._waiting() if self._lock_users[group] > 1 else nullcontext():
                    await turn.enter_async_context(lock)
                yield
        finally:
            self._lock_users[group] -= 1
            if not self._lock_users[group]:
                del self._lock_users[group], self._locks[group]

    def _is_ours(self, pod: Pod) -> bool:
        """Whether this binder created the reservation, or put this user on its device."""
        return self._takes_all or pod.labels.get(HANDLED_BY_LABEL) == HANDLED_BY_BAYPLAN

    async def _is_requested(self, group: str, node_name: str) -> bool:
        """Whether an active request, for whichever binder, names the group on this node."""
        needs_group = partial(_needs_reservation, group, node_name)
        if any(map(needs_group, self._view.requests.values())):
            return True
        return not self._takes_all and any(map(needs_group, await self._view.list_foreign_requests()))

    async def _existing_groups(self, where: str = "") -> set[str]:
        """Groups of all labelled pods. Users of several devices have a label for each group, and a selector must know
        its key: such pods are selected by our own label."""
        found: set[str] = set()
        for labels in (GROUP_LABEL, f"{HANDLED_BY_LABEL}={HANDLED_BY_BAYPLAN}"):
            for each in await self._list_pods(Selection(label_selector=labels, field_selector=where)):
                found |= gpu_groups_of(each)
        return found

    async def _members(self, group: str) -> tuple[list[Pod], list[Pod]]:
        """Reservations and users of a group, with terminating ones. Reservations in the configured namespace come
        first: one elsewhere holds its device only as long as it has users."""
        one = await self._list_pods(Selection(label_selector=f"{GROUP_LABEL}={group}"))
        several = await self._list_pods(Selection(label_selector=f"{GROUP_LABEL}/{group}"))
        reservations = [each for each in (*one, *several) if self.is_reservation(each)]
        self._warn_other_namespaces({each.namespace for each in reservations})
        users = [each for each in (*one, *several) if not self.is_reservation(each)]
        return sorted(reservations, key=lambda each: each.namespace != self._settings.namespace), users

    def _warn_other_namespaces(self, namespaces: set[str]) -> None:
        """Warn once for each namespace: a user who moves reservations may delete the old namespace too early."""
        home = self._settings.namespace
        for namespace in sorted(namespaces - {home} - self._warned_namespaces):
            self._warned_namespaces.add(namespace)
            log.warning(
                "namespace %s has GPU reservations, and new ones are created in namespace %s; "
                "keep the old namespace until no pod uses its devices",
                namespace,
                home,
            )

    async def _is_on_device(self, pod: Pod, group: str) -> bool:
        """Whether the group's device is one of those that the pod has on its node."""
        if not is_bound_with_shared_gpus(pod) or gpu_group_error(group):
            return False
        reservations, _ = await self._members(group)
        return any(each.spec.node_name == pod.spec.node_name for each in reservations)

    async def _list_pods(self, selection: Selection) -> list[Pod]:
        found = await self._client.list(_PODS, selection)
        return [each for each in found.items if isinstance(each, Pod)]

    async def _create_reservation(self, pod: Pod, node: Node, group: str) -> Pod:
        scaling = await self._list_pods(
            Selection(namespace=self._settings.scaling_pod_namespace, field_selector="spec.nodeName=")
        )
        if any(not each.terminating for each in scaling):
            raise DeviceNotReserved(
                "the cluster is being scaled for pods that share devices; nothing is reserved meanwhile"
            )
        await self._check_user(pod)
        body = self._manifest(pod, node, group)
        namespace, name = self._settings.namespace, body["metadata"]["name"]

        async def send() -> Pod:
            try:
                return await self._client.create_typed(Pod, body, namespace=namespace)
            except ApiError as refusal:
                self._late_creates.note(f"{namespace}/{name}", refusal)
                raise

        async def find() -> WriteState[Pod]:
            try:
                found = await self._client.get(Pod, namespace, name)
            except NotFound:
                return NotWritten.SO_FAR
            is_ours = found.spec.node_name == node.name and found.labels.get(GROUP_LABEL) == group
            return (
                ConfirmedWrite(found)
                if is_ours and is_using_device(found) and not found.terminating
                else NotWritten.FOR_EVER
            )

        what = f"creating the reservation {namespace}/{name}"
        try:
            return await self._confirmed.write(send, find, what=what)
        except NotFound as fault:
            hint = f"create {namespace}, in which resourceReservation.namespace has pods that hold shared devices"
            raise DeviceNotReserved(f"no device can be reserved: {fault}; {hint}") from None
        except AlreadyExists:
            found = await self._client.get(Pod, namespace, name)
            if not is_using_device(found):
                if not self._is_ours(found):
                    raise DeviceNotReserved(
                        f"the reservation {found.key} has ended; its creator has to delete it"
                    ) from None
                await self._delete_reservation(found)
                raise DeviceNotReserved(
                    f"the reservation {found.key} has ended; it is created again after its deletion"
                ) from None
            if found.terminating:
                raise DeviceNotReserved(f"the reservation {found.key} of an earlier pod is still terminating") from None
            return found

    async def _check_user(self, pod: Pod) -> None:
        """Check that the pod exists. A suspended process may act for a deleted pod, whose device is already
        reassigned."""
        try:
            found = await self._client.get(Pod, pod.namespace, pod.name)
        except NotFound:
            found = None
        if found is None or found.uid != pod.uid or found.terminating:
            raise DeviceNotReserved(f"pod {pod.key} is gone, so no device is reserved for it")

    def _manifest(self, pod: Pod, node: Node, group: str) -> dict[str, Any]:
        settings, device = self._settings, {GPU: "1"}
        resources, runtime = settings.pod_resources, settings.runtime_class_name
        fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "NODE_NAME": "spec.nodeName"}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": reservation_name(node.name, group),
                "namespace": settings.namespace,
                "labels": {GROUP_LABEL: group, APP_LABEL: settings.app_label, HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN},
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
                        "resources": {"requests": resources.requests | device, "limits": resources.limits | device},
                        "env": [
                            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                            for name, path in fields.items()
                        ],
                    }
                ],
            },
        }

    async def _wait_for_device_index(self, reservation: Pod) -> str:
        """Wait until the reservation reports its device, and return the device's id."""
        index: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_event(_: KubeObject | None, new: KubeObject | None) -> None:
            device = new.metadata.annotations.get(DEVICE_INDEX_ANNOTATION) if new is not None else None
            if device and not index.done():
                index.set_result(device)
            elif new is None and not index.done():
                index.set_exception(
                    DeviceNotReserved(f"the reservation {reservation.key} was deleted before it reported a device")
                )

        selection = Selection(
            namespace=reservation.namespace, field_selector=f"metadata.name={reservation.metadata.name}"
        )
        watching = asyncio.ensure_future(self._client.informer(_PODS, on_event, selection=selection).run())
        waiting = asyncio.ensure_future(self._client.clock.sleep(self._settings.timeout_s))
        try:
            async with self._waiting():
                await asyncio.wait((index, waiting), return_when=asyncio.FIRST_COMPLETED)
            if index.done():
                return index.result()
        finally:
            for task in (watching, waiting):
                task.cancel()
            await asyncio.gather(watching, waiting, return_exceptions=True)
        if self._is_ours(reservation):
            await self._delete_reservation(reservation)
        timeout_s = self._settings.timeout_s
        raise DeviceNotReserved(
            f"the reservation {reservation.key} has not reported its device within {timeout_s:.0f} s"
        )

    async def _add_group_label(self, pod: Pod, group: str, *, several: bool) -> None:
        """Label the pod, even if it seems to have the label: the watch may not have delivered its removal."""
        key = f"{GROUP_LABEL}/{group}" if several else GROUP_LABEL
        await self._change_labels(pod, lambda _: {key: group, HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN})

    async def _change_labels(self, pod: Pod, wanted: Callable[[Pod], Mapping[str, str | None]]) -> None:
        """Change labels only while the pod is pending: the labels of a bound pod describe its devices on the node."""
        found = pod
        for tries_left in reversed(range(_MAX_TRIES)):
            if found.uid != pod.uid or found.spec.node_name:
                raise Conflict(f"pod {pod.key} is no longer pending")
            try:
                await self._patch_labels(found, wanted(found))
                return
            except ApiError as refusal:
                # The resourceVersion lets only one of two patches pass, so one with an unknown outcome is sent again.
                if not tries_left or not (isinstance(refusal, Conflict | NotFound) or refusal.outcome_unknown):
                    raise
            found = await self._client.get(Pod, pod.namespace, pod.name)

    async def _remove_group_labels(self, pod: Pod, groups: Sequence[str], *, mark: bool = True) -> None:
        """Remove the labels of these groups that have the value we wrote. `mark`: also our own label.

        The patch has the resourceVersion that it changes: applied late, it must not remove labels of a later attempt.
        """
        own_values = {**{f"{GROUP_LABEL}/{group}": {group} for group in groups}, GROUP_LABEL: set(groups)}
        if mark:
            own_values[HANDLED_BY_LABEL] = {HANDLED_BY_BAYPLAN}
        for tries_left in reversed(range(_MAX_TRIES)):
            with contextlib.suppress(NotFound):
                found = await self._client.get(Pod, pod.namespace, pod.name)
                removed = {key: None for key, values in own_values.items() if found.labels.get(key) in values}
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

        The version alone does not ensure that: a later attempt that writes the same labels does not change it.
        """
        version = pod.metadata.resource_version
        body = {"metadata": {"uid": pod.uid, "resourceVersion": version, "labels": labels}}

        async def send() -> None:
            await self._client.patch(_PODS, body, name=pod.name, namespace=pod.namespace, kind=MERGE_PATCH)

        async def find() -> WriteState[None]:
            try:
                found = await self._client.get(Pod, pod.namespace, pod.name)
            except NotFound:
                return NotWritten.FOR_EVER
            return NotWritten.SO_FAR if found.metadata.resource_version == version else NotWritten.FOR_EVER

        await self._confirmed.write(send, find, what=f"labelling pod {pod.key}", trust_refusal=True)

    def _record_unreserved(self, pod: Pod, group: str) -> None:
        if self._recorder is not None:
            note = f"Pod {pod.key} is deleted: no pod reserves the device of its GPU group {group} any more"
            self._recorder.record(
                pod, type=WARNING, reason="GPUNotReserved", action="Deleting", note=f"{note}, and another could get it"
            )

    async def _delete_reservation(self, pod: Pod) -> None:
        """Delete a reservation, unless an earlier create of its name may still take effect and restore it.

        Then it stays until the next sync of its group: an orphan would hold a device that another pod was given.
        """
        if self._late_creates.until_s(pod.key) is not None:
            log.info("reservation %s is deleted later: an earlier create of it may still take effect", pod.key)
            return
        await self._delete(pod)

    async def _delete(self, pod: Pod) -> None:
        """Delete a pod. Returns when it is terminating or deleted; raises when the DELETE can no longer take effect.

        Until then the group is locked: the next attempt must not use a reservation that a late DELETE still removes.
        """

        async def send() -> None:
            with contextlib.suppress(NotFound, Conflict):
                await self._client.delete(_PODS, name=pod.name, namespace=pod.namespace, uid=pod.uid)

        async def find() -> WriteState[None]:
            try:
                found = await self._client.get(Pod, pod.namespace, pod.name)
            except NotFound:
                return ConfirmedWrite(None)
            return ConfirmedWrite(None) if found.uid != pod.uid or found.terminating else NotWritten.SO_FAR

        try:
            await self._confirmed.write(send, find, what=f"deleting pod {pod.key}", trust_refusal=True)
        except ApiError as fault:
            log.warning("pod %s could not be deleted: %s", pod.key, fault)
            raise


def _needs_reservation(group: str, node_name: str, request: BindRequest) -> bool:
    names_group = group in request.spec.selected_gpu_groups and request.spec.selected_node == node_name
    return names_group and request.is_active and not request.has_succeeded


def _has_users(reservation: Pod, users: Iterable[Pod]) -> bool:
    """Whether a pod is on the device or may be placed on it: a pod without a node may be placed on any."""
    return any(each.spec.node_name in ("", reservation.spec.node_name) for each in users)


def is_using_device(pod: Pod) -> bool:
    """Whether a pod uses its device or may start to: its phase is Pending or Running, even if it is terminating."""
    return pod.status.phase not in _TERMINAL_PHASES


def reservation_name(node_name: str, group: str) -> str:
    """The name of a device's reservation, the same in every process."""
    return f"{RESERVATION_PREFIX}{hashlib.sha256(f'{node_name}/{group}'.encode()).digest()[:8].hex()}"
