"""Options that select the API server, of vcctl and of Bayplan.

The default cluster is the same for all commands, see `connection`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bayplan.cli.connection import ClusterConnection
from bayplan.cli.flags.shell_completion import complete_contexts, complete_namespaces
from bayplan.client import ConnectionConfig, load_connection_config

F = TypeVar("F", bound=Callable[..., Any])


def server_options(command: F) -> F:
    """`--kubeconfig`, `--context` and `--master`, with vcctl's short forms."""
    kubeconfig = click.option(
        "--kubeconfig",
        "-k",
        type=click.Path(path_type=Path),
        help="Default: KUBECONFIG, ~/.kube/config, or the pod's service account.",
    )
    context = click.option("--context", default="", help="A context of the kubeconfig instead of the current one.")
    master = click.option("--master", "-s", default="", help="The API server's address, instead of the kubeconfig's.")
    return kubeconfig(context(master(command)))


def resolve_server(kubeconfig: Path | None, context: str, master: str) -> ConnectionConfig:
    """The selected cluster; `master` replaces its address."""
    if master:
        return load_connection_config(kubeconfig, env=os.environ, context=context, server=master)
    return ClusterConnection(kubeconfig, context).target()


def connection_options(command: F) -> F:
    """`--kubeconfig`, `--context` and `--cluster`; the command gets them as one `connection`."""

    def joined(*args: Any, kubeconfig: Path | None, context: str, cluster: str, **given: Any) -> Any:
        return command(*args, connection=ClusterConnection(kubeconfig, context, cluster), **given)

    joined.__doc__ = command.__doc__
    joined.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--cluster", metavar="NAME", default="", help="The cluster of `bayplan cluster up --name NAME`."),
        click.option(
            "--context",
            default="",
            shell_complete=complete_contexts,
            help="A context of the kubeconfig instead of the current one.",
        ),
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path),
            help="Default: KUBECONFIG, ~/.kube/config, the pod's service account, the cluster of `bayplan cluster up`.",
        ),
    ):
        option(joined)
    return joined  # type: ignore[return-value]


def namespace_option(command: F) -> F:
    return click.option(
        "-n",
        "--namespace",
        default="",
        shell_complete=complete_namespaces,
        help="Default: the namespace of the context, usually `default`.",
    )(command)
