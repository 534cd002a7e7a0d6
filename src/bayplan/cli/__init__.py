"""The command line: one file a verb, imported when the verb is used."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence

import click

from bayplan import __version__
from bayplan.errors import BayplanError

_VERBS = {
    "admission": "Serve Volcano's webhooks: what they fill in and what they refuse.",
    "apply": "Make a cluster have what manifests say.",
    "batch": "Schedule gangs and queues, in vc-scheduler's place; check and show its configuration.",
    "binder": "Bind the pods for which schedulers have made BindRequests.",
    "cluster": "Run a Kubernetes API on this machine, with nothing but Python.",
    "completion": "Print a script that completes commands in bash, zsh or fish.",
    "config": "Check and show a KubeSchedulerConfiguration.",
    "conformance": "Compare Bayplan with recorded answers of the real scheduler.",
    "controllers": "Run the controllers of a cluster, in kube-controller-manager's place.",
    "crds": "Print the definitions of Volcano's kinds and of BindRequests that a cluster lacks.",
    "delete": "Delete objects of a cluster.",
    "demo": "See a cluster at work: pods land, spread, evict and are refused, in half a minute.",
    "get": "Show what there is in a cluster.",
    "job": "Run, list, view, suspend, resume and delete Volcano's jobs.",
    "kubeconfig": "Print how kubectl reaches the cluster of `bayplan cluster up`.",
    "kubelet": "Run fake nodes on an API server: Ready nodes, Running pods, nothing behind them.",
    "place": "Place the pods of a cluster in files, and show where each went and why.",
    "plugin": "Start a plugin of your own, and see which ones there are.",
    "podgroup": "List, view and delete Volcano's groups of pods.",
    "queue": "List, make, open, close and delete Volcano's queues.",
    "record": "Write a cluster and its decisions to one file.",
    "replay": "Make the decisions of a recording again, and show the first that differs.",
    "run": "Schedule all pods of a cluster: single ones, gangs and queues, by two engines on one cache.",
    "scheduler": "Schedule the pods of a cluster, in kube-scheduler's place.",
    "simulate": "Replay a trace, and compare how well policies fill a cluster.",
    "sweep": "Simulate workloads, policies and seeds in all combinations; a table and a page of results.",
    "top": "Watch nodes fill, pods wait and decisions come.",
    "whatif": "Show what would land, move, wait and cost if a cluster were different.",
    "why": "Say why a pod is on its node, or on none, and what would have to change.",
}

_PACKAGES = {
    name: f"{package}."
    for package, names in {
        "processes": "admission batch binder controllers kubelet run scheduler",
        "objects": "apply delete get top crds why",
        "volcano": "job podgroup queue",
        "embedded": "cluster kubeconfig demo",
        "simulation": "place record replay whatif simulate sweep conformance",
        "configuration": "config plugin",
    }.items()
    for name in names.split()
}


class _LazyGroup(click.Group):
    """Knows its verbs by name and loads each from its own module: `--help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in _VERBS:
            return None
        command = importlib.import_module(f"bayplan.cli.commands.{_PACKAGES.get(name, '')}{name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bayplan")
def cli() -> None:
    """Bayplan: the Kubernetes scheduler that people extend in Python.

    \b
    See it at work:
      bayplan demo
    Run a cluster of your own, and use it:
      bayplan cluster up --detach --nodes 10 --zones 3
      bayplan get nodes
    Try it on a cluster in files:
      bayplan place -f examples/cluster
    See what a configuration really runs:
      bayplan config show examples/config/bin-packing.yaml
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: errors that a person can mend are one sentence and an exit code."""
    try:
        cli.main(args=list(arguments) if arguments is not None else None, prog_name="bayplan", standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as fault:
        fault.show()
        sys.exit(fault.exit_code)
    except click.Abort:
        click.echo("stopped", err=True)
        sys.exit(130)
    except BayplanError as fault:
        click.echo(f"error: {_as_single_line(str(fault))}", err=True)
        sys.exit(fault.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as fault:
        _discard_output()
        with contextlib.suppress(OSError):  # a device that is full may be both of ours
            click.echo(f"error: {_as_single_line(_os_error_message(fault))}", err=True)
        sys.exit(1)


def _os_error_message(fault: OSError) -> str:
    """What the system refused, and where; without a file it was what we print into."""
    why = fault.strerror or str(fault)
    if fault.filename is None and fault.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG):
        return f"cannot write the output: {why}; send it where there is room"
    if fault.filename is None:
        return f"the system refused: {why}; try again, and report it if it stays"
    return f"cannot use {fault.filename}: {why}; make it readable and writable for you, or name another"


def _discard_output() -> None:
    """What is still waiting to be printed is dropped: the interpreter would try once more at its end, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _as_single_line(text: str) -> str:
    """kube-scheduler's own words have line breaks at times; a sentence has none."""
    return " ".join(line.strip() for line in text.splitlines())
