"""Filters nodes for pods that request a share of a GPU, and chooses the devices.

Filter handles pods with KAI's annotations `gpu-fraction` and `gpu-memory`, and, while devices are being reserved on a
node, pods that request whole GPUs. Reserve chooses devices: the fullest GPU groups first, then an idle GPU becomes a
new group. The BindRequest contains the choice, and the binder applies it. Cost: a check of each pod on nodes with GPUs,
for such pods; nothing for all other pods.
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
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.framework.api.status import SKIP, Status, unresolvable, unschedulable
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
    """The shared and the idle GPUs of one node."""

    device_mib: int
    used_mib: dict[str, int] = field(default_factory=dict)  # by group
    idle: int = 0

    def fitting(self, share: GpuShare) -> list[str]:
        """Return the groups with room for a share, the fullest first."""
        requested_mib = share.memory_on(self.device_mib)
        fitting = [group for group, used in self.used_mib.items() if used + requested_mib <= self.device_mib]
        return sorted(fitting, key=lambda group: (-self.used_mib[group], group))

    def has_room(self, share: GpuShare, pod_slots: int) -> bool:
        """Whether the share fits.

        `pod_slots`: the number of pods that the node can still run, including reservation pods.
        """
        if share.memory_on(self.device_mib) > self.device_mib:
            return False
        new_groups = share.devices - len(self.fitting(share))
        return new_groups <= self.idle and 1 + max(0, new_groups) <= pod_slots


@dataclass(frozen=True, slots=True)
class AssignedGpuGroups:
    """GPU groups assigned to a pod that the API server does not show yet."""

    groups: tuple[str, ...]
    share: GpuShare


_REQUESTED_SHARE: StateKey[GpuShare | int] = StateKey("GpuSharing/wanted")
"""A share of GPUs, or a number of whole GPUs."""


class GpuSharing:
    """Assigns shares of GPUs."""

    name = "GpuSharing"
    traits = PluginTraits(depends_on=row_local)
    events_to_register = (
        ClusterEventWithHint(
            EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE | ActionType.UPDATE_NODE_LABEL
        ),
        ClusterEventWithHint(EventResource.ASSIGNED_POD, ActionType.DELETE),
    )

    def __init__(self, handle: Handle) -> None:
        self._random = handle.random
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
        whole_devices = whole_gpus(cycle.pod)
        if share is None and not whole_devices:
            return SKIP
        cycle.put(_REQUESTED_SHARE, share or whole_devices)
        return None

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        request = cycle.get(_REQUESTED_SHARE)
        full, without_memory = np.zeros(len(nodes), dtype=np.bool_), np.zeros(len(nodes), dtype=np.bool_)
        for position, node in enumerate(nodes):
            if not node.allocatable(GPU):
                full[position] = isinstance(request, GpuShare)
                continue
            devices = self._devices(node)
            if isinstance(request, int):
                # other shortages are reported by NodeResourcesFit
                full[position] = devices.idle < request <= node.free(GPU)
            elif not devices.device_mib:
                without_memory[position] = True
            else:
                slots = node.allocatable("pods") - int(node.columns.pod_count[node.row])
                full[position] = not devices.has_room(request, slots)
        yield Rejection(full, SHARING_IN_PROGRESS if isinstance(request, int) else NO_ROOM)
        if without_memory.any():
            yield Rejection(without_memory, NO_MEMORY, resolvable=False)

    def reserve(self, cycle: Cycle, node_name: str) -> Status | None:
        request, pod = cycle.find(_REQUESTED_SHARE), cycle.pod
        if not isinstance(request, GpuShare):
            if fields := whole_device_spec(pod):
                add_request_fields(cycle, **fields)
            return None
        columns = cycle.snapshot.nodes
        devices = self._devices(NodeInfo(columns, columns.index[node_name]), ignored_uid=pod.uid)
        existing = devices.fitting(request)[: request.devices]
        new_groups = request.devices - len(existing)
        if new_groups > devices.idle:
            return unschedulable(NO_ROOM)
        groups = (*existing, *(self._new_group() for _ in range(new_groups)))
        self._choices[pod.uid] = AssignedGpuGroups(groups, request)
        received = ReceivedGpu(request.devices, f"{request.portion_of(devices.device_mib):.2f}")
        add_request_fields(cycle, received_resource_type=FRACTION, received_gpu=received, selected_gpu_groups=groups)
        return None

    def unreserve(self, cycle: Cycle, node_name: str) -> None:  # noqa: ARG002
        self._choices.pop(cycle.pod.uid, None)

    async def post_bind(self, cycle: Cycle, node_name: str) -> None:  # noqa: ARG002
        """Drop the choice: the binder has labeled the pod before the binding. Without a binder the choice must stay."""
        if self._requests.factory.tracker is not None:
            self._choices.pop(cycle.pod.uid, None)

    def _devices(self, node: NodeInfo, ignored_uid: str = "") -> SharedDevices:
        """Return the use of the GPUs of a node. `ignored_uid`: a pod that does not count."""
        devices = SharedDevices(gpu_memory_of_node(node.node), idle=node.free(GPU))
        reserved_groups: set[str] = set()
        reservations = self._requests.factory.reservations
        for info in node.pods:
            if is_reservation(info.pod, reservations):
                reserved_groups |= gpu_groups_of(info.pod)
            elif info.uid != ignored_uid and (choice := self._assigned_groups(info)) is not None:
                used_mib = choice.share.memory_on(devices.device_mib)
                for group in choice.groups:
                    devices.used_mib[group] = devices.used_mib.get(group, 0) + used_mib
        devices.idle -= len(devices.used_mib.keys() - reserved_groups)  # their devices will be reserved soon
        return devices

    def _assigned_groups(self, info: PodInfo) -> AssignedGpuGroups | None:
        """Return the groups of a pod: from this plugin's choices, from its BindRequest, or from its labels."""
        pod = info.pod
        try:
            share = requested_share(pod)
        except ObjectError:
            return None  # the pod has no devices
        if share is None:
            return None
        labeled_groups = sorted(gpu_groups_of(pod))
        if (own_choice := self._choices.get(pod.uid)) is not None:
            if labeled_groups == sorted(own_choice.groups):
                del self._choices[pod.uid]
            return own_choice
        # The labels may be left over from a failed binding to another node.
        groups = self._requests.factory.gpu_groups_of(pod) or labeled_groups
        return AssignedGpuGroups(tuple(groups), share) if groups else None

    def _new_group(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))
