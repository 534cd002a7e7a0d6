"""Metrics of the process: CPU time, memory, files, versions, feature gates, leadership and API requests.

Read from /proc at each scrape, which costs about 100 µs. Without /proc only the CPU time and the start time are known.
Names and help texts are those of Prometheus clients and of Kubernetes components.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from bayplan.telemetry.metrics import Counter, Gauge, Histogram, MetricsRegistry, Stability

if sys.platform != "win32":
    import resource

_REQUEST_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
_UNLIMITED = float(2**64)
_NETWORK_COUNTS = 8  # columns of /proc/net/dev for received traffic


class ProcessMetrics:
    """`process_*`. `started_at` is for systems that do not report the start time of a process."""

    def __init__(self, registry: MetricsRegistry, *, started_at: float, proc: Path = Path("/proc")) -> None:
        none = Stability.NONE
        self._proc = proc
        self._cpu = Counter(
            "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", stability=none
        )
        self._start = Gauge(
            "process_start_time_seconds", "Start time of the process since unix epoch in seconds.", stability=none
        )
        self._start.set(_start_time(proc) or started_at)
        registry.add(self._cpu, self._start)
        registry.collect(self._read)
        if (proc / "self" / "stat").exists():
            self._add_linux(registry)

    @property
    def started_at(self) -> float:
        """Seconds since 1970."""
        return self._start.labels().value

    def _add_linux(self, registry: MetricsRegistry) -> None:
        none = Stability.NONE
        self._resident = Gauge("process_resident_memory_bytes", "Resident memory size in bytes.", stability=none)
        self._virtual = Gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", stability=none)
        self._most = Gauge(
            "process_virtual_memory_max_bytes", "Maximum amount of virtual memory available in bytes.", stability=none
        )
        self._files = Gauge("process_open_fds", "Number of open file descriptors.", stability=none)
        self._most_files = Gauge("process_max_fds", "Maximum number of open file descriptors.", stability=none)
        self._received = Counter(
            "process_network_receive_bytes_total",
            "Number of bytes received by the process over the network.",
            stability=none,
        )
        self._sent = Counter(
            "process_network_transmit_bytes_total",
            "Number of bytes sent by the process over the network.",
            stability=none,
        )
        registry.add(
            self._resident, self._virtual, self._most, self._files, self._most_files, self._received, self._sent
        )
        registry.collect(self._read_linux)

    def _read(self) -> None:
        self._cpu.labels().value = round(time.process_time(), 2)

    def _read_linux(self) -> None:
        fields = _stat(self._proc)
        self._virtual.set(int(fields[20]))
        self._resident.set(int(fields[21]) * resource.getpagesize())
        most, files = resource.getrlimit(resource.RLIMIT_AS)[0], resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most.set(_UNLIMITED if most == resource.RLIM_INFINITY else most)
        self._most_files.set(files)
        self._files.set(len(os.listdir(self._proc / "self" / "fd")))
        received, sent = _network(self._proc)
        self._received.labels().value, self._sent.labels().value = received, sent


def _stat(proc: Path) -> list[str]:
    """The fields of /proc/self/stat after the process name, which may contain spaces."""
    return (proc / "self" / "stat").read_text().rpartition(")")[2].split()


def _start_time(proc: Path) -> float:
    """Start time of the process in seconds since 1970; 0 if the system does not report it."""
    try:
        ticks = int(_stat(proc)[19])
        booted = next(line for line in (proc / "stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0.0
    return int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def _network(proc: Path) -> tuple[int, int]:
    """Bytes received and sent over all interfaces."""
    received = sent = 0
    for line in (proc / "self" / "net" / "dev").read_text().splitlines()[2:]:
        counts = line.partition(":")[2].split()
        received += int(counts[0])
        sent += int(counts[_NETWORK_COUNTS])
    return received, sent


def add_build_info(registry: MetricsRegistry, *, version: str, emulated: str) -> None:
    """`kubernetes_build_info` and `version_info`. `emulated` is the kube-scheduler version that Bayplan emulates, as in
    1.36.4. The Python version and implementation stand where upstream has Go's."""
    major, minor = emulated.split(".")[:2]
    info = Gauge(
        "kubernetes_build_info",
        "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build "
        "date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
        _BUILD_LABELS,
        stability=Stability.BETA,
    )
    place = f"{sys.platform}/{platform.machine()}"
    built = (f"python{platform.python_version()}", platform.python_implementation().lower())
    info.labels(major, minor, f"v{emulated}+bayplan.{version}", "", "", "", *built, place).set(1)
    versions = Gauge(
        "version_info",
        "Provides the compatibility version info of the component. The component label is the name of the component, "
        "usually kube, but is relevant for aggregated-apiservers.",
        ("component", "binary", "emulation", "min_compat"),
    )
    versions.labels("kube", emulated, f"{major}.{minor}", f"{major}.{int(minor) - 1}").set(1)
    registry.add(info, versions)


_BUILD_LABELS = (
    "major",
    "minor",
    "git_version",
    "git_commit",
    "git_tree_state",
    "build_date",
    "go_version",
    "compiler",
    "platform",
)


def add_features(registry: MetricsRegistry, features: Iterable[tuple[str, str, bool]]) -> None:
    """`kubernetes_feature_enabled`: name, stage (ALPHA, BETA, DEPRECATED; empty after GA), whether the gate is on."""
    enabled = Gauge(
        "kubernetes_feature_enabled",
        "This metric records the data about the stage and enablement of a k8s feature.",
        ("name", "stage"),
        stability=Stability.BETA,
    )
    for name, stage, on in features:
        enabled.labels(name, stage).set(int(on))
    registry.add(enabled)


class LeaderMetrics:
    """`leader_election_*`, by the name of the lease."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._status = Gauge(
            "leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. "
            "'name' is the string used to identify the lease. Please make sure to group by name.",
            ("name",),
        )
        registry.add(self._status)

    def set_leading(self, name: str, *, leads: bool) -> None:
        self._status.labels(name).set(int(leads))


class RequestMetrics:
    """`rest_client_*`: results of requests to the API server. A client gets its `observer`."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._requests = Counter(
            "rest_client_requests_total",
            "Number of HTTP requests, partitioned by status code, method, and host.",
            ("code", "method", "host"),
        )
        self._seconds = Histogram(
            "rest_client_request_duration_seconds",
            "Request latency in seconds. Broken down by verb, and host.",
            ("verb", "host"),
            buckets=_REQUEST_BUCKETS,
        )
        registry.add(self._requests, self._seconds)

    def observe_request(self, host: str, method: str, status: int, seconds: float) -> None:
        """Count a response, or a request without one (status 0). The duration of a watch is not recorded."""
        code = str(status) if status else "<error>"
        if method == "WATCH":
            self._requests.labels(code, "GET", host).value += 1
            return
        self._requests.labels(code, method, host).value += 1
        self._seconds.labels(method, host).observe(seconds)

    def observer(self, host: str) -> Callable[[str, int, float], None]:
        """The function for one client, whose host is fixed."""
        return partial(self.observe_request, host)
