"""Which of Volcano's controllers run? Volcano's own way to choose, on watches that they share.

    controllers = BatchControllers(client)
    running = asyncio.create_task(controllers.run())
    await controllers.synced()

Composed by `bayplan controllers` and by whoever runs a whole cluster. They wait for Volcano's kinds: a cluster may get
its CustomResourceDefinitions at any time, and then they begin. Each has a queue of its own and is begun anew when it
fails, so that none can stop another.
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
"""Between two looks whether Volcano's kinds have come."""

_REQUIRED_RESOURCES = (COMMANDS, HYPER_NODES, JOB_FLOWS, JOB_TEMPLATES, POD_GROUPS, QUEUES, VC_CRON_JOBS, VC_JOBS)
_FACTORIES: dict[str, Callable[[SharedInformerFactory, tuple[str, ...]], VolcanoController]] = {
    VolcanoCronJobController.name: lambda world, _: VolcanoCronJobController(world),
    VolcanoJobTtlController.name: lambda world, _: VolcanoJobTtlController(world),
    HyperNodeController.name: lambda world, _: HyperNodeController(world),
    VolcanoJobController.name: VolcanoJobController,
    JobFlowController.name: lambda world, _: JobFlowController(world),
    JobTemplateController.name: lambda world, _: JobTemplateController(world),
    PodGroupController.name: PodGroupController,
    QueueController.name: lambda world, _: QueueController(world),
}

VOLCANO_CONTROLLER_NAMES: tuple[str, ...] = tuple(sorted(_FACTORIES))
"""Volcano's names with `volcano-` before them: `job-controller` and `cronjob-controller` are Kubernetes' too."""

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
"""As vc-controller-manager calls them."""

UNSUPPORTED_CONTROLLERS = frozenset({"sharding-controller", "colocation-config-controller"})
"""Those of Volcano's that Bayplan has not. Lists name them to leave them out, Volcano's own default among them."""


def volcano_controller_name(text: str) -> str | None:
    """The controller that a word means: our name, Volcano's, or either without its ends, such as `job`."""
    if text in _FACTORIES:
        return text
    for volcanos, ours in UPSTREAM_NAMES.items():
        short = volcanos.removesuffix("-controller")
        if text in (volcanos, short, short.lower(), ours.removesuffix("-controller"), ours.split("-")[1]):
            return ours
    return None


def enabled_volcano_controllers(patterns: Iterable[str]) -> list[str]:
    """The controllers that `*,-job` means, as vc-controller-manager reads `--controllers`. Raises `UsageError`."""
    wanted = [each.strip() for each in patterns if each.strip()]
    meant: dict[str, bool] = {}
    for each in wanted:
        word = each.removeprefix("-").removeprefix("+")
        if word == "*" or word in UNSUPPORTED_CONTROLLERS:
            continue
        name = volcano_controller_name(word)
        if name is None:
            raise UsageError(
                f"{each!r} is none of Volcano's controllers; there are {', '.join(VOLCANO_CONTROLLER_NAMES)}"
            )
        meant.setdefault(name, not each.startswith("-"))
    return [name for name in VOLCANO_CONTROLLER_NAMES if meant.get(name, "*" in wanted)]


class VolcanoControllers:
    """Volcano's controllers, or some of them."""

    def __init__(
        self,
        client: Client,
        *,
        only: Collection[str] | None = None,
        schedulers: tuple[str, ...] = (SCHEDULER,),
        inherits: bool = True,
        counted_in: MetricsRegistry | None = None,
    ) -> None:
        """`only`: their names; all by default. `schedulers`: whose pods get groups; jobs go to the first. `inherits`:
        groups get annotations of who owns the pods. `counted_in`: where Volcano's controller metrics are kept, if they
        are."""
        for name in only or ():
            if name not in _FACTORIES:
                raise UsageError(f"there is no controller {name!r}; there are {', '.join(VOLCANO_CONTROLLER_NAMES)}")
        self._client = client
        self._world = SharedInformerFactory(client)
        self._controllers = [
            make(self._world, schedulers) for name, make in _FACTORIES.items() if only is None or name in only
        ]
        for each in self._controllers:
            if isinstance(each, PodGroupController):
                each.inherits = inherits
        if counted_in is not None:
            VolcanoControllerMetrics(self._world, counted_in)
        self._started = asyncio.Event()

    @property
    def names(self) -> list[str]:
        """What runs."""
        return sorted(each.name for each in self._controllers)

    async def run(self) -> None:
        """Keep everything right until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(), name="batch world")
            for each in self._controllers:
                group.create_task(self._work(each), name=each.name)

    async def synced(self) -> None:
        """Return when everything that existed has been heard of, and the controllers work."""
        await self._started.wait()
        for each in self._controllers:
            await each.synced()

    async def _watch(self) -> None:
        await self._wait_for_crds()
        await self._world.discover()
        self._started.set()
        await self._world.run()

    async def _wait_for_crds(self) -> None:
        """Wait until the server has Volcano's kinds."""
        told = False
        while True:
            offered = await self._client.wait_for_server(
                [each.kind for each in _REQUIRED_RESOURCES if each.kind is not None]
            )
            if not offered.missing:
                return
            if not told:
                names = ", ".join(kind.plural for kind in offered.missing)
                log.info("the API server has no %s yet; `bayplan crds` has their definitions", names)
                told = True
            await self._world.clock.sleep(CRD_POLL_INTERVAL_S)

    async def _work(self, controller: VolcanoController) -> None:
        await self._started.wait()
        await run_supervised(controller.name, controller.run, self._world.clock.sleep)
