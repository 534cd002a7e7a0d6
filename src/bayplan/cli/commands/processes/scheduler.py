"""`bayplan scheduler`: the pod engine on a real API server, with kube-scheduler's flags."""

from __future__ import annotations

import asyncio
import sys

import click

from bayplan.app import freeze_memory
from bayplan.app.process import run_process
from bayplan.app.scheduler import scheduler_process
from bayplan.app.wakeup_batching import WakeupDelay, batching_loop_factory
from bayplan.cli.commands.processes.scheduler_setup import ProcessSetup, scheduler_command
from bayplan.cli.flags.go_command import GoCommand
from bayplan.cli.flags.kube_scheduler_flags import KUBE_SCHEDULER_FLAGS


@click.command("scheduler", cls=GoCommand, flags=KUBE_SCHEDULER_FLAGS)
@scheduler_command
def command(start: ProcessSetup) -> None:
    """Schedule the pods of a cluster, in kube-scheduler's place.

    Configuration files and flags are kube-scheduler's own. Runs until SIGTERM or SIGINT: then it finishes bindings in
    flight, releases the lease and exits with 0. It exits with 1 when it loses its lease or cannot start, and with 70
    when a plugin blocks it for too long.
    SIGUSR2 logs its state, and whether it equals that of the API server.

    \b
    Examples:
      bayplan scheduler --kubeconfig ~/.kube/config --leader-elect=false
      bayplan scheduler --config scheduler.yaml --plugins-dir plugins -v 2
    """
    pace = WakeupDelay()
    process = scheduler_process(
        start.configuration,
        start.registry,
        start.target,
        plugins=start.reload_source,
        options=start.options,
        set_verbosity=start.logs.set_verbosity,
        pace=pace,
    )
    freeze_memory()
    with asyncio.Runner(loop_factory=batching_loop_factory(pace)) as runner:
        sys.exit(runner.run(run_process(process)))
