"""`bayplan simulate --trace csv`: replays a table of arrivals and durations in virtual time."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bayplan.app.batch import build_batch_engine
from bayplan.app.configuration import batch_configured, configured, known_actions, known_plugins
from bayplan.cli.engine_setup import explain_batch_config_errors, explain_config_errors, read_text
from bayplan.cli.output.printers import print_table, print_value, yaml_text
from bayplan.clock import ManualClock
from bayplan.config.model import Configuration
from bayplan.errors import UsageError
from bayplan.framework.runtime.registry import Registry
from bayplan.scheduler.engine import PodEngine
from bayplan.sim.traces.recorded_trace import read_recorded_trace
from bayplan.sim.traces.trace_files import CSV_FIELDS, TraceNode, TracePod, gpu_capacity, read_csv_pods, read_nodes
from bayplan.sim.virtual_time.batch_engine_simulation import BatchEngineSimulation
from bayplan.sim.virtual_time.metrics import Sample, SimulationTotals
from bayplan.sim.virtual_time.pod_engine_simulation import PodEngineSimulation
from bayplan.sim.virtual_time.policies import default_manifest, policy_configuration
from bayplan.sim.virtual_time.trace_objects import build_node_cache
from bayplan.sim.virtual_time.trace_replay import SimulationFactory, TraceReplay
from bayplan.telemetry.decisions import DecisionRing

_SAMPLE_COLUMNS = tuple(field.name for field in fields(Sample))


def column_names(given: Sequence[str]) -> dict[str, str]:
    """Parse `field=name` for each column with another name."""
    names: dict[str, str] = {}
    for text in given:
        field, _, name = text.partition("=")
        if not name or field not in CSV_FIELDS:
            raise UsageError(f"--column takes FIELD=NAME with a field of {', '.join(CSV_FIELDS)}; got {text!r}")
        names[field] = name
    return names


def simulate_csv(
    trace: str,
    pods: Path,
    nodes: Path | None,
    *,
    columns: Sequence[str],
    engine: str,
    policy: str | None,
    config: Path | None,
    seed: int,
    every_s: float,
    samples: Path | None,
    output: str,
) -> None:
    """Replay the trace and print the result; samples are written to their file during the replay."""
    names = column_names(columns)
    if trace == "recording":
        recorded, listed = read_recorded_trace(pods)
        cluster = recorded if nodes is None else read_nodes(nodes)
    else:
        cluster, listed = read_nodes(nodes), None

    def arrivals() -> Iterable[TracePod]:
        return read_csv_pods(pods, names) if listed is None else listed

    if policy is not None and (config is not None or engine == "batch"):
        raise UsageError("--policy excludes --config and --engine batch; give one of them")
    with ExitStack() as stack:
        if engine == "batch":
            factory = stack.enter_context(_batch_engine_factory(cluster, config, seed))
        else:
            found = _configuration(arrivals, policy, config, gpus=gpu_capacity(cluster) > 0)
            factory = stack.enter_context(_pod_engine_factory(cluster, *found, config, seed))
        sink = stack.enter_context(_sample_writer(samples))
        totals = TraceReplay(cluster, factory).run(arrivals(), every_s=every_s, sink=sink)
    if output == "table":
        _print(pods, len(cluster), totals)
    else:
        print_value(
            {"trace": trace, "pods": str(pods), "engine": engine, "nodes": len(cluster), **totals.as_data()}, output
        )


@contextmanager
def _pod_engine_factory(
    nodes: Sequence[TraceNode], configuration: Configuration, registry: Registry, config: Path | None, seed: int
) -> Iterator[SimulationFactory]:
    clock = ManualClock()
    with explain_config_errors(config, registry):
        engine = PodEngine(
            configuration,
            registry,
            build_node_cache(nodes),
            clock=clock,
            chance=random.Random(seed),
            records=DecisionRing(0),  # decisions of a trace are not explained
        )
    try:
        yield lambda placed, evicted: PodEngineSimulation(engine, clock, on_placed=placed, on_evicted=evicted)
    finally:
        engine.close()


@contextmanager
def _batch_engine_factory(nodes: Sequence[TraceNode], config: Path | None, seed: int) -> Iterator[SimulationFactory]:
    clock = ManualClock()
    actions = known_actions()
    with explain_batch_config_errors(config or "the volcano-scheduler.conf", actions):
        configuration = batch_configured(None if config is None else read_text(config), actions)
    engine = build_batch_engine(configuration, build_node_cache(nodes), clock=clock, chance=random.Random(seed))
    try:
        yield lambda placed, evicted: BatchEngineSimulation(engine, clock, on_placed=placed, on_evicted=evicted)
    finally:
        engine.close()


def _configuration(
    arrivals: Callable[[], Iterable[TracePod]], policy: str | None, config: Path | None, *, gpus: bool
) -> tuple[Configuration, Registry]:
    if policy is not None:
        return policy_configuration(policy, arrivals())
    registry = known_plugins()
    text = read_text(config) if config is not None else yaml_text(default_manifest()) if gpus else None
    with explain_config_errors(config, registry):
        return configured(text, registry), registry


@contextmanager
def _sample_writer(path: Path | None) -> Iterator[Callable[[Sample], None]]:
    if path is None:
        yield lambda _: None
        return
    try:
        file = path.open("w", encoding="utf-8", newline="")
    except OSError as fault:
        raise UsageError(f"cannot write {path}: {fault.strerror}; give another --samples file") from None
    with file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_SAMPLE_COLUMNS)
        yield lambda sample: writer.writerow(_round(value) for value in asdict(sample).values())


def _round(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _print(pods: Path, nodes: int, totals: SimulationTotals) -> None:
    click.echo(f"{pods.name} on {nodes} nodes: {totals.seconds / 3600:.2f} hours\n")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    for name, value in (
        ("pods that arrived", f"{totals.arrived}"),
        ("placed", f"{totals.placed}"),
        ("ended", f"{totals.finished}"),
        ("running at the end", f"{totals.running}"),
        ("waiting at the end", f"{totals.waiting}"),
        ("preemptions", f"{totals.preemptions}"),
        ("CPU allocated, mean", f"{totals.cpu_mean:.1%}"),
        ("memory allocated, mean", f"{totals.memory_mean:.1%}"),
        ("GPUs allocated, mean", f"{totals.gpu_mean:.1%}"),
        ("fairness, mean", f"{totals.fairness_mean:.3f}"),
        ("wait, mean", f"{totals.wait_mean_s:.1f} s"),
        ("wait, median", f"{totals.wait_median_s:.1f} s"),
        ("wait, 95 %", f"{totals.wait_p95_s:.1f} s"),
        ("wait, longest", f"{totals.wait_longest_s:.1f} s"),
    ):
        table.add_row(name, value)
    print_table(table)
