"""Which nodes have the GPUs that a pod asks for, and which devices does it get there?

What all policies for shared GPUs have in common: the filter, the choice of devices at Reserve, the annotation that
tells of it at PreBind. A policy adds the score, and may choose devices by itself. One of them is enabled in a profile;
devices that one profile gave away are seen by all others, because the pod itself tells of them.
Cost: one comparison of columns a pod for the filter, one pass over the devices of one node for Reserve.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator
from typing import Generic, Self, TypeVar

import numpy as np

from bayplan.errors import BayplanError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import (
    MAX_SCORE,
    PreBindPreFlightResult,
    Rejection,
    row_local,
)
from bayplan.framework.api.status import (
    Code,
    Status,
    error,
    unresolvable,
)
from bayplan.intents.pod_intents import AnnotatePod
from bayplan.objects.core import Pod
from bayplan.objects.resources import CPU, filter_requests
from bayplan.plugins.gpu.gpu_columns import (
    GpuColumns,
    clear_assigned_devices,
    set_assigned_devices,
    tightest_devices,
)
from bayplan.plugins.gpu.gpu_requests import (
    DEVICE_MILLI,
    GPU_INDEX,
    NO_GPU_REQUEST,
    DeviceIndexes,
    GpuMilliRequest,
    InvalidGpuRequest,
    assigned_devices,
    gpu_request,
    index_text,
)
from bayplan.snapshot import IntVector, NodeTable, RowVector

OTHER_MODEL = "node(s) had GPUs of other models"
TOO_FEW = "node(s) had fewer GPUs"
NO_DEVICE_WITH_ROOM = "node(s) had no GPU with enough left"
NO_FREE = "node(s) had too few free GPUs"

MAX_CPU_MILLI = 128_000
MAX_GPU_MILLI = 8 * DEVICE_MILLI
"""What policies that weigh CPU against GPU measure both with: the largest node of the cluster they were made for."""

_SKIP = Status(Code.SKIP)


C = TypeVar("C", bound=GpuColumns)


class SharedGpuPolicy(Generic[C]):
    """Places pods on shared GPUs. A policy is a subclass with a `name` and a score."""

    name = ""
    depends_on = row_local
    cured_by = (
        ClusterEventWithHint(EventResource.POD, ActionType.DELETE),
        ClusterEventWithHint(
            EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE | ActionType.UPDATE_NODE_LABEL
        ),
    )
    reads_cpu = False
    """Whether its scores depend on the CPU that the pod asks for."""
    scores_plain_pods = True
    """Whether it has an opinion about pods that ask for no GPU."""

    def __init__(self, handle: Handle, gpus: C) -> None:
        self._handle = handle
        self.gpus = gpus

    def signature(self, pod: Pod) -> Hashable | None:
        try:
            ask = gpu_request(pod)
        except InvalidGpuRequest:
            return None
        return ask, cpu_milli(pod) if self.reads_cpu else 0

    def pre_filter(self, cycle: Cycle) -> Status | None:
        """Refuse what no node can have; a pod that asks for no GPU may go anywhere."""
        try:
            ask = cycle.info.cached(gpu_request)
        except InvalidGpuRequest as fault:
            return unresolvable(str(fault))
        return None if ask.count else _SKIP

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        ask = cycle.info.cached(gpu_request)
        gpus, rows = self.gpus.of(nodes, cycle.snapshot)
        if ask.accepted and (other := ~gpus.accepting(rows, ask)).any():
            yield Rejection(other, OTHER_MODEL, resolvable=False)
        lacking = gpus.lacking(rows, ask)
        if not lacking.any():
            return
        few = gpus.devices[rows] < ask.count
        if few.any():
            yield Rejection(few, TOO_FEW, resolvable=False)
            lacking &= ~few
            if not lacking.any():
                return
        yield Rejection(lacking, NO_DEVICE_WITH_ROOM if ask.shares else NO_FREE)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        ask = cycle.info.cached(gpu_request)
        if not ask.count and not self.scores_plain_pods:
            return np.zeros(len(nodes), dtype=np.int64)
        gpus, rows = self.gpus.of(nodes, cycle.snapshot)
        scores = self.score_rows(cycle, nodes, ask, gpus, rows)
        return np.minimum(np.maximum(scores, 0), MAX_SCORE)

    @abstractmethod
    def score_rows(self, cycle: Cycle, nodes: NodeTable, ask: GpuMilliRequest, gpus: C, rows: RowVector) -> IntVector:
        """How good each row is; what is said of rows where the pod does not fit is no matter."""

    def devices_for(self, cycle: Cycle, ask: GpuMilliRequest, row: int) -> DeviceIndexes:
        """The devices of a node that the pod gets; none where it does not fit."""
        del cycle
        return tightest_devices(self.gpus.row_left(row), ask)

    def reserve(self, cycle: Cycle, node_name: str) -> Status | None:
        ask = cycle.info.cached(gpu_request)
        if not ask.count:
            return None
        self.gpus.follow(cycle.snapshot)
        devices = self.devices_for(cycle, ask, cycle.snapshot.nodes.index[node_name])
        if not devices:
            return Status(Code.UNSCHEDULABLE, (NO_DEVICE_WITH_ROOM if ask.shares else NO_FREE,))
        set_assigned_devices(cycle.info, devices)
        return None

    def unreserve(self, cycle: Cycle, node_name: str) -> None:
        del node_name
        clear_assigned_devices(cycle.info)

    def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> PreBindPreFlightResult | Status:
        del node_name
        return PreBindPreFlightResult() if _request_of(cycle).count else _SKIP

    async def pre_bind(self, cycle: Cycle, node_name: str) -> Status | None:
        """Write down which devices the pod was given, before anything starts it."""
        del node_name
        if not _request_of(cycle).count:
            return None
        text = index_text(cycle.info.cached(assigned_devices))
        try:
            await self._handle.writes.perform(AnnotatePod(cycle.pod, {GPU_INDEX: text}))
        except BayplanError as fault:
            return error(f"cannot write {GPU_INDEX}: {fault}")
        return None


class BasicGpuPolicy(SharedGpuPolicy[GpuColumns]):
    """A policy that looks at what is left of devices and needs no arguments."""

    @classmethod
    def factory(cls, args: object, handle: Handle) -> Self:
        del args
        return cls(handle, GpuColumns())


def cpu_milli(pod: Pod) -> int:
    """The CPU that a pod asks for."""
    return filter_requests(pod).get(CPU, 0)


def requested_cpu(cycle: Cycle) -> int:
    return cycle.info.cached(filter_requests).get(CPU, 0)


def free_cpu(nodes: NodeTable) -> IntVector:
    """The CPU that each node has left."""
    left: IntVector = nodes.allocatable(CPU) - nodes.requested(CPU)
    return left


def _request_of(cycle: Cycle) -> GpuMilliRequest:
    try:
        return cycle.info.cached(gpu_request)
    except InvalidGpuRequest:
        return NO_GPU_REQUEST
