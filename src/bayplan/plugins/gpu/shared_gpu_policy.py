"""Base class of the policies for shared GPUs: filters nodes and assigns devices.

It contains the filter, the choice of devices at Reserve, and the annotation with the devices at PreBind. A policy adds
the score, and may choose devices itself. A profile enables one policy. Other profiles see the assigned devices, because
the pod carries them. Cost: one comparison of columns for each pod at Filter, one pass over the devices of one node at
Reserve.
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
from bayplan.framework.api.plugin import MAX_SCORE, PreBindPreFlightResult, Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.framework.api.status import Code, Status, error, unresolvable
from bayplan.intents.pod_intents import AnnotatePod
from bayplan.objects.core import Pod
from bayplan.objects.resources import CPU, filter_requests
from bayplan.plugins.gpu.gpu_columns import GpuColumns, clear_assigned_devices, set_assigned_devices, tightest_devices
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
"""The largest node of the cluster that the policies were designed for. Scales of CPU and GPU amounts."""

_SKIP = Status(Code.SKIP)


C = TypeVar("C", bound=GpuColumns)


class SharedGpuPolicy(Generic[C]):
    """Places pods on shared GPUs. A policy is a subclass with a `name` and a score."""

    name = ""
    traits = PluginTraits(depends_on=row_local)
    events_to_register = (
        ClusterEventWithHint(EventResource.POD, ActionType.DELETE),
        ClusterEventWithHint(
            EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE | ActionType.UPDATE_NODE_LABEL
        ),
    )
    reads_cpu = False
    """Whether the scores depend on the CPU request of the pod."""
    scores_plain_pods = True
    """Whether the policy scores pods without a GPU request."""

    def __init__(self, handle: Handle, gpus: C) -> None:
        self._handle = handle
        self.gpus = gpus

    def signature(self, pod: Pod) -> Hashable | None:
        try:
            request = gpu_request(pod)
        except InvalidGpuRequest:
            return None
        return request, cpu_milli(pod) if self.reads_cpu else 0

    def pre_filter(self, cycle: Cycle) -> Status | None:
        """Reject pods with an invalid request. A pod without a GPU request skips Filter."""
        try:
            request = cycle.info.cached(gpu_request)
        except InvalidGpuRequest as fault:
            return unresolvable(str(fault))
        return None if request.count else _SKIP

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        request = cycle.info.cached(gpu_request)
        gpus, rows = self.gpus.of(nodes, cycle.snapshot)
        if request.accepted and (other_model := ~gpus.accepting(rows, request)).any():
            yield Rejection(other_model, OTHER_MODEL, resolvable=False)
        lacking = gpus.lacking(rows, request)
        if not lacking.any():
            return
        too_few_rows = gpus.devices[rows] < request.count
        if too_few_rows.any():
            yield Rejection(too_few_rows, TOO_FEW, resolvable=False)
            lacking &= ~too_few_rows
            if not lacking.any():
                return
        yield Rejection(lacking, NO_DEVICE_WITH_ROOM if request.shares else NO_FREE)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        request = cycle.info.cached(gpu_request)
        if not request.count and not self.scores_plain_pods:
            return np.zeros(len(nodes), dtype=np.int64)
        gpus, rows = self.gpus.of(nodes, cycle.snapshot)
        scores = self.score_rows(cycle, nodes, request, gpus, rows)
        return np.minimum(np.maximum(scores, 0), MAX_SCORE)

    @abstractmethod
    def score_rows(
        self, cycle: Cycle, nodes: NodeTable, request: GpuMilliRequest, gpus: C, rows: RowVector
    ) -> IntVector:
        """Score each row. Rows on which the pod does not fit may have any score."""

    def devices_for(self, cycle: Cycle, request: GpuMilliRequest, row: int) -> DeviceIndexes:
        """Return the devices of a node for the pod; empty if it does not fit."""
        del cycle
        return tightest_devices(self.gpus.free_of_row(row), request)

    def reserve(self, cycle: Cycle, node_name: str) -> Status | None:
        request = cycle.info.cached(gpu_request)
        if not request.count:
            return None
        self.gpus.follow(cycle.snapshot)
        devices = self.devices_for(cycle, request, cycle.snapshot.nodes.index[node_name])
        if not devices:
            return Status(Code.UNSCHEDULABLE, (NO_DEVICE_WITH_ROOM if request.shares else NO_FREE,))
        set_assigned_devices(cycle.info, devices)
        return None

    def unreserve(self, cycle: Cycle, node_name: str) -> None:
        del node_name
        clear_assigned_devices(cycle.info)

    def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> PreBindPreFlightResult | Status:
        del node_name
        return PreBindPreFlightResult() if _request_of(cycle).count else _SKIP

    async def pre_bind(self, cycle: Cycle, node_name: str) -> Status | None:
        """Write the assigned devices to the pod's annotation before the binding."""
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
    """A policy that uses only the free amounts of devices and has no arguments."""

    @classmethod
    def factory(cls, args: object, handle: Handle) -> Self:
        del args
        return cls(handle, GpuColumns())


def cpu_milli(pod: Pod) -> int:
    """Return the CPU request of a pod."""
    return filter_requests(pod).get(CPU, 0)


def requested_cpu(cycle: Cycle) -> int:
    return cycle.info.cached(filter_requests).get(CPU, 0)


def free_cpu(nodes: NodeTable) -> IntVector:
    remaining: IntVector = nodes.allocatable(CPU) - nodes.requested(CPU)
    return remaining


def _request_of(cycle: Cycle) -> GpuMilliRequest:
    try:
        return cycle.info.cached(gpu_request)
    except InvalidGpuRequest:
        return NO_GPU_REQUEST
