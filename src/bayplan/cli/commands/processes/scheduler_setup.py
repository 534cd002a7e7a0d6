"""Setup of a scheduler process: reads and validates flags, files and plugins before it connects to the API server.

Shared by `bayplan scheduler` and `bayplan run`, which both have kube-scheduler's flags.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from bayplan import __version__
from bayplan.app.configuration import configured, plugin_source
from bayplan.app.scheduler import build_engine
from bayplan.cache import Cache
from bayplan.cli.engine_setup import explain_config_errors, read_text
from bayplan.cli.flags.go_command import FlagError, GoCommand
from bayplan.cli.flags.kube_scheduler_flags import CONNECTION_FIELDS, DEBUGGING_FIELDS, ELECTION_FIELDS
from bayplan.cli.flags.page_options import page_option, with_page_address
from bayplan.cli.flags.plugin_options import plugin_options
from bayplan.cli.output.printers import yaml_text
from bayplan.client import ConnectionConfig, load_connection_config
from bayplan.clock import SystemClock
from bayplan.codec.field_errors import aggregate
from bayplan.config.bayplan_settings import BayplanSettings, load_settings
from bayplan.config.effective_configuration import built_configuration
from bayplan.config.feature_gates import parse_feature_gates
from bayplan.config.load import dump
from bayplan.config.model import Configuration
from bayplan.config.serving_flags import ProcessOptions, ServingFlags
from bayplan.config.validation import check_election, check_rate
from bayplan.framework.runtime.registry import Registry
from bayplan.scheduler.live.plugin_reloader import PluginSource
from bayplan.telemetry.logs import LogControl, LogOptions, start_logs

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessSetup:
    flags: dict[str, Any]
    logs: LogControl
    options: ProcessOptions
    configuration: Configuration
    registry: Registry
    target: ConnectionConfig
    plugins: PluginSource
    plugin_folders: tuple[Path, ...]
    trust_writable: bool

    @property
    def reload_source(self) -> PluginSource | None:
        """The source of plugins, if they can be reloaded; else None."""
        return self.plugins if self.plugin_folders else None


def scheduler_command(command: Callable[..., None], other_gates: Container[str] = ()) -> Callable[..., None]:
    """A command that gets the setup as one value, and its own options by name.

    `other_gates`: feature gates that the command knows in addition to kube-scheduler's.
    """

    @click.option("--no-leader-elect", is_flag=True, help="The same as --leader-elect=false.")
    @click.option("--settings", type=click.Path(path_type=Path), help="A BayplanConfiguration: Bayplan's own settings.")
    @page_option()
    @plugin_options
    @click.version_option(__version__, prog_name="bayplan")
    @click.pass_context
    def begin(
        context: click.Context,
        /,
        no_leader_elect: bool,
        settings: Path | None,
        page_address: str,
        plugin_folders: tuple[Path, ...],
        trust_writable_plugins: bool,
        **given: Any,
    ) -> None:
        assert isinstance(context.command, GoCommand)
        flags = context.command.values(given)
        if no_leader_elect:
            flags["leader-elect"] = False
        logs = start_logging(flags)
        context.call_on_close(logs.close)
        options = process_options(flags, context.command.texts(given), settings, page_address, other_gates)
        start = _load_setup(flags, logs, options, plugin_folders, trust_writable=trust_writable_plugins)
        if flags["write-config-to"]:
            _write_configuration(start.configuration, Path(flags["write-config-to"]))
        else:
            command(start, **{name: value for name, value in given.items() if name.replace("_", "-") not in flags})

    begin.__doc__ = command.__doc__
    return begin


def _load_setup(
    flags: dict[str, Any], logs: LogControl, options: ProcessOptions, folders: tuple[Path, ...], *, trust_writable: bool
) -> ProcessSetup:
    path = Path(flags["config"]) if flags["config"] else None
    text = read_text(path) if path is not None else None
    features = options.serving.features
    plugins = plugin_source(text, folders, trust_writable=trust_writable, features=features)
    registry = plugins.registry()
    with explain_config_errors(path, registry):
        configuration = apply_flags(configured(text, registry, features), flags, alone=path is None)
        build_engine(configuration, registry, Cache()).close()  # report errors before connecting to the API server
    kubeconfig = configuration.client_connection.kubeconfig
    target = load_connection_config(Path(kubeconfig) if kubeconfig else None, env=os.environ, server=flags["master"])
    return ProcessSetup(flags, logs, options, configuration, registry, target, plugins, folders, trust_writable)


def process_options(
    flags: Mapping[str, Any],
    texts: Mapping[str, str],
    settings: Path | None,
    page_address: str = "",
    other_gates: Container[str] = (),
) -> ProcessOptions:
    features = parse_feature_gates(
        flags["feature-gates"], flags["emulated-version"], flags["min-compatibility-version"]
    )
    for gate in features.ineffective_gates():
        log.warning(
            "feature gate %s cannot be changed in Bayplan; it stays %s",
            gate,
            "off" if features.set_gates[gate] else "on",
        )
    for gate, near in features.unknown():
        if gate in other_gates:
            continue
        hint = f"; did you mean {near}?" if near else ""
        log.warning("feature gate %s is unknown to Bayplan and has no effect%s", gate, hint)
    serving = ServingFlags.from_flags(flags, features=features, texts=texts)
    if faults := serving.validate():
        raise FlagError(aggregate(faults))
    own = BayplanSettings() if settings is None else load_settings(read_text(settings), str(settings))
    max_unschedulable = flags["pod-max-in-unschedulable-pods-duration"]
    return ProcessOptions(
        settings=with_page_address(own, page_address), serving=serving, max_in_unschedulable_pods=max_unschedulable
    )


def apply_flags(configuration: Configuration, flags: Mapping[str, Any], *, alone: bool) -> Configuration:
    """Apply flags: election flags always, other flags only without a configuration file."""
    election = replace(configuration.leader_election, **_set_flags(flags, ELECTION_FIELDS))
    check_election(election)
    connection = configuration.client_connection
    if alone:
        connection = replace(connection, **_set_flags(flags, CONNECTION_FIELDS))
        configuration = replace(configuration, **_set_flags(flags, DEBUGGING_FIELDS))
    check_rate(connection.qps, connection.burst)
    return replace(configuration, leader_election=election, client_connection=connection)


def _set_flags(flags: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {field: flags[name] for name, field in names.items() if flags[name] is not None}


def _write_configuration(configuration: Configuration, path: Path) -> None:
    try:
        path.write_text(yaml_text(dump(built_configuration(configuration)), sort_keys=True), encoding="utf-8")
    except OSError as fault:
        raise FlagError(f"--write-config-to {path} cannot be written: {fault.strerror}; give another file") from None
    log.info("the configuration is written to %s", path)


def start_logging(flags: Mapping[str, Any]) -> LogControl:
    options = LogOptions(
        format=flags["logging-format"],
        verbosity=flags["v"],
        vmodule=flags["vmodule"],
        split_stream=flags.get(f"log-{flags['logging-format']}-split-stream", False),
    )
    return start_logs(options, SystemClock())
