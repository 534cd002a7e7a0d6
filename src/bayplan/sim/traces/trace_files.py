"""Nodes and pods of a trace, as values: what every reader yields and every simulation takes.

Two kinds of files are read: those of OpenB, Alibaba's open trace of a cluster with shared GPUs, and plain CSV with
arrivals and durations, whose columns may be called anything. Recorded clusters come with their objects and need none of
this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from bayplan.plugins.gpu.gpu_requests import WHOLE, GpuAsk
from bayplan.sim.traces.csv_table import (
    Row,
    TraceError,
    number,
    rows,
    text,
    whole_number,
)

MOST_DEVICES = 64


@dataclass(frozen=True, slots=True)
class TraceNode:
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int = 0
    model: str = ""


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod, when it comes and how long it runs once it was started; None: for ever."""

    name: str
    cpu_milli: int
    memory_mib: int
    ask: GpuAsk
    arrives_s: float = 0.0
    runs_s: float | None = None
    priority: int = 0
    tenant: str = ""
    gang: str = ""
    gang_size: int = 1  # so many of the gang start together or not at all


_NODE_COLUMNS = (
    text("sn"),
    whole_number("cpu_milli"),
    whole_number("memory_mib"),
    whole_number("gpu", absent=0),
    text("model", absent=""),
)

_ASKED = (
    whole_number("cpu_milli"),
    whole_number("memory_mib"),
    whole_number("num_gpu", absent=0),
    whole_number("gpu_milli", absent=0),
    text("gpu_spec", absent=""),
)

_OPENB_COLUMNS = (text("name", absent=""), *_ASKED)

_CSV_COLUMNS = (
    text("name", absent=""),
    *_ASKED,
    number("arrival"),
    number("duration", absent=-1.0),
    whole_number("priority", lowest=-(2**31), absent=0),
    text("tenant", absent=""),
    text("gang", absent=""),
    whole_number("gang_size", lowest=1, absent=1),
)

CSV_FIELDS = tuple(column.name for column in _CSV_COLUMNS)
NODE_FIELDS = tuple(column.name for column in _NODE_COLUMNS)


def read_nodes(path: Path | None = None, names: Mapping[str, str] | None = None) -> list[TraceNode]:
    """The nodes of a file; without one, the 1,213 nodes with GPUs of OpenB."""
    if path is None:
        with as_file(files("bayplan.sim") / "data" / "openb_node_list_gpu_node.csv.gz") as shipped:
            return read_nodes(shipped)
    nodes: dict[str, TraceNode] = {}
    for row in rows(path, _NODE_COLUMNS, names):
        if row["sn"] in nodes:
            raise row.fault("sn", f"expected a name that no line before has; got {row['sn']!r}")
        if row["gpu"] > MOST_DEVICES:
            raise row.fault("gpu", f"expected at most {MOST_DEVICES} devices; got {row['gpu']}")
        nodes[row["sn"]] = TraceNode(row["sn"], row["cpu_milli"], row["memory_mib"], row["gpu"], row["model"])
    if not nodes:
        raise TraceError(path, "expected at least one node; there is none")
    return list(nodes.values())


def read_openb_pods(path: Path) -> list[TracePod]:
    """The pods of one OpenB workload, in the order of the file. Lists without `gpu_spec` accept any model."""
    pods = [
        TracePod(row["name"] or f"pod-{row.line - 2:04d}", row["cpu_milli"], row["memory_mib"], _ask(row))
        for row in rows(path, _OPENB_COLUMNS)
    ]
    if not pods:
        raise TraceError(path, "expected at least one pod; there is none")
    if not any(pod.ask.count for pod in pods):
        raise TraceError(path, "expected at least one pod that asks for a GPU; there is none", column="num_gpu")
    return pods


def read_csv_pods(path: Path, names: Mapping[str, str] | None = None) -> Iterator[TracePod]:
    """The pods of a plain table, one by one, by the time of their arrival."""
    before, found = 0.0, False
    for row in rows(path, _CSV_COLUMNS, names):
        found = True
        if row["arrival"] < before:
            raise row.fault("arrival", f"expected times in order, {before:g} or later; got {row['arrival']:g}")
        before = row["arrival"]
        runs_s = None if row["duration"] < 0 else row["duration"]
        yield TracePod(
            row["name"] or f"pod-{row.line - 2}",
            row["cpu_milli"],
            row["memory_mib"],
            _ask(row),
            before,
            runs_s,
            row["priority"],
            row["tenant"],
            row["gang"],
            row["gang_size"],
        )
    if not found:
        raise TraceError(path, "expected at least one pod; there is none")


def _ask(row: Row) -> GpuAsk:
    """What a line asks of GPUs; nonsense is named by its column."""
    count, milli = row["num_gpu"], row["gpu_milli"]
    if count > MOST_DEVICES:
        raise row.fault("num_gpu", f"expected at most {MOST_DEVICES} devices; got {count}")
    if milli > WHOLE:
        raise row.fault("gpu_milli", f"expected a share of one device, from 0 to {WHOLE}; got {milli}")
    if count > 1 and milli != WHOLE:
        raise row.fault("gpu_milli", f"expected {WHOLE}, since num_gpu is {count}; got {milli}")
    if (count == 0) != (milli == 0):
        raise row.fault(
            "gpu_milli", f"expected {'0' if count == 0 else '1 or more'}, since num_gpu is {count}; got {milli}"
        )
    return GpuAsk(milli, count, row["gpu_spec"])


def gpu_capacity(nodes: Iterable[TraceNode]) -> int:
    """All devices, in thousandths."""
    return WHOLE * sum(node.gpus for node in nodes)
