"""What a plugin may reach of the world around it, as protocols.

A plugin is built by `factory(args, handle)` and keeps the handle. The cache, the queue and the client fit these
protocols by shape; the composition root wires them.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from bayplan.clock import Clock
from bayplan.devices import DeviceAssumptions
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import FilterResults
from bayplan.framework.api.status import Status
from bayplan.framework.runtime.bind_request_factory import BindRequestFactory
from bayplan.intents.writes import Writes
from bayplan.objects.core import Pod
from bayplan.snapshot import Catalog, NodeColumns, NodeTable, PodInfo
from bayplan.volumes import VolumeAssumptions


class PodNominator(Protocol):
    """Pods for which preemption has made room, by the node they wait for."""

    def on_node(self, node_name: str) -> Sequence[PodInfo]: ...
    def nodes(self) -> Collection[str]: ...
    def node_of(self, uid: str) -> str | None:
        """The node that a pod is nominated to."""
        ...

    def terminating_victims_on(self, node_name: str) -> Mapping[str, object]:
        """By uid: who was told to leave a node for somebody's sake, whatever the API server shows of it yet."""
        ...

    def refused_on(self, node_name: str) -> Collection[str]:
        """The uids of pods that are no victims now: the API server refused to delete them a short time ago."""
        ...


class WaitingPod(Protocol):
    """A pod that Permit holds back."""

    @property
    def pod(self) -> Pod: ...
    def pending_plugins(self) -> Sequence[str]: ...
    def allow(self, plugin: str) -> None: ...
    def reject(self, plugin: str, message: str) -> bool: ...


class WaitingPods(Protocol):
    def get(self, uid: str) -> WaitingPod | None: ...
    def all(self) -> Iterable[WaitingPod]: ...


class FilterRunner(Protocol):
    """The profile's own filters, for a plugin that tries things out on forks (preemption)."""

    def filter_table(self, cycle: Cycle, table: NodeTable) -> FilterResults: ...
    def is_row_local(self, cycle: Cycle) -> bool: ...
    def nominated_pods_by_node(self, cycle: Cycle) -> dict[str, list[PodInfo]]: ...
    def filter_fork(self, cycle: Cycle, fork: NodeColumns) -> Status: ...
    def add_pod(self, cycle: Cycle, fork: NodeColumns, info: PodInfo) -> Status: ...
    def remove_pod(self, cycle: Cycle, fork: NodeColumns, info: PodInfo) -> Status: ...


class BindRequestBuilder(Protocol):
    """How the engine's bind requests are drawn up."""

    @property
    def factory(self) -> BindRequestFactory: ...

    def annotations(self, cycle: Cycle, node_name: str) -> Mapping[str, str]:
        """What the plugins of the profile hand to the binder; `MutateBindRequestError` where one fails that must
        not."""
        ...


class Handle(Protocol):
    """Everything a plugin may reach."""

    @property
    def clock(self) -> Clock: ...
    @property
    def random(self) -> random.Random: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def volumes(self) -> VolumeAssumptions: ...
    @property
    def devices(self) -> DeviceAssumptions: ...
    @property
    def nominator(self) -> PodNominator: ...
    @property
    def waiting_pods(self) -> WaitingPods: ...
    @property
    def writes(self) -> Writes: ...
    @property
    def filter_runner(self) -> FilterRunner: ...
    @property
    def bind_requests(self) -> BindRequestBuilder: ...
    def activate(self, pods: Mapping[str, Pod]) -> None: ...

    def group_pods(self, namespace: str, group: str) -> Sequence[Pod]:
        """Every known pod of a PodGroup, queued or placed. One that is assumed, in trial too, shows its node."""
        ...

    async def post(self, url: str, body: bytes, timeout_s: float) -> bytes: ...
