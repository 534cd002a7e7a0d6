"""`bayplan batch run`: the batch engine on a real API server, with vc-scheduler's flags."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from bayplan import __version__
from bayplan.app import freeze_memory
from bayplan.app.batch import NO_SECURE_PORT, BatchSettings, batch_lease, batch_process
from bayplan.app.combined import CombinedEngines
from bayplan.app.insecure_serving import InsecureServingOptions
from bayplan.app.process import run_process
from bayplan.app.process_lifecycle import SchedulerProcess
from bayplan.batch.diagnostics.cache_dumper import dump_dict
from bayplan.batch.live.multi_scheduler import MultiScheduler
from bayplan.batch.live.options import BatchOptions
from bayplan.batch.live.run_loop import BatchRunLoop
from bayplan.cache import Cache
from bayplan.cli.engine_setup import read_text
from bayplan.cli.flags.go_command import IGNORED_CHART_WORDS, FlagError, GoCommand
from bayplan.cli.flags.page_options import page_option, with_page_address
from bayplan.cli.flags.plugin_options import plugin_options
from bayplan.cli.flags.vc_scheduler_flags import VC_ELECTION_FIELDS, VC_SCHEDULER_FLAGS
from bayplan.client import load_connection_config
from bayplan.clock import SystemClock
from bayplan.config.bayplan_settings import BayplanSettings, load_settings
from bayplan.config.serving_flags import ServingFlags
from bayplan.config.validation import check_election
from bayplan.config.volcano_feature_gates import ignored_gate_messages, is_queue_admission_enabled
from bayplan.errors import ConfigError
from bayplan.telemetry.logs import LogOptions, start_logs

log = logging.getLogger(__name__)


@click.command("run", cls=GoCommand, flags=VC_SCHEDULER_FLAGS, ignored=IGNORED_CHART_WORDS)
@click.option("--settings", type=click.Path(path_type=Path), help="A BayplanConfiguration: Bayplan's own settings.")
@click.option(
    "--secure-port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="none",
    help="Serve `bayplan why` and the page on this port, over TLS, to users who may get the pods. The certificate is "
    "that of --tls-cert-file and --tls-private-key-file, else a self-signed one.",
)
@click.option(
    "--bind-address", default=NO_SECURE_PORT.bind_address, show_default=True, help="The address of --secure-port."
)
@page_option()
@plugin_options
@click.version_option(__version__, prog_name="bayplan")
@click.pass_context
def command(
    context: click.Context,
    /,
    settings: Path | None,
    secure_port: int,
    bind_address: str,
    page_address: str,
    plugin_folders: tuple[Path, ...],
    trust_writable_plugins: bool,
    **given: Any,
) -> None:
    """Schedule the pods of gangs and queues, in vc-scheduler's place.

    Configuration files and flags are vc-scheduler's own; `bayplan batch --scheduler-conf FILE` is the same as `bayplan
    batch run --scheduler-conf FILE`. Runs until SIGTERM or SIGINT: then it finishes bindings in flight, releases the
    lease and exits with 0. It exits with 1 when it loses its lease or cannot start.
    SIGUSR2 logs its state, SIGUSR1 writes it to a file in --cache-dump-dir.

    \b
    Examples:
      bayplan batch run --kubeconfig ~/.kube/config --leader-elect=false
      bayplan batch --scheduler-conf volcano-scheduler.conf --plugins-dir plugins -v 3
      bayplan batch run --secure-port 10260
    """
    assert isinstance(context.command, GoCommand)
    flags = context.command.values(given)
    clock = SystemClock()
    logs = start_logs(LogOptions(verbosity=flags["v"], vmodule=flags["vmodule"]), clock)
    context.call_on_close(logs.close)
    for sentence in ignored_gate_messages(flags["feature-gates"]):
        log.warning("%s", sentence)
    own = BayplanSettings() if settings is None else load_settings(read_text(settings), str(settings))
    own = with_page_address(own, page_address)
    multi_scheduler = MultiScheduler.from_environment(os.environ)
    engine = batch_settings(
        flags, plugin_folders, trust_writable=trust_writable_plugins, own=own, multi_scheduler=multi_scheduler
    )
    kubeconfig = flags["kubeconfig"]
    target = load_connection_config(Path(kubeconfig) if kubeconfig else None, env=os.environ, server=flags["master"])
    process = batch_process(
        engine,
        target,
        openly=insecure_serving_options(flags),
        qps=flags["kube-api-qps"],
        burst=flags["kube-api-burst"],
        own=own,
        serving=ServingFlags(
            bind_address=bind_address,
            secure_port=secure_port,
            tls_cert_file=flags["tls-cert-file"],
            tls_private_key_file=flags["tls-private-key-file"],
        ),
        clock=clock,
    )
    freeze_memory()
    sys.exit(asyncio.run(run_process(process, dump_handler(flags))))


def batch_settings(
    flags: Mapping[str, Any],
    folders: tuple[Path, ...],
    *,
    trust_writable: bool,
    own: BayplanSettings,
    multi_scheduler: MultiScheduler | None = None,
) -> BatchSettings:
    """The settings from the flags. Errors are reported before the command connects to the API server."""
    options = BatchOptions(
        scheduler_name=flags["scheduler-name"],
        schedule_period=flags["schedule-period"],
        default_queue=flags["default-queue"],
        node_selector=flags["node-selector"],
        ignored_provisioners=flags["ignored-provisioners"],
        percentage_nodes_to_find=flags["percentage-nodes-to-find"],
        minimum_feasible_nodes=flags["minimum-feasible-nodes"],
        sharding_mode=flags["scheduler-sharding-mode"],
        sharding_name=flags["scheduler-sharding-name"],
        queue_admission=is_queue_admission_enabled(flags["feature-gates"]),
        multi_scheduler=multi_scheduler,
        max_concurrent_writes=own.writes_at_once,
        slice_s=own.slice_milliseconds / 1e3,
    )
    for fault in options.validation_errors():
        raise FlagError(fault)
    lease = replace(batch_lease(options), **{field: flags[name] for name, field in VC_ELECTION_FIELDS.items()})
    if flags["lock-object-namespace"]:
        lease = replace(lease, resource_namespace=flags["lock-object-namespace"])
    if flags["leader-elect-resource-name"]:
        lease = replace(lease, resource_name=flags["leader-elect-resource-name"])
    check_election(lease)
    conf = Path(flags["scheduler-conf"]) if flags["scheduler-conf"] else None
    if conf is None and flags["disable-default-scheduler-config"]:
        raise FlagError("--disable-default-scheduler-config needs a file; give one with --scheduler-conf")
    found = BatchSettings(
        options=options,
        conf=conf,
        plugin_folders=folders,
        trust_writable=trust_writable,
        lease=lease,
        bayplan_settings=own,
    )
    _validate_engine(found, strict=flags["disable-default-scheduler-config"])
    return found


def insecure_serving_options(flags: Mapping[str, Any]) -> InsecureServingOptions:
    """The endpoints without TLS and authorization."""
    return InsecureServingOptions(
        health=flags["enable-healthz"],
        health_address=flags["healthz-address"],
        metrics=flags["enable-metrics"],
        profiling=flags["enable-pprof"],
        listen_address=flags["listen-address"],
    )


def dump_handler(flags: Mapping[str, Any]) -> Callable[[SchedulerProcess], None] | None:
    """The handler of SIGUSR1, unless it is disabled."""
    folder = Path(flags["cache-dump-dir"])
    return (lambda running: _write_dump(running, folder)) if flags["cache-dumper"] else None


def _validate_engine(settings: BatchSettings, *, strict: bool) -> None:
    """Build the engine once, to report plugins that cannot be loaded, and an invalid file if it is mandatory."""
    clock = SystemClock()
    engine = settings.build_engine(Cache(), clock)
    try:
        fault = engine.file_fault
        if fault and strict:
            raise ConfigError(fault, stage="file")
    finally:
        engine.close()


def _write_dump(running: SchedulerProcess, folder: Path) -> None:
    live = running.engine_loop.batch if isinstance(running.engine_loop, CombinedEngines) else running.engine_loop
    assert isinstance(live, BatchRunLoop)
    path = folder / f"snapshot-{int(live.clock.now().timestamp())}.json"
    try:
        path.write_text(json.dumps(dump_dict(live.engine), indent=1, sort_keys=True), encoding="utf-8")
    except OSError as fault:
        log.error("cannot write %s: %s", path, fault)
        return
    log.info("the state is written to %s", path)
