"""Common parts of the benchmarks of the embedded cluster: connections, load, and the processor time of its process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import click

CONNECTIONS = 16
PODS = "/api/v1/namespaces/default/pods"

Tree = dict[str, Any]


def home_below(state: Path) -> Path:
    """The folder of the cluster's files, where `XDG_STATE_HOME` is `state`."""
    return state / "bayplan" / "clusters" / "bayplan"


@contextlib.asynccontextmanager
async def session_with(home: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A session of the administrator, with unlimited connections and a long timeout."""
    url = json.loads((home / "running.json").read_text())["url"]
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(home / "ca.crt")), limit=0)
    headers = {"Authorization": f"Bearer {(home / 'token').read_text()}"}
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, headers=headers, timeout=timeout) as session:
        yield session


async def post_all(session: aiohttp.ClientSession, path: str, bodies: Iterable[Tree]) -> None:
    """Create all objects over a few connections at once."""
    waiting: Iterator[Tree] = iter(bodies)

    async def work() -> None:
        for body in waiting:
            async with session.post(path, json=body) as answer:
                text = await answer.read()
                if answer.status != 201:
                    raise click.ClickException(f"{path}: {answer.status} {text.decode()}")

    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))


def pod(number: int, *, cpu: str, memory: str) -> Tree:
    requests = {"cpu": cpu, "memory": memory}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}", "labels": {"app": f"app-{number % 100}"}},
        "spec": {"containers": [{"name": "main", "image": "example.com/app:1", "resources": {"requests": requests}}]},
    }


def cpu_s(pid: int) -> float:
    """Processor time of a process's threads, in nanosecond resolution: an idle process uses less than a tick."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9
