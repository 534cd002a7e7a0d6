"""What a plugin can access of the scheduler, as protocols: the counterpart of kube-scheduler's `framework.Handle`.

A plugin is built by `factory(args, handle)` and stores the handle. The cache, the queue and the client match these
protocols structurally. `app` passes them in.
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
    """Nominated pods, by node: preemption has freed resources for them."""

    def on_node(self, node_name: str) -> Sequence[PodInfo]: ...
    def nodes(self) -> Collection[str]: ...
    def node_of(self, uid: str) -> str | None:
        """Return the node that a pod is nominated to."""
        ...

    def terminating_victims_on(self, node_name: str) -> Mapping[str, object]:
        """Return the victims that preemption has deleted on a node, by uid, even if the API server still shows them
        running.
        """
        ...

    def refused_on(self, node_name: str) -> Collection[str]:
        """Return the uids of pods that cannot be victims now: their deletion was refused a short time ago."""
        ...


class WaitingPod(Protocol):
    """A pod that waits at Permit."""

    @property
    def pod(self) -> Pod: ...
    def pending_plugins(self) -> Sequence[str]: ...
    def allow(self, plugin: str) -> None: ...
    def reject(self, plugin: str, message: str) -> bool: ...


class WaitingPods(Protocol):
    def get(self, uid: str) -> WaitingPod | None: ...
    def all(self) -> Iterable[WaitingPod]: ...


class FilterRunner(Protocol):
    """The profile's own filters, for a plugin that runs dry runs on forks (preemption)."""

    def filter_table(self, cycle: Cycle, table: NodeTable) -> FilterResults: ...
    def is_row_local(self, cycle: Cycle) -> bool: ...
    def nominated_pods_by_node(self, cycle: Cycle) -> dict[str, list[PodInfo]]: ...
    def filter_fork(self, cycle: Cycle, fork: NodeColumns) -> Status: ...
    def add_pod(self, cycle: Cycle, fork: NodeColumns, info: PodInfo) -> Status: ...
    def remove_pod(self, cycle: Cycle, fork: NodeColumns, info: PodInfo) -> Status: ...


class BindRequestBuilder(Protocol):
    """Creates the engine's BindRequests."""

    @property
    def factory(self) -> BindRequestFactory: ...

    def annotations(self, cycle: Cycle, node_name: str) -> Mapping[str, str]:
        """Return the annotations that the profile's plugins pass to the binder.

        Raises `MutateBindRequestError` if a plugin fails that is not allowed to fail.
        """
        ...


class Handle(Protocol):
    """Everything that a plugin can access."""

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
        """Return every known pod of a PodGroup, queued or placed. An assumed pod, also of a dry run, shows its node."""
        ...

    async def post(self, url: str, body: bytes, timeout_s: float) -> bytes: ...
