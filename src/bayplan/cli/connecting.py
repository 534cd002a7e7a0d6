"""What the verbs about Volcano's kinds share: vcctl's options for the API server, and a client while the verb runs.

Which cluster is meant where nothing is said is the rule of all verbs, in `connection`.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bayplan.cli.connection import Connection
from bayplan.client import Client, Target, find_target
from bayplan.clock import SystemClock

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def server_options(command: F) -> F:
    """`--kubeconfig`, `--context` and `--master`, short as vcctl has them."""
    kubeconfig = click.option(
        "--kubeconfig",
        "-k",
        type=click.Path(path_type=Path),
        help="Default: KUBECONFIG, ~/.kube/config, or the pod's.",
    )
    context = click.option("--context", default="", help="A context of the kubeconfig other than the current one.")
    master = click.option("--master", "-s", default="", help="The API server's address, instead of the kubeconfig's.")
    return kubeconfig(context(master(command)))


def chosen_server(kubeconfig: Path | None, context: str, master: str) -> Target:
    """The cluster that is meant; `master` replaces its address."""
    if master:
        return find_target(kubeconfig, env=os.environ, context=context, server=master)
    return Connection(kubeconfig, context).target()


def asked(target: Target, question: Callable[[Client], Awaitable[T]]) -> T:
    """What the API server answers to this."""

    async def ask() -> T:
        async with Client(target, clock=SystemClock(), chance=random.Random(), user_agent="bayplan-cli") as client:
            return await question(client)

    return asyncio.run(ask())
