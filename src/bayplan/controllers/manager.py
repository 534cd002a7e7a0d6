"""Which controllers run, and how do they live together? Upstream's names, upstream's way to choose, one set of watches.

Kubernetes' own and Volcano's are chosen together; the latter wait for Volcano's kinds, and nobody waits for them.
Composed by `bayplan controllers` and by whoever runs a whole cluster. The controllers share one `World`; each has a
queue of its own and is begun anew when it fails, so that none can stop another.

    controllers = Controllers(client)
    running = asyncio.create_task(controllers.run())
    await controllers.synced()
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from bayplan.client import Client
from bayplan.controllers.batch.manager import BATCH_CONTROLLER_NAMES, BatchControllers, batch_controller_name
from bayplan.controllers.controller import Controller
from bayplan.controllers.cron_jobs import CronJobs
from bayplan.controllers.daemon_sets import DaemonSets
from bayplan.controllers.deployments import Deployments
from bayplan.controllers.disruption import Disruption
from bayplan.controllers.endpoint_slices import EndpointSlices
from bayplan.controllers.evictions import PodGarbage, TaintEviction
from bayplan.controllers.finished_jobs import FinishedJobs
from bayplan.controllers.furnishing import RootCertificates, ServiceAccounts
from bayplan.controllers.garbage import GarbageCollector
from bayplan.controllers.jobs import Jobs
from bayplan.controllers.namespaces import Namespaces
from bayplan.controllers.nodes import NodeLifecycle
from bayplan.controllers.quotas import Quotas
from bayplan.controllers.replica_sets import ReplicaSets
from bayplan.controllers.stateful_sets import StatefulSets
from bayplan.controllers.volume_binder import VolumeBinder
from bayplan.controllers.volume_protection import ClaimProtection, VolumeProtection
from bayplan.controllers.world import World, supervised
from bayplan.errors import UsageError
from bayplan.objects.batch_words import SCHEDULER
from bayplan.telemetry.metrics import Registry

_ALL: tuple[type[Controller], ...] = (
    ClaimProtection,
    CronJobs,
    DaemonSets,
    Deployments,
    Disruption,
    EndpointSlices,
    FinishedJobs,
    GarbageCollector,
    Jobs,
    Namespaces,
    NodeLifecycle,
    PodGarbage,
    Quotas,
    ReplicaSets,
    RootCertificates,
    ServiceAccounts,
    StatefulSets,
    TaintEviction,
    VolumeBinder,
    VolumeProtection,
)

CONTROLLER_NAMES: tuple[str, ...] = tuple(sorted((*(each.name for each in _ALL), *BATCH_CONTROLLER_NAMES)))
"""As kube-controller-manager calls them; Volcano's begin with `volcano-`."""

VOLCANOS = "volcano"
"""The word for all of Volcano's."""

HOUSEKEEPING: frozenset[str] = frozenset(
    {"garbage-collector-controller", "namespace-controller", "serviceaccount-controller"}
    | {"root-ca-certificate-publisher-controller"}
    | {"persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller"}
) & set(CONTROLLER_NAMES)
"""What Bayplan's own API server does by itself: harmless there, and to no purpose."""


class Controllers:
    """The controllers of a cluster, or some of them."""

    def __init__(
        self,
        client: Client,
        *,
        only: Collection[str] | None = None,
        schedulers: tuple[str, ...] = (SCHEDULER,),
        counted_in: Registry | None = None,
    ) -> None:
        """`only`: their names; all by default. Raises `UsageError` for a name that is none. `schedulers`: of sessions:
        whose pods get groups. `counted_in`: where the metrics of Volcano's are kept."""
        for name in only or ():
            if name not in CONTROLLER_NAMES:
                raise UsageError(f"there is no controller {name!r}; there are {', '.join(CONTROLLER_NAMES)}")
        self._world = World(client)
        self._controllers = [each(self._world) for each in _ALL if only is None or each.name in only]
        batch = [name for name in BATCH_CONTROLLER_NAMES if only is None or name in only]
        self._batch = (
            BatchControllers(client, only=batch, schedulers=schedulers, counted_in=counted_in) if batch else None
        )
        self._started = asyncio.Event()

    @property
    def names(self) -> list[str]:
        """What runs."""
        batch = self._batch.names if self._batch is not None else []
        return sorted((*(each.name for each in self._controllers), *batch))

    async def run(self) -> None:
        """Keep everything right until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(), name="world")
            for each in self._controllers:
                group.create_task(self._work(each), name=each.name)
            if self._batch is not None:
                group.create_task(supervised("batch controllers", self._batch.run, self._world.clock.sleep))

    async def synced(self) -> None:
        """Return when everything that existed has been heard of, and the controllers work; Volcano's may yet wait."""
        await self._started.wait()
        for each in self._controllers:
            await each.synced()

    async def _watch(self) -> None:
        await self._world.reach()
        self._started.set()
        await self._world.run()

    async def _work(self, controller: Controller) -> None:
        await self._started.wait()
        await supervised(controller.name, controller.run, self._world.clock.sleep)


def chosen(patterns: Iterable[str]) -> list[str]:
    """The controllers that `*,-job-controller` means: all, or those that are named, but for those with a minus.

    As kube-controller-manager reads `--controllers`: of a name and its minus the first counts. A word that is no name
    of Kubernetes' may be one of Volcano's, as short as it has them: `-job`, `-pg-controller`; `volcano` is all of
    them."""
    wanted = [name for each in patterns if each.strip() for name in _meant(each.strip())]
    for each in wanted:
        if each != "*" and each.removeprefix("-") not in CONTROLLER_NAMES:
            raise UsageError(f"--controllers: {each!r} is no controller; there are {', '.join(CONTROLLER_NAMES)}")

    def enabled(name: str) -> bool:
        for each in wanted:
            if each in (name, f"-{name}"):
                return each == name
        return "*" in wanted

    return [name for name in CONTROLLER_NAMES if enabled(name)]


def _meant(pattern: str) -> list[str]:
    """A pattern with the full name of a controller of Volcano's where it has a short one."""
    name = pattern.removeprefix("-")
    if name == VOLCANOS:
        return [pattern.replace(name, each) for each in BATCH_CONTROLLER_NAMES]
    if name == "*" or name in CONTROLLER_NAMES:
        return [pattern]
    full = batch_controller_name(name)
    return [pattern if full is None else pattern.replace(name, full)]
