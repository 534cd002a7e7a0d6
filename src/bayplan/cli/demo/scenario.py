"""Scenario of the demo: starts a cluster, creates workloads one after another, and prints the result of each step.

Imported by `bayplan demo` before its loop starts. Cost: some five seconds, most of it the run time of the jobs.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import click

from bayplan.apiserver.embedded import credentials_for
from bayplan.app.batch import BatchSettings
from bayplan.app.cluster import ClusterOptions, InProcessCluster, SchedulerSetup
from bayplan.batch.config.scheduler_conf import load_conf
from bayplan.cli.cluster_folder import ClusterFolder, RunningCluster
from bayplan.cli.cluster_monitor import ClusterMonitor
from bayplan.cli.demo import workloads as story
from bayplan.cli.demo.screen import Screen
from bayplan.cli.signals import ignore_further_signals
from bayplan.client import Applier, Client
from bayplan.controllers import NodePool, PodBehavior, nodes_of
from bayplan.controllers.volcano.resources import VC_JOBS
from bayplan.objects.core import Pod
from bayplan.telemetry.page_rows import unschedulable_message

CLUSTER_NAME = "demo"
STEP_TIMEOUT_S = 60.0
Tree = story.Tree
_PAUSE_S = 0.15
"""Pause between objects, so that a person can watch; none without a terminal."""


async def run_demo(*, keep: bool) -> None:
    async with AsyncExitStack() as stack:
        folder = _folder(stack, keep=keep)
        cluster = await stack.enter_async_context(_cluster(folder))
        client = await stack.enter_async_context(cluster.client("bayplan-demo"))
        view = ClusterMonitor(client)
        screen = stack.enter_context(Screen(view))
        await stack.enter_async_context(_run_screen(view, screen))
        scenario = _DemoScenario(cluster, view, screen, client).run()
        await cluster.wait_unless_failed(asyncio.ensure_future(scenario))
        screen.close()
        _print_next_steps()
        if keep:
            await _keep_running(cluster, folder)
        click.echo(f"\nits page, {cluster.page_url}, stops with it; `bayplan demo --keep` keeps both")
        ignore_further_signals()


def _folder(stack: AsyncExitStack, *, keep: bool) -> ClusterFolder:
    """The folder of the cluster: a permanent one with `--keep`, else a temporary one."""
    if keep:
        folder = ClusterFolder.of_name(CLUSTER_NAME, os.environ)
        stack.enter_context(folder.lock())
        return folder
    return ClusterFolder(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bayplan-demo-"))), CLUSTER_NAME)


@asynccontextmanager
async def _cluster(folder: ClusterFolder) -> AsyncIterator[InProcessCluster]:
    plan = ClusterOptions(
        credentials=credentials_for(folder.path, "127.0.0.1"),
        nodes=nodes_of(map(NodePool.parse, story.POOLS), story.ZONES),
        pod_lifecycle=PodBehavior(starts_after_s=0.3),
        scheduler=SchedulerSetup.from_text(batch=BatchSettings(conf=load_conf(story.SCHEDULER_CONF))),
        page_address="127.0.0.1:0",
        owns_process=True,
    )
    async with InProcessCluster(plan) as cluster:
        yield cluster


@asynccontextmanager
async def _run_screen(view: ClusterMonitor, screen: Screen) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(view.run()), asyncio.create_task(screen.run())]
    try:
        await view.ready()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _DemoScenario:
    """The steps of the demo. Each waits for its result before it prints it."""

    def __init__(self, cluster: InProcessCluster, view: ClusterMonitor, screen: Screen, client: Client) -> None:
        self._cluster = cluster
        self._view = view
        self._screen = screen
        self._client = client
        self._applier = Applier(client)

    async def run(self) -> None:
        await self._cluster.ready()
        self._screen.print_line(f"{len(self._view.nodes)} nodes are Ready in {story.ZONES} zones")
        self._screen.print_line(f"open in a browser: {self._cluster.page_url}")
        await self._web(story.web(), story.WEB_PODS)
        await self._jobs(story.jobs(), story.JOBS * story.PODS_PER_JOB)
        await self._queues(story.queues(), story.sweep(), story.second_sweep(), story.release())
        await self._preemption(story.training(), story.urgent(), story.TRAINING_PODS)
        await self._unschedulable(story.oversized_pod())

    async def _web(self, objects: list[Tree], count: int) -> None:
        self._screen.print_step(f"a web deployment of {count} pods that spreads over the zones")
        await self._apply(objects)
        await self._until("web pods Running", count, lambda: self._in_phase("web-", "Running"))
        zones: dict[str, int] = {}
        for pod in self._view.pods_with_prefix("web-"):
            zone = self._view.nodes[pod.spec.node_name].zone
            zones[zone] = zones.get(zone, 0) + 1
        self._screen.print_line("spread: " + ", ".join(f"{zone} has {zones[zone]}" for zone in sorted(zones)))

    async def _jobs(self, objects: list[Tree], count: int) -> None:
        self._screen.print_step(f"a batch of {len(objects)} jobs with {count} pods that complete")
        await self._apply(objects)
        await self._until("pods of jobs Succeeded", count, lambda: self._in_phase("render-", "Succeeded"))
        self._screen.print_line(f"all {len(objects)} jobs are complete, and their resources are free again")

    async def _queues(self, queues: list[Tree], sweep: Tree, later: Tree, release: Tree) -> None:
        self._screen.print_step(
            "two queues of equal weight: a gang takes all GPUs, the next waits, the other queue reclaims its half"
        )
        await self._apply([*queues, sweep])
        await self._until("pods of the gang Running", story.SWEEP_PODS, lambda: self._in_phase("sweep-", "Running"))
        await self._apply([later])
        await self._until(
            "pods of the next gang waiting", story.SECOND_SWEEP_PODS, lambda: len(self._unschedulable_pods("later-"))
        )
        self._screen.print_line(f"later starts as a whole or not at all: {self._why('later-')}")
        await self._apply([release])
        await self._until("pods of the other queue's gang Running", story.RELEASE_PODS, self._count_released)
        left = self._in_phase("sweep-", "Running")
        self._screen.print_line(f"{story.QUEUES[1]} has its half: sweep continues with {left} pods, its minimum")
        await self._remove(sweep, later, release)
        await self._until("GPU pool free again", 1, lambda: int(not self._gangs()))

    def _count_released(self) -> int:
        return self._in_phase("release-", "Running")

    def _gangs(self) -> list[Pod]:
        return [pod for prefix in ("sweep-", "later-", "release-") for pod in self._view.pods_with_prefix(prefix)]

    def _why(self, prefix: str) -> str:
        return next(
            unschedulable_message(pod)[1]
            for pod in self._view.pods_with_prefix(prefix)
            if unschedulable_message(pod)[1]
        )

    async def _preemption(self, objects: list[Tree], urgent: Tree, count: int) -> None:
        self._screen.print_step(f"training takes all GPUs ({count} pods of 8); then an urgent pod requests 8 of them")
        await self._apply(objects)
        await self._until("training pods Running", count, lambda: self._in_phase("train-", "Running"))
        before = {pod.name for pod in self._view.pods_with_prefix("train-")}
        await self._apply([urgent])
        await self._until("urgent pod Running", 1, lambda: self._in_phase("urgent", "Running"))
        await self._until("replacement pod pending", 1, lambda: len(self._unschedulable_pods("train-")))
        node = self._view.pods["default", "urgent"].spec.node_name
        evicted = sorted(before - {pod.name for pod in self._view.pods_with_prefix("train-")})
        self._screen.print_line(
            f"urgent runs on {node}: {', '.join(evicted)} was evicted for it, and its replacement is pending"
        )

    async def _unschedulable(self, pod: Tree) -> None:
        self._screen.print_step("a pod that requests 16 GPUs on one node in zone-1")
        await self._apply([pod])
        await self._until("pod unschedulable", 1, lambda: len(self._unschedulable_pods("giant")))
        self._screen.print_line("giant stays pending:")
        for line in split_reasons(unschedulable_message(self._view.pods["default", "giant"])[1]):
            self._screen.print_line(f"  {line}")

    async def _apply(self, objects: Iterable[Tree]) -> None:
        for tree in objects:
            applied = await self._applier.apply(tree)
            self._screen.print_line(f"applied {applied}")
            if self._screen.watched:
                await asyncio.sleep(_PAUSE_S)

    async def _remove(self, *jobs: Tree) -> None:
        for tree in jobs:
            name = tree["metadata"]["name"]
            await self._client.delete(VC_JOBS, name=name, namespace="default")
            self._screen.print_line(f"deleted job {name} and its pods")

    async def _until(self, what: str, count: int, now: Callable[[], int]) -> None:
        """Wait until `count` is reached. A timeout names what is missing."""
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                await self._screen.wait_for_count(what, count, now)
        except TimeoutError:
            raise click.ClickException(
                f"{now()} of {count} {what} after {STEP_TIMEOUT_S:g} s; the machine is too busy for the demo; try "
                "again later"
            ) from None

    def _in_phase(self, prefix: str, phase: str) -> int:
        return sum(pod.status.phase == phase for pod in self._view.pods_with_prefix(prefix))

    def _unschedulable_pods(self, prefix: str) -> list[str]:
        found = self._view.pods_with_prefix(prefix)
        return [
            pod.name for pod in found if not pod.spec.node_name and unschedulable_message(pod)[0] == "Unschedulable"
        ]


def split_reasons(message: str) -> list[str]:
    """Split kube-scheduler's message into lines: the number of nodes, each reason, and the result of preemption."""
    head, _, rest = message.partition(": ")
    first, *more = rest.split(". ")
    lines = [head, *(f"  {reason.strip().rstrip('.')}" for reason in re.split(r", (?=\d)", first))]
    return [*lines, *(other.strip().rstrip(".") for other in more if other.strip())]


def _print_next_steps() -> None:
    lines = [
        "",
        "the demo is complete. Next steps:",
        "  bayplan demo --keep                                   the same, with the cluster and its page kept up",
        "  bayplan cluster up --detach --nodes 50 --zones 3      a cluster of your own",
        "  bayplan get pods -A --watch                           its pods and their changes",
        "  bayplan top                                           its usage",
        "  bayplan place -f examples/cluster                     schedule pods of files, with reasons",
        "  bayplan plugin new MyPlugin --dir plugins              change the placement of pods, in Python",
    ]
    click.echo("\n".join(lines))


async def _keep_running(cluster: InProcessCluster, folder: ClusterFolder) -> None:
    cluster.write_kubeconfig(folder.kubeconfig, folder.name)
    folder.write_record(RunningCluster(os.getpid(), cluster.url, page=cluster.page_url))
    lines = [
        "",
        f"the cluster stays up at {cluster.url} until Ctrl-C, or `bayplan cluster down --name {CLUSTER_NAME}`:",
        f"  export KUBECONFIG={folder.kubeconfig}",
        "  kubectl get pods -A -o wide",
        "  kubectl describe pod giant",
        f"  bayplan why giant --cluster {CLUSTER_NAME}",
        f"  bayplan top --cluster {CLUSTER_NAME}",
        "",
        f"page: {cluster.page_url}",
    ]
    click.echo("\n".join(lines))
    await cluster.wait_unless_failed(asyncio.ensure_future(asyncio.Event().wait()))
