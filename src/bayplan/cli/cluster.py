"""`bayplan cluster`: a Kubernetes API on this machine, with nothing but Python."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click

from bayplan.cli.cluster_folder import DEFAULT_NAME, ClusterFolder, ClusterFolderError, Running

START_S = 30.0

named = click.option("--name", default=DEFAULT_NAME, show_default=True, help="Which cluster, where there are several.")


@click.group("cluster")
def command() -> None:
    """A Kubernetes API on this machine: kubectl and every other client take it for a cluster.

    It has no nodes and runs nothing; `bayplan kubelet` gives it nodes, `bayplan scheduler` places pods on them.

    \b
    Examples:
      bayplan cluster up --detach
      bayplan cluster up --data ~/cluster.db --port 6443
      bayplan cluster status
      bayplan cluster reset
      bayplan cluster down
    """


@command.command("up")
@named
@click.option("--detach", "-d", is_flag=True, help="Run in the background; without it the command runs until Ctrl-C.")
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
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help='Further users, one a line: token,user,uid,"group1,group2". RBAC says what they may do.',
)
@click.option(
    "--client-ca",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Know users by certificates of this authority.",
)
def up(
    name: str,
    detach: bool,
    port: int,
    host: str,
    data: Path | None,
    token_file: Path | None,
    client_ca: Path | None,
) -> None:
    """Start a cluster and say what to type next.

    \b
    Examples:
      bayplan cluster up
      bayplan cluster up --detach --data ./cluster.db
      bayplan cluster up --name second --port 7443
    """
    folder = ClusterFolder.named(name, os.environ)
    if detach:
        _start_detached(folder, port, host, data, token_file, client_ca)
        return
    with folder.held():
        asyncio.run(_serve(folder, port, host, data, token_file, client_ca))


@command.command("down")
@named
def down(name: str) -> None:
    """End a cluster. Objects that are kept in a file stay there.

    \b
    Examples:
      bayplan cluster down
    """
    ended = ClusterFolder.named(name, os.environ).end()
    click.echo(f'the cluster "{name}" is down' if ended else f'the cluster "{name}" was not up')


@command.command("status")
@named
def status(name: str) -> None:
    """Say whether a cluster is up, where, and what it holds; exit code 1 if it is not up.

    \b
    Examples:
      bayplan cluster status
    """
    folder = ClusterFolder.named(name, os.environ)
    running = folder.must_run()
    click.echo(f'the cluster "{name}" is up at {running.url} (process {running.pid})')
    click.echo(f"objects are kept in {running.data or 'memory'}")
    click.echo(f"kubeconfig: {folder.kubeconfig}")


@command.command("reset")
@named
def reset(name: str) -> None:
    """Begin anew: every object is deleted, those of the file too. Address and credentials stay.

    \b
    Examples:
      bayplan cluster reset
    """
    running = ClusterFolder.named(name, os.environ).reset()
    click.echo(f'the cluster "{name}" is as new, at {running.url}')


def _start_detached(
    folder: ClusterFolder, port: int, host: str, data: Path | None, token_file: Path | None, client_ca: Path | None
) -> None:
    with folder.held():  # refuses when it is up already
        pass
    arguments = ["cluster", "up", "--name", folder.name, "--port", str(port), "--host", host]
    for flag, path in (("--data", data), ("--token-file", token_file), ("--client-ca", client_ca)):
        if path is not None:
            arguments += [flag, str(path.absolute())]
    with folder.log.open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "bayplan", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_S
    while (running := folder.running()) is None:
        if child.poll() is not None or time.monotonic() > deadline:
            said = folder.log.read_text(errors="replace").strip().removeprefix("error: ")
            raise ClusterFolderError(f"the cluster did not come up: {said or 'it said nothing'}")
        time.sleep(0.02)
    _tell_next(folder, running, detached=True)


async def _serve(
    folder: ClusterFolder, port: int, host: str, data: Path | None, token_file: Path | None, client_ca: Path | None
) -> None:
    from bayplan.cluster.credentials import read_tokens
    from bayplan.cluster.embedded import EmbeddedCluster, credentials_for
    from bayplan.cluster.journal import remove

    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    credentials = credentials_for(folder.path, host)
    users = read_tokens(token_file) if token_file is not None else {}
    stop, anew = _signals()
    starts = 0
    while not stop.is_set():
        anew.clear()
        async with EmbeddedCluster(
            credentials, host=host, port=port, data=data, users=users, client_authority=client_ca
        ) as cluster:
            port, starts = cluster.port, starts + 1
            running = Running(os.getpid(), cluster.url, str(data.absolute()) if data else "", starts)
            cluster.write_kubeconfig(folder.kubeconfig, folder.name)
            folder.tell(running)
            if starts == 1:
                _tell_next(folder, running, detached=False)
            await _first_of(stop, anew)
        if anew.is_set() and data is not None:
            remove(data)


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    stop, anew = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, anew.set)
    return stop, anew


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


def _tell_next(folder: ClusterFolder, running: Running, *, detached: bool) -> None:
    option = "" if folder.name == DEFAULT_NAME else f" --name {folder.name}"
    kept = f"objects are kept in {running.data}" if running.data else "objects are kept in memory"
    lines = [
        f"a cluster is up at {running.url}; {kept}",
        "",
        "type next:",
        f"  export KUBECONFIG={folder.kubeconfig}",
        "  kubectl get namespaces",
        "  bayplan kubelet --nodes 3 &",
        "  bayplan scheduler &",
        "  kubectl run web --image=nginx",
        "",
        f"bayplan cluster down{option} ends it" if detached else "Ctrl-C ends it",
    ]
    click.echo("\n".join(lines))
