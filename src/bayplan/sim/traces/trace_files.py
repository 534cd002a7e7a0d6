"""Nodes and pods of a trace, as values, and readers of trace files.

Two formats are read: OpenB, Alibaba's open trace of a cluster with shared GPUs, and plain CSV with arrivals and
durations, whose columns can have any name. `recorded_trace` reads recorded clusters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from bayplan.plugins.gpu.gpu_requests import DEVICE_MILLI, GpuMilliRequest
from bayplan.sim.traces.csv_table import CsvRow, TraceError, float_column, integer_column, read_rows, text_column

MAX_DEVICES = 64


@dataclass(frozen=True, slots=True)
class TraceNode:
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int = 0
    model: str = ""


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod, its arrival, and its running time; None means that it never ends."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpu_request: GpuMilliRequest
    arrival_s: float = 0.0
    duration_s: float | None = None
    priority: int = 0
    tenant: str = ""
    gang: str = ""
    gang_size: int = 1  # minimum number of pods of the gang that start together


_NODE_COLUMNS = (
    text_column("sn"),
    integer_column("cpu_milli"),
    integer_column("memory_mib"),
    integer_column("gpu", absent=0),
    text_column("model", absent=""),
)

_REQUEST_COLUMNS = (
    integer_column("cpu_milli"),
    integer_column("memory_mib"),
    integer_column("num_gpu", absent=0),
    integer_column("gpu_milli", absent=0),
    text_column("gpu_spec", absent=""),
)

_OPENB_COLUMNS = (text_column("name", absent=""), *_REQUEST_COLUMNS)

_CSV_COLUMNS = (
    text_column("name", absent=""),
    *_REQUEST_COLUMNS,
    float_column("arrival"),
    float_column("duration", absent=-1.0),
    integer_column("priority", lowest=-(2**31), absent=0),
    text_column("tenant", absent=""),
    text_column("gang", absent=""),
    integer_column("gang_size", lowest=1, absent=1),
)

CSV_FIELDS = tuple(column.name for column in _CSV_COLUMNS)


def read_nodes(path: Path | None = None, names: Mapping[str, str] | None = None) -> list[TraceNode]:
    """Read the nodes of a file; without a file, the 1,213 GPU nodes of OpenB."""
    if path is None:
        with as_file(files("bayplan.sim") / "data" / "openb_node_list_gpu_node.csv.gz") as shipped:
            return read_nodes(shipped)
    nodes: dict[str, TraceNode] = {}
    for row in read_rows(path, _NODE_COLUMNS, names):
        if row["sn"] in nodes:
            raise row.error("sn", f"expected a name that no line before has; got {row['sn']!r}")
        if row["gpu"] > MAX_DEVICES:
            raise row.error("gpu", f"expected at most {MAX_DEVICES} devices; got {row['gpu']}")
        nodes[row["sn"]] = TraceNode(row["sn"], row["cpu_milli"], row["memory_mib"], row["gpu"], row["model"])
    if not nodes:
        raise TraceError(path, "expected at least one node; there is none")
    return list(nodes.values())


def read_openb_pods(path: Path) -> list[TracePod]:
    """Read the pods of an OpenB workload, in file order. Without a column `gpu_spec` any model is accepted."""
    pods = [
        TracePod(row["name"] or f"pod-{row.line - 2:04d}", row["cpu_milli"], row["memory_mib"], _parse_gpu_request(row))
        for row in read_rows(path, _OPENB_COLUMNS)
    ]
    if not pods:
        raise TraceError(path, "expected at least one pod; there is none")
    if not any(pod.gpu_request.count for pod in pods):
        raise TraceError(path, "expected at least one pod that asks for a GPU; there is none", column="num_gpu")
    return pods


def read_csv_pods(path: Path, names: Mapping[str, str] | None = None) -> Iterator[TracePod]:
    """Yield the pods of a plain table, in order of arrival."""
    previous_s, found = 0.0, False
    for row in read_rows(path, _CSV_COLUMNS, names):
        found = True
        if row["arrival"] < previous_s:
            raise row.error("arrival", f"expected times in order, {previous_s:g} or later; got {row['arrival']:g}")
        previous_s = row["arrival"]
        runs_s = None if row["duration"] < 0 else row["duration"]
        yield TracePod(
            row["name"] or f"pod-{row.line - 2}",
            row["cpu_milli"],
            row["memory_mib"],
            _parse_gpu_request(row),
            previous_s,
            runs_s,
            row["priority"],
            row["tenant"],
            row["gang"],
            row["gang_size"],
        )
    if not found:
        raise TraceError(path, "expected at least one pod; there is none")


def _parse_gpu_request(row: CsvRow) -> GpuMilliRequest:
    """Parse the GPU request of a line; errors name the column."""
    count, milli = row["num_gpu"], row["gpu_milli"]
    if count > MAX_DEVICES:
        raise row.error("num_gpu", f"expected at most {MAX_DEVICES} devices; got {count}")
    if milli > DEVICE_MILLI:
        raise row.error("gpu_milli", f"expected a share of one device, from 0 to {DEVICE_MILLI}; got {milli}")
    if count > 1 and milli != DEVICE_MILLI:
        raise row.error("gpu_milli", f"expected {DEVICE_MILLI}, since num_gpu is {count}; got {milli}")
    if (count == 0) != (milli == 0):
        raise row.error(
            "gpu_milli", f"expected {'0' if count == 0 else '1 or more'}, since num_gpu is {count}; got {milli}"
        )
    return GpuMilliRequest(milli, count, row["gpu_spec"])


def gpu_capacity(nodes: Iterable[TraceNode]) -> int:
    """Capacity of all devices, in thousandths."""
    return DEVICE_MILLI * sum(node.gpus for node in nodes)
