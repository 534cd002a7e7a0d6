"""Handle of one profile's plugins: the engine's implementation of `framework.handle`, also without a cluster."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayplan.cache import Cache
from bayplan.clock import Clock
from bayplan.devices import DeviceAssumptions
from bayplan.errors import BayplanError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.runtime.bind_request_factory import BindRequestFactory
from bayplan.framework.runtime.bind_request_mutation import Mutator
from bayplan.framework.runtime.filtering import FilterPoints
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.nominator import Nominator
from bayplan.framework.runtime.waiting_pods import WaitingPodsMap
from bayplan.intents.writes import Writes
from bayplan.objects.core import Pod
from bayplan.snapshot import Catalog
from bayplan.volumes import VolumeAssumptions

PostFunction = Callable[[str, bytes, float], Awaitable[bytes]]
"""Posts a body to a URL with a timeout in seconds and returns the body of the response."""


class NoApiServer(BayplanError):
    """A plugin wants to write to an API server in a process that has none."""


class NoWrites:
    """Replaces `Writes` in a process without an API server."""

    async def perform(self, intent: object) -> Any:
        raise NoApiServer(f"{type(intent).__name__} needs an API server; this process only decides")

    def submit(self, intent: object) -> None:
        """Does nothing: submitted intents only revert an earlier write, and there was none."""


@dataclass(frozen=True, slots=True)
class ProfileBindRequests:
    """Mutate plugins of one profile, for the bind requests of its pods."""

    factory: BindRequestFactory
    mutators: Callable[[], Sequence[Mutator]]

    def annotations(self, cycle: Cycle, node_name: str) -> dict[str, str]:
        mutators = self.mutators()
        return self.factory.mutation.annotations(mutators, cycle.pod.key, cycle, node_name) if mutators else {}


@dataclass(slots=True)
class EngineHandle:
    """What the plugins of one profile can use."""

    clock: Clock
    random: random.Random
    cache: Cache
    nominator: Nominator
    waiting_pods: WaitingPodsMap
    writes: Writes = field(default_factory=NoWrites)
    pending: dict[str, Pod] = field(default_factory=dict)  # by uid: pods that wait to be placed
    pods_to_activate: dict[str, Pod] = field(default_factory=dict)
    post_function: PostFunction | None = None
    bind_request_factory: BindRequestFactory | None = None
    framework: Framework | None = None  # set when the profile is built, which needs the handle first

    def __post_init__(self) -> None:
        if self.bind_request_factory is None:
            self.bind_request_factory = BindRequestFactory(self.clock)

    @property
    def bind_requests(self) -> ProfileBindRequests:
        assert self.bind_request_factory is not None
        return ProfileBindRequests(
            self.bind_request_factory, lambda: self.framework.profile.mutators if self.framework is not None else ()
        )

    @property
    def catalog(self) -> Catalog:
        return self.cache.catalog

    @property
    def volumes(self) -> VolumeAssumptions:
        return self.cache.volumes

    @property
    def devices(self) -> DeviceAssumptions:
        return self.cache.devices

    @property
    def filter_runner(self) -> FilterPoints:
        assert self.framework is not None, "filters exist only after the profile is built"
        return self.framework.filter_points

    def group_pods(self, namespace: str, group: str) -> Sequence[Pod]:
        """Every known pod of a PodGroup, pending or placed."""
        waiting = (pod for pod in self.pending.values() if self.cache.pod(pod.uid) is None)
        return [
            pod
            for pod in (*self.cache.pods(), *waiting)
            if pod.namespace == namespace
            and pod.spec.scheduling_group is not None
            and pod.spec.scheduling_group.pod_group_name == group
        ]

    def activate(self, pods: Mapping[str, Pod]) -> None:
        self.pods_to_activate.update(pods)

    async def post(self, url: str, body: bytes, timeout_s: float) -> bytes:
        if self.post_function is None:
            raise NoApiServer(f"POST {url} needs a network client ({len(body)} bytes, {timeout_s} s)")
        return await self.post_function(url, body, timeout_s)
