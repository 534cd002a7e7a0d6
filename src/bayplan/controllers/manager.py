"""Controller manager: the selected controllers of Kubernetes and Volcano, over one set of shared informers.

`bayplan controllers` and the embedded cluster run it. Names and selection are upstream's. Volcano's controllers wait
for Volcano's kinds; no other controller waits for them. Each controller has its own queue and is restarted when it
fails, so that no controller stops another.

    controllers = ControllerManager(client)
    running = asyncio.create_task(controllers.run())
    await controllers.wait_synced()
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
from bayplan.controllers.policy.cluster_role_aggregation import ClusterRoleAggregationController
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
    ClusterRoleAggregationController,
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
"""Names as in kube-controller-manager; Volcano's start with `volcano-`."""

VOLCANO = "volcano"
"""Word for all controllers of Volcano."""

_SHARED = frozenset(UPSTREAM_NAMES) & frozenset(CONTROLLER_NAMES)
"""Names in both kube-controller-manager and vc-controller-manager: `job-controller`, `cronjob-controller`."""

CLEANUP_CONTROLLERS: frozenset[str] = frozenset(
    each.name
    for each in (
        *(GarbageCollector, NamespaceController, PvProtectionController, PvcProtectionController),
        *(DefaultServiceAccountController, RootCaPublisher, ClusterRoleAggregationController),
    )
)
"""Controllers that an embedded cluster runs even without `--controllers`: no API server is usable without them."""


class ControllerManager:
    def __init__(
        self,
        client: Client,
        *,
        only: Collection[str] | None = None,
        schedulers: tuple[str, ...] = (SCHEDULER,),
        inherits: bool = True,
        counted_in: MetricsRegistry | None = None,
    ) -> None:
        """`only`: names of the controllers; default: all. Raises `UsageError` for an unknown name. `schedulers`: names
        of the batch schedulers whose pods get pod groups. `inherits`: pod groups inherit annotations of the pods'
        owner. `counted_in`: registry of the metrics of Volcano's controllers."""
        for name in only or ():
            if name not in CONTROLLER_NAMES:
                raise UsageError(f"there is no controller {name!r}; the controllers are {', '.join(CONTROLLER_NAMES)}")
        self._informers = SharedInformerFactory(client)
        self._controllers = [each(self._informers) for each in _ALL if only is None or each.name in only]
        batch = [name for name in VOLCANO_CONTROLLER_NAMES if only is None or name in only]
        self._batch = (
            VolcanoControllers(client, only=batch, schedulers=schedulers, inherits=inherits, counted_in=counted_in)
            if batch
            else None
        )
        self._started = asyncio.Event()

    @property
    def names(self) -> list[str]:
        batch = self._batch.names if self._batch is not None else []
        return sorted((*(each.name for each in self._controllers), *batch))

    async def run(self) -> None:
        """Run the controllers until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(), name="informers")
            for each in self._controllers:
                group.create_task(self._work(each), name=each.name)
            if self._batch is not None:
                group.create_task(run_supervised("batch controllers", self._batch.run, self._informers.clock.sleep))

    async def wait_synced(self) -> None:
        """Return when all first lists are complete and the controllers work. Volcano's may still wait for kinds."""
        await self._started.wait()
        for each in self._controllers:
            await each.wait_synced()

    async def _watch(self) -> None:
        await self._informers.discover()
        self._started.set()
        await self._informers.run()

    async def _work(self, controller: Controller) -> None:
        await self._started.wait()
        await run_supervised(controller.name, controller.run, self._informers.clock.sleep)


def select_controllers(patterns: Iterable[str]) -> list[str]:
    """Controllers that a list such as `*,-deployment-controller` selects: all, or the named ones, without those after
    a minus.

    `--controllers` is read as in both controller managers: of a name and its minus the first counts, and a plus is
    ignored. Words are names of Kubernetes' or Volcano's controllers. Volcano's may be short (`-job`,
    `-pg-controller`), and `volcano` selects all of them. `_resolve_shared_name` handles names that both have."""
    words = [each.strip() for each in patterns if each.strip()]
    wanted = [name for word in words for name in _expand(word, words)]
    for each in wanted:
        if each != "*" and each.removeprefix("-") not in CONTROLLER_NAMES:
            raise UsageError(
                f"--controllers: {each!r} is no controller; the controllers are {', '.join(CONTROLLER_NAMES)}"
            )

    def enabled(name: str) -> bool:
        for each in wanted:
            if each in (name, f"-{name}"):
                return each == name
        return "*" in wanted

    return [name for name in CONTROLLER_NAMES if enabled(name)]


def _without_minus(word: str) -> str:
    return word.removeprefix("-").removeprefix("+")


def _expand(word: str, words: list[str]) -> list[str]:
    """Full names of a word of the list, with its minus."""
    name, sign = _without_minus(word), "-" if word.startswith("-") else ""
    if name in UNSUPPORTED_CONTROLLERS:
        if not sign:
            log.warning("--controllers: Bayplan has no %s; the remaining controllers run", name)
        return []
    if name == VOLCANO:
        found: Iterable[str] = VOLCANO_CONTROLLER_NAMES
    elif name in _SHARED:
        found = _resolve_shared_name(name, words, excluded=bool(sign))
    elif name == "*" or name in CONTROLLER_NAMES:
        found = [name]
    else:
        found = [volcano_controller_name(name) or name]
    return [f"{sign}{each}" for each in found]


def _resolve_shared_name(name: str, words: list[str], *, excluded: bool) -> list[str]:
    """Controllers of a name that both Kubernetes and Volcano have. In a list of names that only Volcano has, it is
    Volcano's; in a list of Kubernetes' names, it is Kubernetes'.

    A list without other names is ambiguous. A missing controller is noticed at once; two controllers that do the same
    work create pods twice. So a minus disables both, and a plain name enables only Kubernetes'."""
    other_names = {_without_minus(word) for word in words} - _SHARED - {"*"}
    if other_names:
        return [UPSTREAM_NAMES[name]] if other_names <= {*UPSTREAM_NAMES, *UNSUPPORTED_CONTROLLERS} else [name]
    if excluded:
        log.warning(
            "--controllers: -%s also disables %s of Volcano; name that one before it to keep it, or write -%s to "
            "disable only that one",
            *(name, UPSTREAM_NAMES[name], UPSTREAM_NAMES[name]),
        )
    return [name, UPSTREAM_NAMES[name]] if excluded or "*" in words else [name]
