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
from bayplan.framework.api.events import Action, Cure, Resource
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import (
    MAX_SCORE,
    Preflight,
    Rejection,
    row_alone,
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
    forget_devices,
    remember_devices,
    tightest,
)
from bayplan.plugins.gpu.gpu_requests import (
    GPU_INDEX,
    NOTHING,
    WHOLE,
    Devices,
    GpuAsk,
    UnreadableAsk,
    given_devices,
    gpu_ask,
    index_text,
)
from bayplan.snapshot import IntVector, NodeTable, RowVector

OTHER_MODEL = "node(s) had GPUs of other models"
TOO_FEW = "node(s) had fewer GPUs"
NO_SHARE = "node(s) had no GPU with enough left"
NO_FREE = "node(s) had too few free GPUs"

LARGEST_CPU_MILLI = 128_000
LARGEST_GPU_MILLI = 8 * WHOLE
"""What policies that weigh CPU against GPU measure both with: the largest node of the cluster they were made for."""

_SKIP = Status(Code.SKIP)


C = TypeVar("C", bound=GpuColumns)


class SharedGpuPolicy(Generic[C]):
    """Places pods on shared GPUs. A policy is a subclass with a `name` and a score."""

    name = ""
    depends_on = row_alone
    cured_by = (
        Cure(Resource.POD, Action.DELETE),
        Cure(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE | Action.UPDATE_NODE_LABEL),
    )
    looks_at_cpu = False
    """Whether its scores depend on the CPU that the pod asks for."""
    scores_plain_pods = True
    """Whether it has an opinion about pods that ask for no GPU."""

    def __init__(self, handle: Handle, gpus: C) -> None:
        self._handle = handle
        self.gpus = gpus

    def signature(self, pod: Pod) -> Hashable | None:
        try:
            ask = gpu_ask(pod)
        except UnreadableAsk:
            return None
        return ask, cpu_milli(pod) if self.looks_at_cpu else 0

    def pre_filter(self, cycle: Cycle) -> Status | None:
        """Refuse what no node can have; a pod that asks for no GPU may go anywhere."""
        try:
            ask = cycle.info.once(gpu_ask)
        except UnreadableAsk as fault:
            return unresolvable(str(fault))
        return None if ask.count else _SKIP

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        ask = cycle.info.once(gpu_ask)
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
        yield Rejection(lacking, NO_SHARE if ask.shares else NO_FREE)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        ask = cycle.info.once(gpu_ask)
        if not ask.count and not self.scores_plain_pods:
            return np.zeros(len(nodes), dtype=np.int64)
        gpus, rows = self.gpus.of(nodes, cycle.snapshot)
        scores = self.worth(cycle, nodes, ask, gpus, rows)
        return np.minimum(np.maximum(scores, 0), MAX_SCORE)

    @abstractmethod
    def worth(self, cycle: Cycle, nodes: NodeTable, ask: GpuAsk, gpus: C, rows: RowVector) -> IntVector:
        """How good each row is; what is said of rows where the pod does not fit is no matter."""

    def devices_for(self, cycle: Cycle, ask: GpuAsk, row: int) -> Devices:
        """The devices of a node that the pod gets; none where it does not fit."""
        del cycle
        return tightest(self.gpus.row_left(row), ask)

    def reserve(self, cycle: Cycle, node_name: str) -> Status | None:
        ask = cycle.info.once(gpu_ask)
        if not ask.count:
            return None
        self.gpus.follow(cycle.snapshot)
        devices = self.devices_for(cycle, ask, cycle.snapshot.nodes.index[node_name])
        if not devices:
            return Status(Code.UNSCHEDULABLE, (NO_SHARE if ask.shares else NO_FREE,))
        remember_devices(cycle.info, devices)
        return None

    def unreserve(self, cycle: Cycle, node_name: str) -> None:
        del node_name
        forget_devices(cycle.info)

    def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> Preflight | Status:
        del node_name
        return Preflight() if _ask_of(cycle).count else _SKIP

    async def pre_bind(self, cycle: Cycle, node_name: str) -> Status | None:
        """Write down which devices the pod was given, before anything starts it."""
        del node_name
        if not _ask_of(cycle).count:
            return None
        text = index_text(cycle.info.once(given_devices))
        try:
            await self._handle.writes.perform(AnnotatePod(cycle.pod, {GPU_INDEX: text}))
        except BayplanError as fault:
            return error(f"cannot write {GPU_INDEX}: {fault}")
        return None


class PlainGpuPolicy(SharedGpuPolicy[GpuColumns]):
    """A policy that looks at what is left of devices and needs no arguments."""

    @classmethod
    def factory(cls, args: object, handle: Handle) -> Self:
        del args
        return cls(handle, GpuColumns())


def cpu_milli(pod: Pod) -> int:
    """The CPU that a pod asks for."""
    return filter_requests(pod).get(CPU, 0)


def asked_cpu(cycle: Cycle) -> int:
    return cycle.info.once(filter_requests).get(CPU, 0)


def free_cpu(nodes: NodeTable) -> IntVector:
    """The CPU that each node has left."""
    left: IntVector = nodes.allocatable(CPU) - nodes.requested(CPU)
    return left


def _ask_of(cycle: Cycle) -> GpuAsk:
    try:
        return cycle.info.once(gpu_ask)
    except UnreadableAsk:
        return NOTHING
