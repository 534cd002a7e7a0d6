"""What the verbs about Volcano's kinds share: vcctl's options for the API server.

Which cluster is meant where nothing is said is the rule of all verbs, in `connection`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bayplan.cli.connection import Connection
from bayplan.client import Target, find_target

F = TypeVar("F", bound=Callable[..., Any])


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
