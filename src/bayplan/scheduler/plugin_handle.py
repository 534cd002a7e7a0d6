"""What the plugins of one profile reach: the engine's side of `framework.handle`, and what stands in for a cluster."""

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
from bayplan.framework.runtime.bind_request_factory import BindRequestDesk
from bayplan.framework.runtime.bind_request_mutation import Mutator
from bayplan.framework.runtime.filtering import Filtering
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.nominator import NominationLedger
from bayplan.framework.runtime.waiting_pods import WaitingPods
from bayplan.intents.writes import Writes
from bayplan.objects.core import Pod
from bayplan.snapshot import Catalog
from bayplan.volumes import VolumeAssumptions

Post = Callable[[str, bytes, float], Awaitable[bytes]]
"""Posts a body to an address within so many seconds; what comes back."""


class NothingToWriteTo(BayplanError):
    """A plugin wanted to write to an API server in a process that has none."""


class NoWrites:
    """Stands where an API server would be."""

    async def perform(self, intent: object) -> Any:
        raise NothingToWriteTo(f"{type(intent).__name__} needs an API server; this process only decides")

    def submit(self, intent: object) -> None:
        """What is written so takes back an earlier write, and there was none."""


@dataclass(frozen=True, slots=True)
class RequestMaking:
    """The bind requests of one profile's pods."""

    desk: BindRequestDesk
    mutators: Callable[[], Sequence[Mutator]]

    def annotations(self, cycle: Cycle, node_name: str) -> dict[str, str]:
        mutators = self.mutators()
        return self.desk.mutation.annotations(mutators, cycle.pod.key, cycle, node_name) if mutators else {}


@dataclass(slots=True)
class EngineHandle:
    """What the plugins of one profile reach."""

    clock: Clock
    chance: random.Random
    cache: Cache
    nominations: NominationLedger
    waiting: WaitingPods
    writes: Writes = field(default_factory=NoWrites)
    pending: dict[str, Pod] = field(default_factory=dict)  # by uid: pods that wait to be placed
    activated: dict[str, Pod] = field(default_factory=dict)
    poster: Post | None = None
    desk: BindRequestDesk | None = None
    framework: Framework | None = None  # set once the profile is built, which needs the handle first

    def __post_init__(self) -> None:
        if self.desk is None:
            self.desk = BindRequestDesk(self.clock)

    @property
    def bind_requests(self) -> RequestMaking:
        assert self.desk is not None
        return RequestMaking(self.desk, lambda: self.framework.profile.mutators if self.framework is not None else ())

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
    def filters(self) -> Filtering:
        assert self.framework is not None, "filters are there once the profile is built"
        return self.framework.filtering

    def group_pods(self, namespace: str, group: str) -> Sequence[Pod]:
        """Every known pod of a PodGroup, waiting or placed."""
        waiting = (pod for pod in self.pending.values() if self.cache.pod(pod.uid) is None)
        return [
            pod
            for pod in (*self.cache.pods(), *waiting)
            if pod.namespace == namespace
            and pod.spec.scheduling_group is not None
            and pod.spec.scheduling_group.pod_group_name == group
        ]

    def activate(self, pods: Mapping[str, Pod]) -> None:
        self.activated.update(pods)

    async def post(self, url: str, body: bytes, timeout_s: float) -> bytes:
        if self.poster is None:
            raise NothingToWriteTo(f"POST {url} needs a network client ({len(body)} bytes, {timeout_s} s)")
        return await self.poster(url, body, timeout_s)
