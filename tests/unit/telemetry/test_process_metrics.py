"""Metrics of the process."""

from __future__ import annotations

from pathlib import Path

from bayplan.telemetry.metrics import MetricsRegistry
from bayplan.telemetry.process_metrics import (
    LeaderMetrics,
    ProcessMetrics,
    RequestMetrics,
    add_build_info,
    add_features,
)


def values(registry: MetricsRegistry) -> dict[str, float]:
    lines = b"".join(registry.render()).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_the_values_are_read_from_proc(tmp_path: Path) -> None:
    fields = ["S", *(str(number) for number in range(4, 60))]  # the state is field 3, counted from 1
    fields[19], fields[20], fields[21] = "5000", "123456", "10"
    own = tmp_path / "self"
    (own / "net").mkdir(parents=True)
    (own / "fd").mkdir()
    (own / "fd" / "0").touch()
    (own / "stat").write_text(f"7 (a name) with) {' '.join(fields)}\n")
    (tmp_path / "stat").write_text("cpu 1\nbtime 1000000000\n")
    (own / "net" / "dev").write_text(
        "head\nhead\n lo: 10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\neth0: 5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0\n"
    )
    registry = MetricsRegistry()
    process = ProcessMetrics(registry, started_at=1.0, proc=tmp_path)
    found = values(registry)
    assert found["process_virtual_memory_bytes"] == 123456
    assert found["process_resident_memory_bytes"] % 10 == 0
    assert found["process_open_fds"] == 1
    assert found["process_network_receive_bytes_total"] == 15
    assert found["process_network_transmit_bytes_total"] == 26
    assert found["process_start_time_seconds"] == process.started_at == 1000000050
    assert found["process_cpu_seconds_total"] > 0


def test_without_proc_the_start_time_is_the_given_one(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    ProcessMetrics(registry, started_at=5.0, proc=tmp_path)
    found = values(registry)
    assert found["process_start_time_seconds"] == 5
    assert "process_open_fds" not in found


def test_versions_and_features() -> None:
    registry = MetricsRegistry()
    add_build_info(registry, version="0.5", emulated="1.36.4")
    add_features(registry, [("GangScheduling", "ALPHA", False), ("SchedulerQueueingHints", "", True)])
    found = values(registry)
    build = next(name for name in found if name.startswith("kubernetes_build_info{"))
    assert 'git_version="v1.36.4+bayplan.0.5"' in build
    assert 'major="1",minor="36"' in build
    assert found['version_info{binary="1.36.4",component="kube",emulation="1.36",min_compat="1.35"}'] == 1
    assert found['kubernetes_feature_enabled{name="GangScheduling",stage="ALPHA"}'] == 0
    assert found['kubernetes_feature_enabled{name="SchedulerQueueingHints",stage=""}'] == 1


def test_the_leader_status() -> None:
    registry = MetricsRegistry()
    leader = LeaderMetrics(registry)
    leader.set_leading("kube-scheduler", leads=True)
    assert values(registry)['leader_election_master_status{name="kube-scheduler"}'] == 1
    leader.set_leading("kube-scheduler", leads=False)
    assert values(registry)['leader_election_master_status{name="kube-scheduler"}'] == 0


def test_requests_are_counted_by_status() -> None:
    registry = MetricsRegistry()
    observe = RequestMetrics(registry).observer("10.0.0.1:6443")
    observe("POST", 201, 0.01)
    observe("POST", 0, 60.0)
    observe("WATCH", 200, 300.0)
    found = values(registry)
    assert found['rest_client_requests_total{code="201",host="10.0.0.1:6443",method="POST"}'] == 1
    assert found['rest_client_requests_total{code="<error>",host="10.0.0.1:6443",method="POST"}'] == 1
    assert found['rest_client_requests_total{code="200",host="10.0.0.1:6443",method="GET"}'] == 1
    assert found['rest_client_request_duration_seconds_count{host="10.0.0.1:6443",verb="POST"}'] == 2
    assert not any('verb="GET"' in name for name in found)
