"""Manager of Volcano's controllers: selects them as vc-controller-manager does, over one set of shared informers.

    controllers = VolcanoControllers(client)
    running = asyncio.create_task(controllers.run())
    await controllers.wait_synced()

`bayplan controllers` and the embedded cluster run it. The controllers wait for Volcano's kinds, because a cluster may
get its CustomResourceDefinitions at any time. Each controller has its own queue and is restarted when it fails, so that
no controller stops another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from bayplan.client import Client
from bayplan.controllers.core.shared_informers import SharedInformerFactory, run_supervised
from bayplan.controllers.volcano.controller import VolcanoController
from bayplan.controllers.volcano.cron_jobs import VolcanoCronJobController
from bayplan.controllers.volcano.hyper_nodes import HyperNodeController
from bayplan.controllers.volcano.job_flows import JobFlowController, JobTemplateController
from bayplan.controllers.volcano.jobs import VolcanoJobController
from bayplan.controllers.volcano.metrics import VolcanoControllerMetrics
from bayplan.controllers.volcano.pod_groups import PodGroupController
from bayplan.controllers.volcano.queues import QueueController
from bayplan.controllers.volcano.resources import (
    COMMANDS,
    HYPER_NODES,
    JOB_FLOWS,
    JOB_TEMPLATES,
    POD_GROUPS,
    QUEUES,
    VC_CRON_JOBS,
    VC_JOBS,
)
from bayplan.controllers.volcano.ttl_after_finished import VolcanoJobTtlController
from bayplan.errors import UsageError
from bayplan.objects.volcano.constants import SCHEDULER
from bayplan.telemetry.metrics import MetricsRegistry

log = logging.getLogger(__name__)

CRD_POLL_INTERVAL_S = 5.0
"""Interval of the checks whether Volcano's kinds are served."""

_REQUIRED_RESOURCES = (COMMANDS, HYPER_NODES, JOB_FLOWS, JOB_TEMPLATES, POD_GROUPS, QUEUES, VC_CRON_JOBS, VC_JOBS)
_FACTORIES: dict[str, Callable[[SharedInformerFactory, tuple[str, ...]], VolcanoController]] = {
    VolcanoCronJobController.name: lambda informers, _: VolcanoCronJobController(informers),
    VolcanoJobTtlController.name: lambda informers, _: VolcanoJobTtlController(informers),
    HyperNodeController.name: lambda informers, _: HyperNodeController(informers),
    VolcanoJobController.name: VolcanoJobController,
    JobFlowController.name: lambda informers, _: JobFlowController(informers),
    JobTemplateController.name: lambda informers, _: JobTemplateController(informers),
    PodGroupController.name: PodGroupController,
    QueueController.name: lambda informers, _: QueueController(informers),
}

VOLCANO_CONTROLLER_NAMES: tuple[str, ...] = tuple(sorted(_FACTORIES))
"""Volcano's names with prefix `volcano-`, because Kubernetes has `job-controller` and `cronjob-controller`, too."""

UPSTREAM_NAMES = {
    "cronjob-controller": VolcanoCronJobController.name,
    "gc-controller": VolcanoJobTtlController.name,
    "hyperNode-controller": HyperNodeController.name,
    "job-controller": VolcanoJobController.name,
    "jobflow-controller": JobFlowController.name,
    "jobtemplate-controller": JobTemplateController.name,
    "pg-controller": PodGroupController.name,
    "queue-controller": QueueController.name,
}
"""Names in vc-controller-manager."""

UNSUPPORTED_CONTROLLERS = frozenset({"sharding-controller", "colocation-config-controller"})
"""Controllers of Volcano that Bayplan lacks. Lists, among them Volcano's default, may name them to disable them."""


def volcano_controller_name(text: str) -> str | None:
    """Find the controller of a word: Bayplan's name, Volcano's, or either without its affixes, such as `job`."""
    if text in _FACTORIES:
        return text
    for volcano_name, name in UPSTREAM_NAMES.items():
        short = volcano_name.removesuffix("-controller")
        if text in (volcano_name, short, short.lower(), name.removesuffix("-controller"), name.split("-")[1]):
            return name
    return None


def enabled_volcano_controllers(patterns: Iterable[str]) -> list[str]:
    """Controllers that `*,-job` selects, as vc-controller-manager reads `--controllers`. Raises `UsageError`."""
    wanted = [each.strip() for each in patterns if each.strip()]
    enabled: dict[str, bool] = {}
    for each in wanted:
        word = each.removeprefix("-").removeprefix("+")
        if word == "*" or word in UNSUPPORTED_CONTROLLERS:
            continue
        name = volcano_controller_name(word)
        if name is None:
            raise UsageError(
                f"{each!r} is no controller of Volcano; the controllers are {', '.join(VOLCANO_CONTROLLER_NAMES)}"
            )
        enabled.setdefault(name, not each.startswith("-"))
    return [name for name in VOLCANO_CONTROLLER_NAMES if enabled.get(name, "*" in wanted)]


class VolcanoControllers:
    def __init__(
        self,
        client: Client,
        *,
        only: Collection[str] | None = None,
        schedulers: tuple[str, ...] = (SCHEDULER,),
        inherits: bool = True,
        counted_in: MetricsRegistry | None = None,
    ) -> None:
        """`only`: names of the controllers; default: all. `schedulers`: names of the batch schedulers whose pods get
        pod groups; jobs get the first. `inherits`: pod groups inherit annotations of the pods' owner. `counted_in`:
        registry of Volcano's controller metrics."""
        for name in only or ():
            if name not in _FACTORIES:
                raise UsageError(
                    f"there is no controller {name!r}; the controllers are {', '.join(VOLCANO_CONTROLLER_NAMES)}"
                )
        self._client = client
        self._informers = SharedInformerFactory(client)
        self._controllers = [
            make(self._informers, schedulers) for name, make in _FACTORIES.items() if only is None or name in only
        ]
        for each in self._controllers:
            if isinstance(each, PodGroupController):
                each.inherits = inherits
        if counted_in is not None:
            VolcanoControllerMetrics(self._informers, counted_in)
        self._started = asyncio.Event()

    @property
    def names(self) -> list[str]:
        return sorted(each.name for each in self._controllers)

    async def run(self) -> None:
        """Run the controllers until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(), name="batch informers")
            for each in self._controllers:
                group.create_task(self._work(each), name=each.name)

    async def wait_synced(self) -> None:
        """Return when all first lists are complete and the controllers work."""
        await self._started.wait()
        for each in self._controllers:
            await each.wait_synced()

    async def _watch(self) -> None:
        await self._wait_for_crds()
        await self._informers.discover()
        self._started.set()
        await self._informers.run()

    async def _wait_for_crds(self) -> None:
        logged = False
        while True:
            served = await self._client.wait_for_server(
                [each.kind for each in _REQUIRED_RESOURCES if each.kind is not None]
            )
            if not served.missing:
                return
            if not logged:
                names = ", ".join(kind.plural for kind in served.missing)
                log.info("the API server does not serve %s yet; install them with `bayplan crds`", names)
                logged = True
            await self._informers.clock.sleep(CRD_POLL_INTERVAL_S)

    async def _work(self, controller: VolcanoController) -> None:
        await self._started.wait()
        await run_supervised(controller.name, controller.run, self._informers.clock.sleep)
