"""`bayplan cluster`: a Kubernetes API on this machine, with nothing but Python."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from bayplan.cli.cluster_folder import DEFAULT_NAME, ClusterFolder, ClusterFolderError, RunningCluster
from bayplan.cli.flags.kubelet_options import kubelet_options, parse_kubelet_options, pop_kubelet_options
from bayplan.cli.flags.page_options import page_option
from bayplan.cli.flags.plugin_options import plugin_options
from bayplan.cli.output.terminal import progress
from bayplan.errors import UsageError

if TYPE_CHECKING:
    from bayplan.apiserver.auth.credentials import ClusterCredentials
    from bayplan.apiserver.embedded import EmbeddedCluster
    from bayplan.apiserver.storage.sqlite_backend import DataSync
    from bayplan.app.batch import BatchSettings
    from bayplan.app.cluster import InProcessCluster, SchedulerSetup
    from bayplan.config.bayplan_settings import BayplanSettings
    from bayplan.controllers.kubelet.node_pools import NodePool

START_S = 300.0
"""How long a detached cluster is waited for. One that fails is heard at once, so this is only for one that hangs: the
three seconds of processor time can take a minute where twenty others want the same core."""
START_NODE_S = 0.02
READY_PIPE = "BAYPLAN_READY_PIPE"
"""The variable that tells a cluster that is started detached where its starter waits for a word."""

name_option = click.option(
    "--name", default=DEFAULT_NAME, show_default=True, help="Which cluster, where there are several."
)


@click.group("cluster")
def command() -> None:
    """A Kubernetes API on this machine: kubectl and every other client take it for a cluster.

    Nodes, controllers and a scheduler come with it, all in one process.

    \b
    Examples:
      bayplan cluster up --detach --nodes 10 --zones 3
      bayplan cluster up --data ~/cluster.db --port 6443
      bayplan cluster status
      bayplan cluster reset
      bayplan cluster down
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _UpOptions:
    """What `cluster up` was told."""

    name: str
    port: int
    host: str
    data: Path | None
    data_sync: DataSync
    token_file: Path | None
    client_ca: Path | None
    nodes: tuple[str, ...]
    zones: int
    scheduler: bool
    controllers: bool
    config: Path | None
    batch: bool
    scheduler_conf: Path | None
    settings: Path | None
    plugin_folders: tuple[Path, ...]
    trust_writable_plugins: bool
    page_address: str
    kubelet_options: dict[str, str]
    """How pods live that say nothing themselves, as flags with what they were given."""

    def arguments(self) -> list[str]:
        """The same as a command line, for a process of its own in another folder."""
        given = ["cluster", "up", "--name", self.name, "--port", str(self.port), "--host", self.host]
        given += ["--data-sync", self.data_sync]
        paths = {"--data": self.data, "--token-file": self.token_file, "--client-ca": self.client_ca}
        paths |= {"--config": self.config, "--scheduler-conf": self.scheduler_conf, "--settings": self.settings}
        for flag, path in paths.items():
            given += [flag, str(path.absolute())] if path is not None else []
        for spec in self.nodes:
            given += ["--nodes", spec]
        for flag, text in self.kubelet_options.items():
            given += [flag, text]
        for folder in self.plugin_folders:
            given += ["--plugins-dir", str(folder.absolute())]
        switches = {
            "--no-scheduler": not self.scheduler,
            "--no-controllers": not self.controllers,
            "--batch": self.batch,
            "--trust-writable-plugins": self.trust_writable_plugins,
        }
        given += ["--zones", str(self.zones), "--page-address", self.page_address]
        return [*given, *(flag for flag, on in switches.items() if on)]

    def pools(self) -> list[NodePool]:
        if set(self.nodes) <= {"0"}:  # an API server alone starts without all that nodes need
            return []
        from bayplan.controllers.kubelet.node_pools import NodePool

        return [NodePool.parse(spec) for spec in self.nodes]

    @property
    def node_count(self) -> int:
        return sum(pool.count for pool in self.pools())

    @property
    def is_api_only(self) -> bool:
        return not (self.scheduler or self.controllers or self.node_count)

    def manifests(self) -> list[dict[str, Any]]:
        if not (pools := self.pools()):
            return []
        from bayplan.controllers.kubelet.node_pools import nodes_of

        return nodes_of(pools, self.zones)

    def setup(self) -> SchedulerSetup | None:
        if not self.scheduler:
            return None
        from bayplan.app.cluster import SchedulerSetup
        from bayplan.cli.engine_setup import explain_config_errors, load_plugins, read_text

        text = read_text(self.config) if self.config is not None else None
        registry = load_plugins(self.plugin_folders, trust_writable=self.trust_writable_plugins)
        own = self.bayplan_settings()
        with explain_config_errors(self.config, registry):
            return SchedulerSetup.from_text(
                text,
                self.plugin_folders,
                trust_writable=self.trust_writable_plugins,
                batch=self.batch_settings(own),
                own=own,
                place=str(self.settings),
            )

    def bayplan_settings(self) -> BayplanSettings:
        from bayplan.cli.engine_setup import read_text
        from bayplan.config.bayplan_settings import BayplanSettings, load_settings

        return (
            BayplanSettings() if self.settings is None else load_settings(read_text(self.settings), str(self.settings))
        )

    def batch_settings(self, own: BayplanSettings) -> BatchSettings | None:
        """How the second engine runs; None where it does not."""
        if not self.batch and self.scheduler_conf is None:
            return None
        from bayplan.app.batch import BatchSettings
        from bayplan.cli.engine_setup import read_text

        if self.scheduler_conf is not None:
            read_text(self.scheduler_conf)  # one that cannot be read is told before anything is started
        return BatchSettings(
            conf=self.scheduler_conf,
            plugin_folders=self.plugin_folders,
            trust_writable=self.trust_writable_plugins,
            bayplan_settings=own,
        )


@command.command("up")
@name_option
@click.option("--detach", "-d", is_flag=True, help="Run in the background; without it the command runs until Ctrl-C.")
@click.option(
    "--nodes",
    metavar="SPEC",
    multiple=True,
    default=["3"],
    show_default="3",
    help="How many, or a pool: gpu=20:cpu=96,memory=1Ti,nvidia.com/gpu=8. May be given several times; 0: none.",
)
@click.option("--zones", type=click.IntRange(0, 1000), default=0, help="Spread the nodes over so many zones.")
@kubelet_options
@click.option("--scheduler/--no-scheduler", default=True, help="Whether pods are placed.  [default: scheduler]")
@click.option(
    "--controllers/--no-controllers", default=True, help="Whether Deployments make pods.  [default: controllers]"
)
@click.option("--config", type=click.Path(path_type=Path), help="A KubeSchedulerConfiguration for the scheduler.")
@click.option("--batch", is_flag=True, help="Volcano's kinds, and the engine that schedules gangs and queues, too.")
@click.option("--scheduler-conf", type=click.Path(path_type=Path), help="A volcano-scheduler.conf for it.")
@click.option("--settings", type=click.Path(path_type=Path), help="A BayplanConfiguration for both, and the binder.")
@plugin_options
@page_option("127.0.0.1:0")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a port that is free.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Any other address lets others on the network try the token."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep the objects in this file, over restarts and crashes; without it they are gone at the end.",
)
@click.option(
    "--data-sync",
    type=click.Choice(["full", "normal"]),
    default="full",
    show_default=True,
    help="What a committed write in the file survives. full: a power loss; every group of writes waits for the disk. "
    "normal: the end of the process, also by kill -9, but not a power loss; faster.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help='Further users, one a line: token,user,uid,"group1,group2". RBAC says what they may do.',
)
@click.option(
    "--client-ca",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Know users by certificates of this authority.",
)
def up(detach: bool, **told: Any) -> None:
    """Start a cluster and say what to type next: an API server, nodes, controllers and a scheduler in one process.

    Nodes are fake: pods that are placed on them are Running, and nothing runs. Pods of a Job end after two seconds,
    unless they say otherwise by the annotation bayplan.dev/runs-for. All else is as on any cluster.

    \b
    Examples:
      bayplan cluster up
      bayplan cluster up --detach --nodes 50 --zones 3
      bayplan cluster up --nodes web=10 --nodes gpu=20:cpu=96,memory=1Ti,nvidia.com/gpu=8 --zones 3
      bayplan cluster up --runs-for 5m --failure-rate 10%
      bayplan cluster up --config scheduler.yaml --plugins-dir plugins
      bayplan cluster up --batch --nodes gpu=20:cpu=96,nvidia.com/gpu=8
      bayplan cluster up --nodes 0 --no-scheduler --no-controllers --data ./cluster.db --port 6443
    """
    settings = _UpOptions(kubelet_options=pop_kubelet_options(told), **told)
    if settings.data is None and settings.data_sync != "full":
        raise UsageError("--data-sync is about the file of --data; name one")
    settings.manifests()  # what is wrong with them is told before anything is started
    if settings.kubelet_options:
        parse_kubelet_options(settings.kubelet_options)
    folder = ClusterFolder.named(settings.name, os.environ)
    if detach:
        _start_detached(folder, settings)
        return
    from bayplan.app.event_loop import new_event_loop

    with folder.lock(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(folder, settings))


@command.command("down")
@name_option
def down(name: str) -> None:
    """End a cluster. Objects that are kept in a file stay there.

    \b
    Examples:
      bayplan cluster down
    """
    ended = ClusterFolder.named(name, os.environ).stop()
    click.echo(f'the cluster "{name}" is down' if ended else f'the cluster "{name}" was not up')


@command.command("status")
@name_option
def status(name: str) -> None:
    """Say whether a cluster is up, where, and what it holds; exit code 1 if it is not up.

    \b
    Examples:
      bayplan cluster status
    """
    folder = ClusterFolder.named(name, os.environ)
    running = folder.require_running()
    click.echo(f'the cluster "{name}" is up at {running.url} (process {running.pid})')
    click.echo(f"objects are kept in {running.data or 'memory'}")
    if running.page:
        click.echo(f"page: {running.page}")
    click.echo(f"kubeconfig: {folder.kubeconfig}")


@command.command("reset")
@name_option
def reset(name: str) -> None:
    """Begin anew: every object is deleted, those of the file too. Address and credentials stay.

    \b
    Examples:
      bayplan cluster reset
    """
    running = ClusterFolder.named(name, os.environ).reset()
    click.echo(f'the cluster "{name}" is as new, at {running.url}')


def _start_detached(folder: ClusterFolder, settings: _UpOptions) -> None:
    with folder.lock():  # refuses when it is up already
        pass
    hears, tells = os.pipe()
    with folder.log.open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "bayplan", *settings.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(tells,),
            env={**os.environ, READY_PIPE: str(tells)},
        )
    os.close(tells)
    limit_s = START_S + START_NODE_S * settings.node_count
    running = None
    try:
        with progress(f"starting a cluster of {settings.node_count} node(s)"), open(hears, "rb") as word:
            # A word when it is up; the end of the pipe when it is gone; nothing while it still tries.
            heard, _, _ = select.select([word], [], [], limit_s)
            running = folder.running() if heard and word.read(1) else None
    finally:
        if running is None:  # Ctrl-C too: nobody would know of one that comes up later
            child.terminate()
            child.wait()
    if running is None:
        said = folder.log.read_text(errors="replace").strip().removeprefix("error: ")
        silence = "it said nothing" if heard else f"not within {limit_s:g} s"
        raise ClusterFolderError(f"the cluster did not come up: {said or silence}")
    _print_next_steps(folder, running, settings, detached=True)


async def _serve(folder: ClusterFolder, settings: _UpOptions) -> None:
    from bayplan.apiserver.embedded import credentials_for
    from bayplan.apiserver.storage.sqlite_backend import delete_files

    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    credentials = credentials_for(folder.path, settings.host)
    stop, anew = _install_signal_events()
    starts, port, data, page = 0, settings.port, settings.data, settings.page_address
    while not stop.is_set():
        anew.clear()
        async with contextlib.AsyncExitStack() as stack:
            cluster = _cluster(settings, credentials, port, page)
            if not await _start_unless_stopped(stack, cluster, stop):
                return
            port, starts = cluster.port, starts + 1
            shown = getattr(cluster, "page_url", "")
            page = urlsplit(shown).netloc or page  # the same after a reset: pages that are open find it again
            cluster.write_kubeconfig(folder.kubeconfig, folder.name)
            if not await _ready_unless_stopped(cluster, settings, stop):
                return
            kept = str(data.absolute()) if data else ""
            running = RunningCluster(os.getpid(), cluster.url, kept, starts, shown)
            folder.write_record(running)
            _notify_starter()
            _reduce_gc_frequency()
            if starts == 1:
                _print_next_steps(folder, running, settings, detached=False)
            await _wait_for_event(cluster, stop, anew)
        if anew.is_set() and data is not None:
            delete_files(data)


def _notify_starter() -> None:
    """Let whoever started this process detached know that the cluster is up."""
    if told := os.environ.pop(READY_PIPE, ""):
        with contextlib.suppress(BrokenPipeError), open(int(told), "wb") as pipe:  # he may have left
            pipe.write(b"+")


def _cluster(
    settings: _UpOptions, credentials: ClusterCredentials, port: int, page: str
) -> EmbeddedCluster | InProcessCluster:
    from bayplan.apiserver.auth.credentials import read_tokens
    from bayplan.apiserver.embedded import EmbeddedCluster

    users = read_tokens(settings.token_file) if settings.token_file is not None else {}
    host, data, sync, authority = settings.host, settings.data, settings.data_sync, settings.client_ca
    if settings.is_api_only:  # starts in half the time: nothing that decides has to be loaded
        return EmbeddedCluster(
            credentials, host=host, port=port, data=data, data_sync=sync, users=users, client_authority=authority
        )
    from bayplan.app.cluster import ClusterOptions, InProcessCluster

    plan = ClusterOptions(
        credentials=credentials,
        host=host,
        port=port,
        data=data,
        data_sync=sync,
        users=users,
        client_authority=authority,
        nodes=settings.manifests(),
        pod_lifecycle=parse_kubelet_options(settings.kubelet_options),
        scheduler=settings.setup(),
        controllers=settings.controllers,
        page_address=page,
        owns_process=True,
    )
    return InProcessCluster(plan)


async def _start_unless_stopped(
    stack: contextlib.AsyncExitStack, cluster: EmbeddedCluster | InProcessCluster, stop: asyncio.Event
) -> bool:
    """Whether it has started, before somebody said stop: what a part of it waits for may never come."""
    entering = asyncio.ensure_future(stack.enter_async_context(cluster))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((entering, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    is_up = entering.done()
    if not is_up:
        entering.cancel()
        await asyncio.wait([entering])
    if not entering.cancelled():
        entering.result()
    return is_up


async def _ready_unless_stopped(
    cluster: EmbeddedCluster | InProcessCluster, settings: _UpOptions, stop: asyncio.Event
) -> bool:
    """Whether all of it is there, before somebody said stop."""
    from bayplan.apiserver.embedded import EmbeddedCluster

    if isinstance(cluster, EmbeddedCluster):
        return True
    with progress(f"{settings.node_count} node(s) are coming up"):
        ready, stopping = asyncio.ensure_future(cluster.ready()), asyncio.ensure_future(stop.wait())
        await asyncio.wait((ready, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
    if ready.done():
        ready.result()
        return True
    ready.cancel()
    return False


async def _wait_for_event(cluster: EmbeddedCluster | InProcessCluster, *ends: asyncio.Event) -> None:
    """Wait for one of the events; a part of the cluster that breaks raises."""
    from bayplan.apiserver.embedded import EmbeddedCluster

    waiting = asyncio.ensure_future(_wait_for_first(*ends))
    if isinstance(cluster, EmbeddedCluster):
        await waiting
    else:
        await cluster.wait_unless_failed(waiting)


def _reduce_gc_frequency() -> None:
    """A request makes thousands of dictionaries and hardly a cycle: looking for cycles at every 700th is a waste."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _install_signal_events() -> tuple[asyncio.Event, asyncio.Event]:
    stop, anew = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, anew.set)
    return stop, anew


async def _wait_for_first(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _print_next_steps(folder: ClusterFolder, running: RunningCluster, settings: _UpOptions, *, detached: bool) -> None:
    option = "" if folder.name == DEFAULT_NAME else f" --name {folder.name}"
    kept = f"objects are kept in {running.data}" if running.data else "objects are kept in memory"
    nodes = f" with {settings.node_count} node(s)" if settings.node_count else ""
    lines = [
        f"a cluster{nodes} is up at {running.url}; {kept}",
        "",
        "type next:",
        f"  export KUBECONFIG={folder.kubeconfig}",
        "  kubectl get namespaces",
        *([] if settings.node_count else ["  bayplan kubelet --nodes 3 &"]),
        *([] if settings.scheduler else ["  bayplan scheduler &"]),
        "  kubectl run web --image=nginx",
        "  bayplan top",
        *([f"  look at {running.page}"] if running.page else []),
        "",
        f"bayplan cluster down{option} ends it" if detached else "Ctrl-C ends it",
    ]
    click.echo("\n".join(lines))
