"""`bayplan scheduler`: the pod engine on a real API server, with kube-scheduler's flags."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from bayplan import __version__
from bayplan.app import build_engine, configured, freeze_memory, plugin_source, scheduler_process
from bayplan.cache import Cache
from bayplan.cli.go_command import FlagError, GoCommand
from bayplan.cli.options import explained, file_text
from bayplan.cli.page_options import page_option, with_page
from bayplan.cli.plugin_options import plugin_options
from bayplan.cli.printing import yaml_text
from bayplan.cli.running import run_process
from bayplan.cli.scheduler_flags import CONNECTION, DEBUGGING, ELECTION, FLAGS
from bayplan.client import find_target
from bayplan.clock import SystemClock
from bayplan.config.features import features_of
from bayplan.config.load import dump
from bayplan.config.model import Configuration
from bayplan.config.own_settings import OwnSettings, load_settings
from bayplan.config.serving_flags import ProcessOptions, ServingFlags
from bayplan.config.validation import check_election
from bayplan.errors import ConfigError
from bayplan.telemetry.logs import LogControl, LogOptions, start_logs

log = logging.getLogger(__name__)


@click.command("scheduler", cls=GoCommand, flags=FLAGS)
@click.option("--no-leader-elect", is_flag=True, help="The same as --leader-elect=false.")
@click.option("--settings", type=click.Path(path_type=Path), help="A BayplanConfiguration: settings of Bayplan alone.")
@page_option()
@plugin_options
@click.version_option(__version__, prog_name="bayplan")
@click.pass_context
def command(
    context: click.Context,
    /,
    no_leader_elect: bool,
    settings: Path | None,
    page_address: str,
    plugin_folders: tuple[Path, ...],
    trust_writable_plugins: bool,
    **given: Any,
) -> None:
    """Schedule the pods of a cluster, in kube-scheduler's place.

    Configuration files and flags are kube-scheduler's own. Runs until it is told to stop (SIGTERM, SIGINT): then it
    finishes what is under way, gives up the lease and ends with 0. It ends with 1 when it loses its lease or cannot
    start, and with 70 when a plugin held it for too long.
    SIGUSR2 writes what it knows into its log, and whether that is what the API server says.

    \b
    Examples:
      bayplan scheduler --kubeconfig ~/.kube/config --leader-elect=false
      bayplan scheduler --config scheduler.yaml --plugins-dir plugins -v 2
    """
    assert isinstance(context.command, GoCommand)
    flags = context.command.values(given)
    if no_leader_elect:
        flags["leader-elect"] = False
    logs = start_logging(flags)
    context.call_on_close(logs.close)
    options = process_options(flags, context.command.texts(given), settings, page_address)
    path = Path(flags["config"]) if flags["config"] else None
    text = file_text(path) if path is not None else None
    features = options.serving.features
    plugins = plugin_source(text, plugin_folders, trust_writable=trust_writable_plugins, features=features)
    registry = plugins.registry()
    with explained(path, registry):
        configuration = with_flags(configured(text, registry, features), flags, alone=path is None)
        build_engine(configuration, registry, Cache()).close()  # what is wrong is told before anybody is waited for
    kubeconfig = configuration.client_connection.kubeconfig
    target = find_target(Path(kubeconfig) if kubeconfig else None, env=os.environ, server=flags["master"])
    if flags["write-config-to"]:
        _write(configuration, Path(flags["write-config-to"]))
        return
    process = scheduler_process(
        configuration,
        registry,
        target,
        plugins=plugins if plugin_folders else None,
        options=options,
        set_verbosity=logs.set_verbosity,
    )
    freeze_memory()
    sys.exit(asyncio.run(run_process(process)))


def process_options(
    flags: Mapping[str, Any], texts: Mapping[str, str], settings: Path | None, page_address: str = ""
) -> ProcessOptions:
    features = features_of(flags["feature-gates"], flags["emulated-version"], flags["min-compatibility-version"])
    for gate in features.without_effect():
        log.warning("feature gate %s cannot be turned here; it stays %s", gate, "off" if features.given[gate] else "on")
    serving = ServingFlags.of(flags, features=features, told=texts)
    if faults := serving.faults():
        raise FlagError(faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]")
    own = OwnSettings() if settings is None else load_settings(file_text(settings), str(settings))
    parked = flags["pod-max-in-unschedulable-pods-duration"]
    return ProcessOptions(settings=with_page(own, page_address), serving=serving, max_parked=parked)


def with_flags(configuration: Configuration, flags: Mapping[str, Any], *, alone: bool) -> Configuration:
    """Flags about the election always count; the others count where there is no file."""
    election = replace(configuration.leader_election, **_given(flags, ELECTION))
    check_election(election)
    connection = configuration.client_connection
    if alone:
        connection = replace(connection, **_given(flags, CONNECTION))
        configuration = replace(configuration, **_given(flags, DEBUGGING))
    if connection.qps > 0 and connection.burst <= 0:
        raise ConfigError(
            "burst is required to be greater than 0 when RateLimiter is not set and QPS is set to greater than 0",
            stage="flags",
        )
    return replace(configuration, leader_election=election, client_connection=connection)


def _given(flags: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {field: flags[name] for name, field in names.items() if flags[name] is not None}


def _write(configuration: Configuration, path: Path) -> None:
    try:
        path.write_text(yaml_text(dump(configuration), sort_keys=True), encoding="utf-8")
    except OSError as fault:
        raise FlagError(f"--write-config-to {path} cannot be written: {fault.strerror}; name another file") from None
    log.info("the configuration is written to %s", path)


def start_logging(flags: Mapping[str, Any]) -> LogControl:
    options = LogOptions(
        format=flags["logging-format"],
        verbosity=flags["v"],
        vmodule=flags["vmodule"],
        split_stream=flags.get(f"log-{flags['logging-format']}-split-stream", False),
    )
    return start_logs(options, SystemClock())
