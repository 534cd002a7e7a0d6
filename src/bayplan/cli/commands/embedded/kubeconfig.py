"""`bayplan kubeconfig`: the kubeconfig of the embedded cluster."""

from __future__ import annotations

import json
import os

import click

from bayplan.cli.cluster_folder import ClusterFolder
from bayplan.cli.commands.embedded.cluster import name_option
from bayplan.cli.output.printers import print_value


@click.command("kubeconfig")
@name_option
@click.option("--path", is_flag=True, help="Print the path of the file instead of its content.")
def command(name: str, path: bool) -> None:
    """Print the kubeconfig of the cluster that `bayplan cluster up` started.

    \b
    Examples:
      export KUBECONFIG=$(bayplan kubeconfig --path)
      bayplan kubeconfig > ~/.kube/config
    """
    folder = ClusterFolder.of_name(name, os.environ)
    folder.require_running()
    if path:
        click.echo(str(folder.kubeconfig))
    else:
        print_value(json.loads(folder.kubeconfig.read_text()), "yaml")
