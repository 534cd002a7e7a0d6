"""Selection of the cluster for a command, and its error messages. All commands with an API server use it.

It is kubectl's cluster: `--kubeconfig`, else the files of KUBECONFIG, else ~/.kube/config, else the pod's service
account. Only if kubectl would find fault it is the cluster of `bayplan cluster up`. So a beginner need not configure
anything, and starting or stopping a cluster in another terminal never redirects a command.
`--cluster NAME` selects one of `bayplan cluster up`.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bayplan import __version__
from bayplan.cli.cluster_folder import DEFAULT_NAME, ClusterFolder
from bayplan.cli.signals import run_until_stopped
from bayplan.client import Client, ConnectionConfig, load_connection_config
from bayplan.clock import SystemClock
from bayplan.errors import (
    ApiError,
    BayplanError,
    Forbidden,
    KubeconfigError,
    NotFound,
    Unauthorized,
    Unreachable,
    UsageError,
)

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_QPS, _BURST = 200.0, 400


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    """The options that select the cluster."""

    kubeconfig: Path | None = None
    context: str = ""
    cluster: str = ""

    def target(self, env: Mapping[str, str] | None = None) -> ConnectionConfig:
        env = os.environ if env is None else env
        if self.cluster:
            if self.kubeconfig is not None or self.context:
                raise UsageError(
                    "--cluster selects a cluster of `bayplan cluster up`; leave out --kubeconfig and --context"
                )
            return _embedded_target(ClusterFolder.of_name(self.cluster, env), env)
        try:
            return load_connection_config(self.kubeconfig, env=env, context=self.context)
        except KubeconfigError as fault:
            if self.kubeconfig is not None or self.context or not str(fault).startswith("no API server is configured"):
                raise
            folder = ClusterFolder.of_name(DEFAULT_NAME, env)
            if folder.running() is None:
                raise KubeconfigError(
                    "there is no cluster to connect to: KUBECONFIG and ~/.kube/config have fault, and no cluster of "
                    "`bayplan cluster up` is running; start one, or give a kubeconfig with --kubeconfig"
                ) from None
            return _embedded_target(folder, env)


def _embedded_target(folder: ClusterFolder, env: Mapping[str, str]) -> ConnectionConfig:
    folder.require_running()
    return load_connection_config(folder.kubeconfig, env=env)


@asynccontextmanager
async def open_client(target: ConnectionConfig, *, qps: float = _QPS, burst: int = _BURST) -> AsyncIterator[Client]:
    """A client for an interactive command, with a rate limit."""
    agent = f"bayplan/{__version__}"
    async with Client(
        target, clock=SystemClock(), chance=random.Random(), user_agent=agent, qps=qps, burst=burst
    ) as client:
        yield client


def run_with_client(connection: ClusterConnection, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work` with a client of the selected cluster. Errors say what to do."""
    return run_with_target(connection.target(), work)


def run_with_target(target: ConnectionConfig, work: Callable[[Client], Awaitable[T]]) -> T:
    async def run() -> T:
        async with open_client(target) as client:
            return await work(client)

    with explain_api_errors(target):
        return run_until_stopped(run())


@contextmanager
def explain_api_errors(target: ConnectionConfig) -> Iterator[None]:
    """An error of the API server becomes one sentence with what to do."""
    try:
        yield
    except KubeconfigError:
        raise
    except Unauthorized as fault:
        raise ApiError(
            f"{target.server} does not accept the credentials: {fault.details}; renew them in "
            f"{_credentials_origin(target)}, "
            "or choose another --context"
        ) from None
    except Forbidden as fault:
        raise ApiError(
            f"{fault.details}; ask for that permission, or choose another --context or --namespace", code=fault.code
        ) from None
    except Unreachable as fault:
        raise Unreachable(
            f"{_add_full_stop(fault)} The address is from {_credentials_origin(target)}.", sent=fault.sent
        ) from None
    except NotFound as fault:
        raise ApiError(f"{fault.details}; list existing objects with `bayplan get`", code=fault.code) from None


def _add_full_stop(fault: BayplanError) -> str:
    text = str(fault).rstrip()
    return text if text.endswith((".", "?")) else f"{text}."


def _credentials_origin(target: ConnectionConfig) -> str:
    return target.origin or "the kubeconfig"
