"""What verbs that ask an API server share: the options that name it, and a client for as long as the verb runs."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click

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
    return find_target(kubeconfig, env=os.environ, context=context, server=master)


def asked(target: Target, question: Callable[[Client], Awaitable[T]]) -> T:
    """What the API server answers to this."""

    async def ask() -> T:
        async with Client(target, clock=SystemClock(), chance=random.Random(), user_agent="bayplan-cli") as client:
            return await question(client)

    return asyncio.run(ask())
