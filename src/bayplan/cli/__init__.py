"""The command line: one module per command, imported when the command is used."""

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
    "admission": "Serve Volcano's admission webhooks: defaulting and validation.",
    "apply": "Create or update objects of a cluster from manifests.",
    "batch": "Schedule gangs and queues, in vc-scheduler's place; check and show its configuration.",
    "binder": "Bind the pods of BindRequests that schedulers create.",
    "cluster": "Run a Kubernetes API on this machine, with nothing but Python.",
    "completion": "Print a script that completes commands in bash, zsh or fish.",
    "config": "Check and show a KubeSchedulerConfiguration.",
    "conformance": "Compare Bayplan with recorded decisions of the real scheduler.",
    "controllers": "Run the controllers of a cluster, in kube-controller-manager's place.",
    "crds": "Print the CRDs of Volcano and of BindRequests that a cluster lacks.",
    "delete": "Delete objects of a cluster.",
    "demo": "Run a cluster with example workloads and watch its decisions, in half a minute.",
    "get": "Show objects of a cluster.",
    "job": "Run, list, view, suspend, resume and delete Volcano's jobs.",
    "kubeconfig": "Print the kubeconfig of the cluster of `bayplan cluster up`.",
    "kubelet": "Run fake nodes on an API server: Ready nodes and Running pods without containers.",
    "place": "Schedule the pods of manifests offline, and show each decision with its reason.",
    "plugin": "Create a plugin from a template, and list plugins.",
    "podgroup": "List, view and delete Volcano's PodGroups.",
    "queue": "List, create, open, close and delete Volcano's queues.",
    "record": "Write a cluster and its decisions to one file.",
    "replay": "Repeat the decisions of a recording, and show the first difference.",
    "run": "Schedule all pods of a cluster: single ones, gangs and queues, by two engines on one cache.",
    "scheduler": "Schedule the pods of a cluster, in kube-scheduler's place.",
    "simulate": "Replay a trace, and compare how well policies fill a cluster.",
    "sweep": "Simulate all combinations of workloads, policies and seeds; write a table and a report.",
    "top": "Watch nodes, pending pods and the rate of decisions.",
    "whatif": "Show what a change of a cluster would do to its pods and its cost.",
    "why": "Explain why a pod is on its node, or pending, and what would have to change.",
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
    """Lists the commands by name and imports the module of one when it is used, so `--help` stays fast."""

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
    """Bayplan: a Kubernetes scheduler that is extended in Python.

    \b
        Run the demo:
      bayplan demo
        Run your own cluster, and use it:
      bayplan cluster up --detach --nodes 10 --zones 3
      bayplan get nodes
        Try it on manifests in files:
      bayplan place -f examples/cluster
        Show the effective configuration:
      bayplan config show examples/config/bin-packing.yaml
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. An error that the user can fix becomes one sentence and an exit code."""
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
        with contextlib.suppress(OSError):  # both streams may go to the full device
            click.echo(f"error: {_as_single_line(_os_error_message(fault))}", err=True)
        sys.exit(1)


def _os_error_message(fault: OSError) -> str:
    """The failed operation and its file. Without a file name, the error is about the output."""
    why = fault.strerror or str(fault)
    if fault.filename is None and fault.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG):
        return f"cannot write the output: {why}; free space on the device or redirect the output"
    if fault.filename is None:
        return f"a system call failed: {why}; try again, and report it if it persists"
    return f"cannot use {fault.filename}: {why}; make it readable and writable, or give another file"


def _discard_output() -> None:
    """Drop buffered output. The interpreter would otherwise flush it once more at exit, and report an error."""
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _as_single_line(text: str) -> str:
    """The text in one line: messages of kube-scheduler contain line breaks at times."""
    return " ".join(line.strip() for line in text.splitlines())
