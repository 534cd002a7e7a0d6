"""`bayplan cluster` and `bayplan kubeconfig`: start, status, reset and stop, as a user does it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from bayplan.cli.cluster_folder import ClusterFolder, ClusterFolderError
from bayplan.cli.commands.embedded import cluster
from bayplan.cli.flags.kubelet_options import parse_kubelet_options
from bayplan.controllers.kubelet.pod_stages import FOREVER, PodBehavior
from bayplan.errors import UsageError
from support.harness.in_process_commands import CommandRunner


def bayplan(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_STATE_HOME": str(home)}
    return subprocess.run([sys.executable, "-m", "bayplan", *arguments], env=env, capture_output=True, text=True)


def test_the_lifecycle_of_a_cluster(tmp_path: Path) -> None:
    data = tmp_path / "objects.db"
    pools = ("--nodes", "web=3", "--nodes", "gpu=2:cpu=96,nvidia.com/gpu=8", "--zones", "2")
    up = bayplan(tmp_path, "cluster", "up", "--detach", "--data", str(data), *pools)
    try:
        assert up.returncode == 0, up.stderr
        assert f"objects are stored in {data}" in up.stdout
        assert f"export KUBECONFIG={tmp_path}/bayplan/clusters/bayplan/kubeconfig" in up.stdout
        again = bayplan(tmp_path, "cluster", "up", "--detach")
        assert (again.returncode, "is up already at https://127.0.0.1:" in again.stderr) == (1, True)
        path = bayplan(tmp_path, "kubeconfig", "--path").stdout.strip()
        server = json.loads(Path(path).read_text())["clusters"][0]["cluster"]["server"]
        assert server in bayplan(tmp_path, "cluster", "status").stdout
        assert f"server: {server}" in bayplan(tmp_path, "kubeconfig").stdout
        assert f"was reset, at {server}" in bayplan(tmp_path, "cluster", "reset").stdout
        zone = ("-l", "topology.kubernetes.io/zone=zone-0", "-o", "name")
        nodes = bayplan(tmp_path, "get", "nodes", *zone, "--cluster", "bayplan").stdout.split()
        assert nodes == ["node/gpu-1", "node/web-0", "node/web-2"]
    finally:
        down = bayplan(tmp_path, "cluster", "down")
    assert down.stdout == 'the cluster "bayplan" is down\n'
    assert bayplan(tmp_path, "cluster", "down").stdout == 'the cluster "bayplan" was not up\n'
    status = bayplan(tmp_path, "cluster", "status")
    assert (status.returncode, status.stderr) == (
        1,
        'error: the cluster "bayplan" is not up; start it with `bayplan cluster up`\n',
    )


def test_an_api_server_alone_does_not_import_nodes_and_controllers(tmp_path: Path) -> None:
    """It is what makes it ready in a second: the imports of the rest take longer than its own."""
    script = (
        "import sys; from bayplan.cli.commands.embedded import cluster; cluster._start_detached = "
        "lambda folder, settings: None; "
        "alone = ['up', '--detach', '--nodes', '0', '--no-scheduler', '--no-controllers']; "
        "cluster.command(alone, standalone_mode=False); "
        "print(*sys.modules)"
    )
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "bayplan.cli.commands.embedded.cluster" in loaded
    assert not {"aiohttp", "numpy", "bayplan.controllers", "bayplan.client", "bayplan.apiserver"} & set(loaded)


def test_pod_lifecycle_options_are_passed_to_a_detached_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_with: list[Any] = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(cluster, "_start_detached", lambda _, settings: started_with.append(settings))
    flags = ["--runs-for", "forever", "--failure-rate", "20%"]
    cluster.command(["up", "--detach", *flags], standalone_mode=False)
    (settings,) = started_with
    assert parse_kubelet_options(settings.kubelet_options) == PodBehavior(runs_for_s=FOREVER, failure_rate=0.2)
    arguments_of_child = settings.arguments()
    at = arguments_of_child.index("--runs-for")
    assert arguments_of_child[at : at + 4] == flags
    with pytest.raises(UsageError, match="--exit-code 256: that is no exit code"):
        cluster.command(["up", "--detach", "--exit-code", "256"], standalone_mode=False)


def test_the_data_sync_option_is_passed_to_a_detached_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments_of_child: list[list[str]] = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(cluster, "_start_detached", lambda _, settings: arguments_of_child.append(settings.arguments()))
    cluster.command(["up", "--detach", "--data", "x.db"], standalone_mode=False)
    cluster.command(["up", "--detach", "--data", "x.db", "--data-sync", "normal"], standalone_mode=False)
    assert [each[each.index("--data-sync") + 1] for each in arguments_of_child] == ["full", "normal"]
    with pytest.raises(UsageError, match="--data-sync needs a file; give one with --data"):
        cluster.command(["up", "--detach", "--data-sync", "normal"], standalone_mode=False)


def test_a_failed_start_reports_the_reason(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("no database " * 100)
    failed = bayplan(tmp_path, "cluster", "up", "--detach", "--data", str(notes))
    assert failed.returncode == 1
    assert f"{notes} cannot be used for objects" in failed.stderr
    config = tmp_path / "scheduler.yaml"
    config.write_text("kind: Nonsense\n")
    failed = bayplan(tmp_path, "cluster", "up", "--detach", "--config", str(config))
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"error: the cluster did not come up: {config}: ")
    assert failed.stderr.count("\n") == 1


def test_an_interrupted_detached_start_stops_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class RecordingPopen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", RecordingPopen)
    monkeypatch.setattr(cluster, "select", SimpleNamespace(select=interrupt))
    with pytest.raises(click.Abort):
        cluster.command(["up", "--detach", "--nodes", "0"], standalone_mode=False)
    assert [each.returncode is None for each in started] == [False]


@pytest.mark.parametrize("name", ["", "../up", "a b", "-x"])
def test_invalid_cluster_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="invalid cluster name"):
        ClusterFolder.of_name(name, {"XDG_STATE_HOME": "/tmp"})


def test_a_folder_is_locked_by_one_process(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    with folder.lock(), pytest.raises(ClusterFolderError, match="is up already"), folder.lock():
        pass
    assert folder.running() is None


@pytest.mark.parametrize(
    "arguments",
    [["cluster", "up"], ["cluster", "up", "-d"], ["demo", "--keep"], ["cluster", "down"], ["get", "pods"]],
    ids=" ".join,
)
def test_an_invalid_state_folder_is_one_sentence(
    run: CommandRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    state = tmp_path / "state"
    state.write_text("notes")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    ended = run(*arguments)
    assert ended.code == 1
    assert ended.err.startswith(f"error: cannot use {state}/bayplan/clusters")
    assert ended.err.endswith("Not a directory; set XDG_STATE_HOME to a writable folder\n")
    assert ended.err.count("\n") == 1


def test_an_unwritable_state_folder_is_one_sentence(run: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc")
    ended = run("cluster", "up", "--nodes", "1")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "error: cannot use /proc/bayplan for the clusters of this user: No such file or directory; "
        "set XDG_STATE_HOME to a writable folder\n"
    )


class _NeverReadyCluster:
    """A cluster of which a part waits for what never comes."""

    def __init__(self) -> None:
        self.ended = False
        self.waits = asyncio.Event()

    async def __aenter__(self) -> _NeverReadyCluster:
        try:
            self.waits.set()
            await asyncio.Event().wait()
        finally:
            self.ended = True
        return self

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError("it has never begun")


def test_a_cluster_can_be_stopped_while_it_starts() -> None:
    async def stop_while_starting() -> tuple[bool, bool]:
        waiting, stop = _NeverReadyCluster(), asyncio.Event()
        async with asyncio.timeout(10), contextlib.AsyncExitStack() as stack:
            start_task = asyncio.ensure_future(cluster._start_unless_stopped(stack, cast(Any, waiting), stop))
            await waiting.waits.wait()
            assert not start_task.done()
            stop.set()
            return await start_task, waiting.ended

    assert asyncio.run(stop_while_starting()) == (False, True)


def test_signals_stop_a_cluster_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop_while_starting() -> bool:
        waiting = _NeverReadyCluster()
        monkeypatch.setattr(cluster, "_cluster", lambda *_: waiting)
        async with asyncio.timeout(10):
            serve_task = asyncio.ensure_future(cluster._serve(folder, cast(Any, settings)))
            await waiting.waits.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            await serve_task
        return waiting.ended

    folder = ClusterFolder(tmp_path, "waiting")
    settings = SimpleNamespace(host="127.0.0.1", port=0, data=None, page_address="")
    assert asyncio.run(stop_while_starting())
    assert not folder.kubeconfig.exists()
