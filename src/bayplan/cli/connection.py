"""Which cluster does a command mean, and what is said when it cannot be asked? One rule for every verb that asks one.

It is the cluster that kubectl means: `--kubeconfig`, else the files of KUBECONFIG, else ~/.kube/config, else the pod's
own. Only where kubectl would have none it is the cluster of `bayplan cluster up`, so that a beginner need not set
anything, and nobody's command goes elsewhere because a cluster was started or ended in another window.
`--cluster NAME` names one of `bayplan cluster up` outright.
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
    """What the options say about the cluster."""

    kubeconfig: Path | None = None
    context: str = ""
    cluster: str = ""

    def target(self, env: Mapping[str, str] | None = None) -> ConnectionConfig:
        """The cluster that is meant."""
        env = os.environ if env is None else env
        if self.cluster:
            if self.kubeconfig is not None or self.context:
                raise UsageError("--cluster names a cluster of its own; leave out --kubeconfig and --context")
            return _embedded_target(ClusterFolder.named(self.cluster, env), env)
        try:
            return load_connection_config(self.kubeconfig, env=env, context=self.context)
        except KubeconfigError as none:
            if self.kubeconfig is not None or self.context or not str(none).startswith("there is no API server"):
                raise
            folder = ClusterFolder.named(DEFAULT_NAME, env)
            if folder.running() is None:
                raise KubeconfigError(
                    "there is no cluster to talk to: KUBECONFIG and ~/.kube/config hold none, and none of "
                    "`bayplan cluster up` is running; start one, or name a kubeconfig with --kubeconfig"
                ) from None
            return _embedded_target(folder, env)


def _embedded_target(folder: ClusterFolder, env: Mapping[str, str]) -> ConnectionConfig:
    folder.require_running()
    return load_connection_config(folder.kubeconfig, env=env)


@asynccontextmanager
async def open_client(target: ConnectionConfig, *, qps: float = _QPS, burst: int = _BURST) -> AsyncIterator[Client]:
    """A client of a person: in haste, but not alone in the world."""
    agent = f"bayplan/{__version__}"
    async with Client(
        target, clock=SystemClock(), chance=random.Random(), user_agent=agent, qps=qps, burst=burst
    ) as client:
        yield client


def run_with_client(connection: ClusterConnection, work: Callable[[Client], Awaitable[T]]) -> T:
    """Do something with a client of the cluster that is meant; what goes wrong is told with what to do about it."""
    return run_with_target(connection.target(), work)


def run_with_target(target: ConnectionConfig, work: Callable[[Client], Awaitable[T]]) -> T:
    """The same for a cluster that is known already."""

    async def run() -> T:
        async with open_client(target) as client:
            return await work(client)

    with explain_api_errors(target):
        return run_until_stopped(run())


@contextmanager
def explain_api_errors(target: ConnectionConfig) -> Iterator[None]:
    """A refusal of the API server as one sentence, and what to do."""
    try:
        yield
    except KubeconfigError:
        raise
    except Unauthorized as fault:
        raise ApiError(
            f"{target.server} does not know us: {fault.details}; renew the credentials in "
            f"{_credentials_origin(target)}, "
            "or choose another --context"
        ) from None
    except Forbidden as fault:
        raise ApiError(
            f"{fault.details}; ask for that right, or choose another --context or --namespace", code=fault.code
        ) from None
    except Unreachable as fault:
        raise Unreachable(
            f"{_with_full_stop(fault)} The address is from {_credentials_origin(target)}.", sent=fault.sent
        ) from None
    except NotFound as fault:
        raise ApiError(f"{fault.details}; look at what is there with `bayplan get`", code=fault.code) from None


def _with_full_stop(fault: BayplanError) -> str:
    text = str(fault).rstrip()
    return text if text.endswith((".", "?")) else f"{text}."


def _credentials_origin(target: ConnectionConfig) -> str:
    return target.origin or "the kubeconfig"
