"""`bayplan cluster`: a Kubernetes API on this machine, implemented in Python alone."""

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
    from bayplan.apiserver.storage.sqlite_backend import DataSync
    from bayplan.app.batch import BatchSettings
    from bayplan.app.cluster import InProcessCluster, SchedulerSetup
    from bayplan.config.bayplan_settings import BayplanSettings
    from bayplan.controllers.kubelet.node_pools import NodePool

START_S = 300.0
"""Timeout for a detached start. A start that fails is noticed at once, so this is for one that hangs: three seconds of
CPU time can take a minute on a core that twenty other processes use."""
START_NODE_S = 0.02
READY_PIPE = "BAYPLAN_READY_PIPE"
"""The variable with the pipe on which a detached cluster reports to its starter that it is up."""

name_option = click.option(
    "--name", default=DEFAULT_NAME, show_default=True, help="The name of the cluster, if there are several."
)


@click.group("cluster")
def command() -> None:
    """Run a Kubernetes API on this machine that kubectl and other clients use like any cluster.

    Nodes, controllers and a scheduler run with it in the same process.

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
    """Flags about the lifecycle of pods without annotations for it, with their values."""

    def arguments(self) -> list[str]:
        """The options as a command line, for a process in another folder."""
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
        if set(self.nodes) <= {"0"}:  # without nodes, do not import their code in the parent of a detached cluster
            return []
        from bayplan.controllers.kubelet.node_pools import NodePool

        return [NodePool.parse(spec) for spec in self.nodes]

    @property
    def node_count(self) -> int:
        return sum(pool.count for pool in self.pools())

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
        """The settings of the batch engine; None if it is off."""
        if not self.batch and self.scheduler_conf is None:
            return None
        from bayplan.app.batch import BatchSettings
        from bayplan.cli.engine_setup import read_text

        if self.scheduler_conf is not None:
            read_text(self.scheduler_conf)  # report an unreadable file before anything starts
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
    help="A number, or a pool: gpu=20:cpu=96,memory=1Ti,nvidia.com/gpu=8. May be given several times; 0: no nodes.",
)
@click.option("--zones", type=click.IntRange(0, 1000), default=0, help="Spread the nodes over this many zones.")
@kubelet_options
@click.option("--scheduler/--no-scheduler", default=True, help="Run a scheduler.  [default: scheduler]")
@click.option("--controllers/--no-controllers", default=True, help="Run the controllers.  [default: controllers]")
@click.option("--config", type=click.Path(path_type=Path), help="A KubeSchedulerConfiguration for the scheduler.")
@click.option("--batch", is_flag=True, help="Add Volcano's resource types, and the engine for gangs and queues.")
@click.option("--scheduler-conf", type=click.Path(path_type=Path), help="A volcano-scheduler.conf for that engine.")
@click.option(
    "--settings", type=click.Path(path_type=Path), help="A BayplanConfiguration for both engines and the binder."
)
@plugin_options
@page_option("127.0.0.1:0")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Bind address; any other is open to the network.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Store the objects in this file; they survive restarts and crashes. Default: memory.",
)
@click.option(
    "--data-sync",
    type=click.Choice(["full", "normal"]),
    default="full",
    show_default=True,
    help="Durability of a committed write. full: survives a power loss; every group of writes waits for the disk. "
    "normal: survives the end of the process, also by kill -9, but not a power loss; faster.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help='A file with additional users, one a line: token,user,uid,"group1,group2". RBAC decides about their rights.',
)
@click.option(
    "--client-ca",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Authenticate users by client certificates of this CA.",
)
def up(detach: bool, **options: Any) -> None:
    """Start a cluster with an API server, nodes, controllers and a scheduler in one process, and print the next steps.

    Nodes are fake: pods on them become Running, but no container runs. Pods of a Job complete after two seconds,
    unless the annotation bayplan.dev/runs-for says otherwise. Everything else is as on any cluster.

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
    settings = _UpOptions(kubelet_options=pop_kubelet_options(options), **options)
    if settings.data is None and settings.data_sync != "full":
        raise UsageError("--data-sync needs a file; give one with --data")
    settings.manifests()  # report errors before anything starts
    if settings.kubelet_options:
        parse_kubelet_options(settings.kubelet_options)
    folder = ClusterFolder.of_name(settings.name, os.environ)
    if detach:
        _start_detached(folder, settings)
        return
    from bayplan.app.event_loop import new_event_loop

    with folder.lock(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(folder, settings))


@command.command("down")
@name_option
def down(name: str) -> None:
    """Stop a cluster. Objects in a data file stay there.

    \b
    Examples:
      bayplan cluster down
    """
    stopped = ClusterFolder.of_name(name, os.environ).stop()
    click.echo(f'the cluster "{name}" is down' if stopped else f'the cluster "{name}" was not up')


@command.command("status")
@name_option
def status(name: str) -> None:
    """Show whether a cluster is up, its address and its files; exit code 1 if it is not up.

    \b
    Examples:
      bayplan cluster status
    """
    folder = ClusterFolder.of_name(name, os.environ)
    running = folder.require_running()
    click.echo(f'the cluster "{name}" is up at {running.url} (process {running.pid})')
    click.echo(f"objects are stored in {running.data or 'memory'}")
    if running.page:
        click.echo(f"page: {running.page}")
    click.echo(f"kubeconfig: {folder.kubeconfig}")


@command.command("reset")
@name_option
def reset(name: str) -> None:
    """Restart a cluster without its objects, also those of the data file. Address and credentials stay.

    \b
    Examples:
      bayplan cluster reset
    """
    running = ClusterFolder.of_name(name, os.environ).reset()
    click.echo(f'the cluster "{name}" was reset, at {running.url}')


def _start_detached(folder: ClusterFolder, settings: _UpOptions) -> None:
    with folder.lock():  # fails if the cluster is up already
        pass
    read_end, write_end = os.pipe()
    with folder.log.open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "bayplan", *settings.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(write_end,),
            env={**os.environ, READY_PIPE: str(write_end)},
        )
    os.close(write_end)
    limit_s = START_S + START_NODE_S * settings.node_count
    running = None
    try:
        with progress(f"starting a cluster of {settings.node_count} node(s)"), open(read_end, "rb") as pipe:
            # One byte when it is up; end of file when it has ended; no data while it still starts.
            ready, _, _ = select.select([pipe], [], [], limit_s)
            running = folder.running() if ready and pipe.read(1) else None
    finally:
        if running is None:  # also after Ctrl-C: a cluster that comes up later would stay unnoticed
            child.terminate()
            child.wait()
    if running is None:
        output = folder.log.read_text(errors="replace").strip().removeprefix("error: ")
        fallback = f"it ended without a message; see {folder.log}" if ready else f"no answer within {limit_s:g} s"
        raise ClusterFolderError(f"the cluster did not come up: {output or fallback}")
    _print_next_steps(folder, running, settings, detached=True)


async def _serve(folder: ClusterFolder, settings: _UpOptions) -> None:
    from bayplan.apiserver.embedded import credentials_for
    from bayplan.apiserver.storage.sqlite_backend import delete_files

    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    credentials = credentials_for(folder.path, settings.host)
    stop, restart = _install_signal_events()
    starts, port, data, page = 0, settings.port, settings.data, settings.page_address
    while not stop.is_set():
        restart.clear()
        async with contextlib.AsyncExitStack() as stack:
            cluster = _cluster(settings, credentials, port, page)
            if not await _start_unless_stopped(stack, cluster, stop):
                return
            port, starts = cluster.port, starts + 1
            page = urlsplit(cluster.page_url).netloc or page  # the same after a reset, for open pages
            cluster.write_kubeconfig(folder.kubeconfig, folder.name)
            if not await _ready_unless_stopped(cluster, settings, stop):
                return
            stored = str(data.absolute()) if data else ""
            running = RunningCluster(os.getpid(), cluster.url, stored, starts, cluster.page_url)
            folder.write_record(running)
            _notify_starter()
            _reduce_gc_frequency()
            if starts == 1:
                _print_next_steps(folder, running, settings, detached=False)
            await cluster.wait_unless_failed(asyncio.ensure_future(_wait_for_first(stop, restart)))
        if restart.is_set() and data is not None:
            delete_files(data)


def _notify_starter() -> None:
    """Report to the starter of this detached process that the cluster is up."""
    if descriptor := os.environ.pop(READY_PIPE, ""):
        with contextlib.suppress(BrokenPipeError), open(int(descriptor), "wb") as pipe:  # the starter may have ended
            pipe.write(b"+")


def _cluster(settings: _UpOptions, credentials: ClusterCredentials, port: int, page: str) -> InProcessCluster:
    from bayplan.apiserver.auth.credentials import read_tokens
    from bayplan.app.cluster import ClusterOptions, InProcessCluster

    plan = ClusterOptions(
        credentials=credentials,
        host=settings.host,
        port=port,
        data=settings.data,
        data_sync=settings.data_sync,
        users=read_tokens(settings.token_file) if settings.token_file is not None else {},
        client_authority=settings.client_ca,
        nodes=settings.manifests(),
        pod_lifecycle=parse_kubelet_options(settings.kubelet_options),
        scheduler=settings.setup(),
        controllers=settings.controllers,
        page_address=page,
        owns_process=True,
    )
    return InProcessCluster(plan)


async def _start_unless_stopped(
    stack: contextlib.AsyncExitStack, cluster: InProcessCluster, stop: asyncio.Event
) -> bool:
    """Start the cluster, and return whether it is up before `stop` is set: a component may wait forever."""
    start_task = asyncio.ensure_future(stack.enter_async_context(cluster))
    stop_task = asyncio.ensure_future(stop.wait())
    await asyncio.wait((start_task, stop_task), return_when=asyncio.FIRST_COMPLETED)
    stop_task.cancel()
    is_up = start_task.done()
    if not is_up:
        start_task.cancel()
        await asyncio.wait([start_task])
    if not start_task.cancelled():
        start_task.result()
    return is_up


async def _ready_unless_stopped(cluster: InProcessCluster, settings: _UpOptions, stop: asyncio.Event) -> bool:
    """Wait until all components are ready. Returns False if `stop` is set first."""
    with progress(f"waiting for {settings.node_count} node(s)"):
        ready, stop_task = asyncio.ensure_future(cluster.ready()), asyncio.ensure_future(stop.wait())
        await asyncio.wait((ready, stop_task), return_when=asyncio.FIRST_COMPLETED)
        stop_task.cancel()
    if ready.done():
        ready.result()
        return True
    ready.cancel()
    return False


def _reduce_gc_frequency() -> None:
    """Collect garbage less often: a request creates thousands of dictionaries, and hardly any reference cycle."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _install_signal_events() -> tuple[asyncio.Event, asyncio.Event]:
    stop, restart = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, restart.set)
    return stop, restart


async def _wait_for_first(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _print_next_steps(folder: ClusterFolder, running: RunningCluster, settings: _UpOptions, *, detached: bool) -> None:
    option = "" if folder.name == DEFAULT_NAME else f" --name {folder.name}"
    stored = f"objects are stored in {running.data}" if running.data else "objects are stored in memory"
    nodes = f" with {settings.node_count} node(s)" if settings.node_count else ""
    lines = [
        f"a cluster{nodes} is up at {running.url}; {stored}",
        "",
        "next steps:",
        f"  export KUBECONFIG={folder.kubeconfig}",
        "  kubectl get namespaces",
        *([] if settings.node_count else ["  bayplan kubelet --nodes 3 &"]),
        *([] if settings.scheduler else ["  bayplan scheduler &"]),
        "  kubectl run web --image=nginx",
        "  bayplan top",
        *([f"  open {running.page}"] if running.page else []),
        "",
        f"bayplan cluster down{option} stops it" if detached else "Ctrl-C stops it",
    ]
    click.echo("\n".join(lines))
