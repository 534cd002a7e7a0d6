"""Which nodes have room on a GPU for a pod that wants a part of one, and which device is it?

Asked at Filter about pods with KAI's annotations `gpu-fraction` and `gpu-memory`, and, while devices are being reserved
on a node, about pods that want whole GPUs. At Reserve devices are chosen: groups that are used most come first, then a
GPU that nobody uses becomes a group of its own. The choice goes with the BindRequest; the binder makes it true. Cost: a
look at each pod on nodes with GPUs, for such pods; nothing for others.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np

from bayplan.errors import ObjectError
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import Rejection, row_local
from bayplan.framework.api.status import (
    SKIP,
    Status,
    unresolvable,
    unschedulable,
)
from bayplan.framework.runtime.bind_request_mutation import add_request_fields
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import FRACTION, ReceivedGpu
from bayplan.objects.kai.gpu_sharing import (
    GPU,
    GpuShare,
    gpu_groups_of,
    gpu_memory_of_node,
    is_reservation,
    requested_share,
    whole_device_spec,
    whole_gpus,
)
from bayplan.snapshot import NodeInfo, NodeTable, PodInfo

NO_ROOM = "node(s) had no GPU with enough room for a part of it"
NO_MEMORY = "node(s) did not say how much memory their GPUs have"
SHARING_IN_PROGRESS = "node(s) had GPUs that are about to be shared"


@dataclass(slots=True)
class SharedDevices:
    """The GPUs of one node that are shared, and those that nobody uses."""

    device_mib: int
    used_mib: dict[str, int] = field(default_factory=dict)  # by group
    idle: int = 0

    def fitting(self, share: GpuShare) -> list[str]:
        """Groups with room for a share, the fullest first."""
        asked = share.memory_on(self.device_mib)
        fits = [group for group, used in self.used_mib.items() if used + asked <= self.device_mib]
        return sorted(fits, key=lambda group: (-self.used_mib[group], group))

    def has_room(self, share: GpuShare, pod_slots: int) -> bool:
        """`pod_slots`: pods that may still come to the node, reservations among them."""
        if share.memory_on(self.device_mib) > self.device_mib:
            return False
        fresh = share.devices - len(self.fitting(share))
        return fresh <= self.idle and 1 + max(0, fresh) <= pod_slots


@dataclass(frozen=True, slots=True)
class AssignedGpuGroups:
    """What was given to a pod that the API server does not show so yet."""

    groups: tuple[str, ...]
    share: GpuShare


_REQUESTED_SHARE: StateKey[GpuShare | int] = StateKey("GpuSharing/wanted")
"""A part of GPUs, or how many whole ones."""


class GpuSharing:
    """Gives out parts of GPUs."""

    name = "GpuSharing"
    depends_on = row_local
    cured_by = (
        ClusterEventWithHint(
            EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE | ActionType.UPDATE_NODE_LABEL
        ),
        ClusterEventWithHint(EventResource.ASSIGNED_POD, ActionType.DELETE),
    )

    def __init__(self, handle: Handle) -> None:
        self._chance = handle.random
        self._requests = handle.bind_requests
        self._choices: dict[str, AssignedGpuGroups] = {}  # by the uid of the pod

    @classmethod
    def factory(cls, args: object, handle: Handle) -> GpuSharing:  # noqa: ARG003
        return cls(handle)

    def signature(self, pod: Pod) -> Hashable | None:
        try:
            return requested_share(pod), whole_gpus(pod)
        except ObjectError:
            return None

    def pre_filter(self, cycle: Cycle) -> Status | None:
        try:
            share = requested_share(cycle.pod)
        except ObjectError as fault:
            return unresolvable(str(fault))
        whole = whole_gpus(cycle.pod)
        if share is None and not whole:
            return SKIP
        cycle.put(_REQUESTED_SHARE, share or whole)
        return None

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        wanted = cycle.get(_REQUESTED_SHARE)
        full, silent = np.zeros(len(nodes), dtype=np.bool_), np.zeros(len(nodes), dtype=np.bool_)
        for position, node in enumerate(nodes):
            if not node.allocatable(GPU):
                full[position] = isinstance(wanted, GpuShare)
                continue
            devices = self._devices(node)
            if isinstance(wanted, int):
                full[position] = devices.idle < wanted <= node.free(GPU)  # less than that is for others to say
            elif not devices.device_mib:
                silent[position] = True
            else:
                slots = node.allocatable("pods") - int(node.columns.pod_count[node.row])
                full[position] = not devices.has_room(wanted, slots)
        yield Rejection(full, SHARING_IN_PROGRESS if isinstance(wanted, int) else NO_ROOM)
        if silent.any():
            yield Rejection(silent, NO_MEMORY, resolvable=False)

    def reserve(self, cycle: Cycle, node_name: str) -> Status | None:
        wanted, pod = cycle.find(_REQUESTED_SHARE), cycle.pod
        if not isinstance(wanted, GpuShare):
            if given := whole_device_spec(pod):
                add_request_fields(cycle, **given)
            return None
        columns = cycle.snapshot.nodes
        devices = self._devices(NodeInfo(columns, columns.index[node_name]), spare=pod.uid)
        known = devices.fitting(wanted)[: wanted.devices]
        fresh = wanted.devices - len(known)
        if fresh > devices.idle:
            return unschedulable(NO_ROOM)
        groups = (*known, *(self._new_group() for _ in range(fresh)))
        self._choices[pod.uid] = AssignedGpuGroups(groups, wanted)
        part = ReceivedGpu(wanted.devices, f"{wanted.portion_of(devices.device_mib):.2f}")
        add_request_fields(cycle, received_resource_type=FRACTION, received_gpu=part, selected_gpu_groups=groups)
        return None

    def unreserve(self, cycle: Cycle, node_name: str) -> None:  # noqa: ARG002
        self._choices.pop(cycle.pod.uid, None)

    async def post_bind(self, cycle: Cycle, node_name: str) -> None:  # noqa: ARG002
        """The binder has labelled the pod before it bound it: the pod says from now on what it has. Where there is no
        binder nobody labels it, and our memory is all that there is."""
        if self._requests.factory.tracker is not None:
            self._choices.pop(cycle.pod.uid, None)

    # inside -----------------------------------------------------------------------------------------------------

    def _devices(self, node: NodeInfo, spare: str = "") -> SharedDevices:
        """How the GPUs of a node are used; `spare`: as if this pod were not there."""
        found = SharedDevices(gpu_memory_of_node(node.node), idle=node.free(GPU))
        held: set[str] = set()
        reservations = self._requests.factory.reservations
        for info in node.pods:
            if is_reservation(info.pod, reservations):
                held |= gpu_groups_of(info.pod)
            elif info.uid != spare and (choice := self._assigned_groups(info)) is not None:
                taken = choice.share.memory_on(found.device_mib)
                for group in choice.groups:
                    found.used_mib[group] = found.used_mib.get(group, 0) + taken
        found.idle -= len(found.used_mib.keys() - held)  # their devices are reserved in a moment
        return found

    def _assigned_groups(self, info: PodInfo) -> AssignedGpuGroups | None:
        """What a pod has: by our own memory, by the request that somebody before us has made, or by its labels."""
        pod = info.pod
        try:
            share = requested_share(pod)
        except ObjectError:
            return None  # nobody gave it anything
        if share is None:
            return None
        told = sorted(gpu_groups_of(pod))
        if (chosen := self._choices.get(pod.uid)) is not None:
            if told == sorted(chosen.groups):
                del self._choices[pod.uid]
            return chosen
        # A pod that was given up elsewhere may still be labelled with what it was to have there.
        groups = self._requests.factory.gpu_groups_of(pod) or told
        return AssignedGpuGroups(tuple(groups), share) if groups else None

    def _new_group(self) -> str:
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))
