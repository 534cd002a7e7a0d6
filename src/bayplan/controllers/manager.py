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
import logging
from collections.abc import Collection, Iterable

from bayplan.client import Client
from bayplan.controllers.cleanup.garbage_collector import GarbageCollector
from bayplan.controllers.cleanup.namespaces import NamespaceController
from bayplan.controllers.cleanup.ttl_after_finished import TtlAfterFinishedController
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import SharedInformerFactory, run_supervised
from bayplan.controllers.networking.endpoint_slices import EndpointSliceController
from bayplan.controllers.nodes.node_lifecycle import NodeLifecycleController
from bayplan.controllers.nodes.taint_eviction import PodGarbageCollector, TaintEvictionController
from bayplan.controllers.policy.disruption_budgets import DisruptionController
from bayplan.controllers.policy.namespace_defaults import DefaultServiceAccountController, RootCaPublisher
from bayplan.controllers.policy.resource_quotas import ResourceQuotaController
from bayplan.controllers.storage.volume_binder import PersistentVolumeBinder
from bayplan.controllers.storage.volume_protection import PvcProtectionController, PvProtectionController
from bayplan.controllers.volcano.manager import (
    UNSUPPORTED_CONTROLLERS,
    UPSTREAM_NAMES,
    VOLCANO_CONTROLLER_NAMES,
    VolcanoControllers,
    volcano_controller_name,
)
from bayplan.controllers.workloads.cron_jobs import CronJobController
from bayplan.controllers.workloads.daemon_sets import DaemonSetController
from bayplan.controllers.workloads.deployments import DeploymentController
from bayplan.controllers.workloads.jobs import JobController
from bayplan.controllers.workloads.replica_sets import ReplicaSetController
from bayplan.controllers.workloads.resource_claims import ResourceClaimController
from bayplan.controllers.workloads.stateful_sets import StatefulSetController
from bayplan.errors import UsageError
from bayplan.objects.volcano.constants import SCHEDULER
from bayplan.telemetry.metrics import MetricsRegistry

log = logging.getLogger(__name__)

_ALL: tuple[type[Controller], ...] = (
    PvcProtectionController,
    CronJobController,
    DaemonSetController,
    DeploymentController,
    DisruptionController,
    EndpointSliceController,
    TtlAfterFinishedController,
    GarbageCollector,
    JobController,
    NamespaceController,
    NodeLifecycleController,
    PodGarbageCollector,
    ResourceQuotaController,
    ReplicaSetController,
    ResourceClaimController,
    RootCaPublisher,
    DefaultServiceAccountController,
    StatefulSetController,
    TaintEvictionController,
    PersistentVolumeBinder,
    PvProtectionController,
)

CONTROLLER_NAMES: tuple[str, ...] = tuple(sorted((*(each.name for each in _ALL), *VOLCANO_CONTROLLER_NAMES)))
"""As kube-controller-manager calls them; Volcano's begin with `volcano-`."""

VOLCANO = "volcano"
"""The word for all of Volcano's."""

_SHARED = frozenset(UPSTREAM_NAMES) & frozenset(CONTROLLER_NAMES)
"""What kube-controller-manager and vc-controller-manager both have: `job-controller`, `cronjob-controller`."""

CLEANUP_CONTROLLERS: frozenset[str] = frozenset(
    {"garbage-collector-controller", "namespace-controller", "serviceaccount-controller"}
    | {"root-ca-certificate-publisher-controller"}
    | {"persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller"}
) & set(CONTROLLER_NAMES)
"""What Bayplan's own API server does by itself: harmless there, and to no purpose."""


class ControllerManager:
    """The controllers of a cluster, or some of them."""

    def __init__(
        self,
        client: Client,
        *,
        only: Collection[str] | None = None,
        schedulers: tuple[str, ...] = (SCHEDULER,),
        inherits: bool = True,
        counted_in: MetricsRegistry | None = None,
    ) -> None:
        """`only`: their names; all by default. Raises `UsageError` for a name that is none. `schedulers`: of sessions:
        whose pods get groups. `inherits`: groups get annotations of who owns the pods. `counted_in`: where the metrics
        of Volcano's are kept."""
        for name in only or ():
            if name not in CONTROLLER_NAMES:
                raise UsageError(f"there is no controller {name!r}; there are {', '.join(CONTROLLER_NAMES)}")
        self._world = SharedInformerFactory(client)
        self._controllers = [each(self._world) for each in _ALL if only is None or each.name in only]
        batch = [name for name in VOLCANO_CONTROLLER_NAMES if only is None or name in only]
        self._batch = (
            VolcanoControllers(client, only=batch, schedulers=schedulers, inherits=inherits, counted_in=counted_in)
            if batch
            else None
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
                group.create_task(run_supervised("batch controllers", self._batch.run, self._world.clock.sleep))

    async def synced(self) -> None:
        """Return when everything that existed has been heard of, and the controllers work; Volcano's may yet wait."""
        await self._started.wait()
        for each in self._controllers:
            await each.synced()

    async def _watch(self) -> None:
        await self._world.discover()
        self._started.set()
        await self._world.run()

    async def _work(self, controller: Controller) -> None:
        await self._started.wait()
        await run_supervised(controller.name, controller.run, self._world.clock.sleep)


def select_controllers(patterns: Iterable[str]) -> list[str]:
    """The controllers that `*,-deployment-controller` means: all, or those that are named, but for those with a minus.

    As both controller managers read `--controllers`: of a name and its minus the first counts, and a plus says nothing.
    Words are names of Kubernetes' or of Volcano's, the latter as short as one has them: `-job`, `-pg-controller`;
    `volcano` is all of them. What a name that both have means is for the rest of the list to say: see
    `_resolve_shared_name`."""
    words = [each.strip() for each in patterns if each.strip()]
    wanted = [name for word in words for name in _expand(word, words)]
    for each in wanted:
        if each != "*" and each.removeprefix("-") not in CONTROLLER_NAMES:
            raise UsageError(f"--controllers: {each!r} is no controller; there are {', '.join(CONTROLLER_NAMES)}")

    def enabled(name: str) -> bool:
        for each in wanted:
            if each in (name, f"-{name}"):
                return each == name
        return "*" in wanted

    return [name for name in CONTROLLER_NAMES if enabled(name)]


def _without_minus(word: str) -> str:
    return word.removeprefix("-").removeprefix("+")


def _expand(word: str, words: list[str]) -> list[str]:
    """The full names, with a minus where there is one, of what a word of a list means."""
    name, sign = _without_minus(word), "-" if word.startswith("-") else ""
    if name in UNSUPPORTED_CONTROLLERS:
        if not sign:
            log.warning("--controllers: Bayplan has no %s; the others run", name)
        return []
    if name == VOLCANO:
        found: Iterable[str] = VOLCANO_CONTROLLER_NAMES
    elif name in _SHARED:
        found = _resolve_shared_name(name, words, left_out=bool(sign))
    elif name == "*" or name in CONTROLLER_NAMES:
        found = [name]
    else:
        found = [volcano_controller_name(name) or name]
    return [f"{sign}{each}" for each in found]


def _resolve_shared_name(name: str, words: list[str], *, left_out: bool) -> list[str]:
    """Whose controller a name means that Kubernetes and Volcano both have. Among names that only Volcano has it is
    Volcano's, among ours Kubernetes'.

    A list with nothing else in it does not tell. To leave the work to somebody else who does not do it is seen at once
    and soon mended; two who do the same work make pods twice. So both are left out, and only Kubernetes' is begun."""
    others = {_without_minus(word) for word in words} - _SHARED - {"*"}
    if others:
        return [UPSTREAM_NAMES[name]] if others <= {*UPSTREAM_NAMES, *UNSUPPORTED_CONTROLLERS} else [name]
    if left_out:
        log.warning(
            "--controllers: -%s leaves out %s of Volcano's too; name that before it to keep it, or write -%s to leave "
            "out nothing else",
            *(name, UPSTREAM_NAMES[name], UPSTREAM_NAMES[name]),
        )
    return [name, UPSTREAM_NAMES[name]] if left_out or "*" in words else [name]
