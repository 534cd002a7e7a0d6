"""The configurations of a campaign: which processes run, on which server, with which pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos.director import FAMILIES, FAMILIES_OF_PAIRS, Chances
from chaos.workload.gangs import Gangs
from chaos.workload.pool import Pool, Stage
from chaos.workload.pools import Constrained, Dense, Devices, Shares, Volumes, WholeNodes
from chaos.workload.preemption import Preemption

LEASE_S, RENEW_S, RETRY_S = 10, 5, 1
"""A write is in flight for at most 4 s after its sender stopped leading, which is before the lease expires."""

_SCHEDULER = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {{kubeconfig: {kubeconfig}, qps: 5000, burst: 10000}}
leaderElection: {{leaderElect: {elect}, leaseDuration: {lease}s, renewDeadline: {renew}s, retryPeriod: {retry}s}}
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 2
{profiles}
"""
_BY_REQUESTS = """
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled: [{name: GpuSharing}, {name: BindRequestBinder}]
      disabled: [{name: DefaultBinder}]
"""
_LEFT_TO_BINDER = f"""{_BY_REQUESTS}    preBind:
      disabled: [{{name: DynamicResources}}, {{name: VolumeBinding}}]
"""
_SETTINGS = """
apiVersion: bayplan.dev/v1alpha1
kind: BayplanConfiguration
bindRequests: {requests}
binderPlugins:
  volumebinding: {{arguments: {{bindTimeoutSeconds: 20}}}}
"""
_BATCH = """
actions: "enqueue, allocate, preempt, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: predicates
  - name: proportion
  - name: nodeorder
"""
_ELECT = (
    "--leader-elect=true",
    f"--leader-elect-lease-duration={LEASE_S}s",
    f"--leader-elect-renew-deadline={RENEW_S}s",
    f"--leader-elect-retry-period={RETRY_S}s",
)


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """One process: `arguments` writes its files and returns the command line."""

    name: str
    role: str
    arguments: Callable[[Path, Path], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Configuration:
    name: str
    server: str
    slots: tuple[SlotSpec, ...]
    pools: Callable[[Stage], list[Pool]]
    targets: dict[str, int]
    has_leases: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.name}@{self.server}"

    @property
    def chances(self) -> Chances:
        return Chances(self.targets, FAMILIES_OF_PAIRS if self.has_leases else FAMILIES)


def _scheduler(*, elect: bool = False, profiles: str = "") -> Callable[[Path, Path], tuple[str, ...]]:
    def arguments(folder: Path, kubeconfig: Path) -> tuple[str, ...]:
        path = folder / f"{kubeconfig.stem}.yaml"
        path.write_text(_scheduler_file(kubeconfig, elect, profiles))
        return ("scheduler", "--config", str(path), "--secure-port=0", "-v=2")

    return arguments


def _scheduler_file(kubeconfig: Path, elect: bool, profiles: str) -> str:
    times = {"lease": LEASE_S, "renew": RENEW_S, "retry": RETRY_S}
    return _SCHEDULER.format(kubeconfig=kubeconfig, elect=str(elect).lower(), profiles=profiles, **times)


def _batch(*, requests: bool = False) -> Callable[[Path, Path], tuple[str, ...]]:
    def arguments(folder: Path, kubeconfig: Path) -> tuple[str, ...]:
        flags = (f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--schedule-period=200ms", "-v=3")
        return ("batch", "run", *flags, *_batch_files(folder, requests))

    return arguments


def _batch_files(folder: Path, requests: bool) -> tuple[str, ...]:
    conf, settings = folder / "volcano.conf", folder / "settings.yaml"
    conf.write_text(_BATCH)
    settings.write_text(_SETTINGS.format(requests=str(requests).lower()))
    return (f"--scheduler-conf={conf}", f"--settings={settings}")


def _both(*, elect: bool, binder: bool) -> Callable[[Path, Path], tuple[str, ...]]:
    def arguments(folder: Path, kubeconfig: Path) -> tuple[str, ...]:
        path = folder / f"{kubeconfig.stem}.yaml"
        path.write_text(_scheduler_file(kubeconfig, elect, _BY_REQUESTS if binder else ""))
        flags = ("--config", str(path), "--secure-port=0", "--schedule-period=200ms", "-v=2")
        leases = _ELECT if elect else ("--leader-elect=false",)
        return ("run", *flags, *leases, *(("--binder",) if binder else ()), *_batch_files(folder, binder))

    return arguments


def _binder(folder: Path, kubeconfig: Path) -> tuple[str, ...]:
    settings = folder / "binder.yaml"
    settings.write_text(_SETTINGS.format(requests="true"))
    return ("binder", "--no-leader-elect", f"--kubeconfig={kubeconfig}", f"--settings={settings}", "-v=2")


_READS = {"watch": 2, "list": 2, "get": 3}
_DIRECT = {"binding": 24, "pod-delete": 10, "pod-status": 8, "claim-status": 12, "volume": 8, "event": 3, **_READS}
_REQUESTS = {
    "bindrequest-create": 20,
    "bindrequest-status": 6,
    "bindrequest-delete": 3,
    "binding": 16,
    "pod-patch": 5,
    "reservation": 8,
    "configmap": 3,
    "claim-status": 10,
    "volume": 8,
    "pod-delete": 6,
    "pod-status": 5,
    "event": 2,
    **_READS,
}
_BATCH_TARGETS = {"podgroup-status": 5, "queue-status": 2}
_LEASES = {"lease": 5}


def _pod_pools(stage: Stage) -> list[Pool]:
    return [
        WholeNodes("whole", stage),
        Dense("dense", stage),
        Constrained("constrained", stage),
        Preemption("preemption", stage),
        Devices("devices", stage),
        Volumes("volumes", stage),
    ]


def _binder_pools(stage: Stage) -> list[Pool]:
    return [
        WholeNodes("whole", stage),
        Dense("dense", stage),
        Devices("devices", stage),
        Volumes("volumes", stage),
        Shares("shares", stage),
    ]


def _batch_pools(stage: Stage) -> list[Pool]:
    batch = ("batch",)
    return [
        WholeNodes("whole", stage, batch),
        Dense("dense", stage, batch),
        Devices("devices", stage, batch),
        Preemption("preemption", stage, batch),
        Gangs("gangs", stage),
    ]


def _mixed_pools(stage: Stage) -> list[Pool]:
    both = ("pods", "batch")
    return [
        WholeNodes("whole", stage, both),
        Dense("dense", stage, both),
        Devices("devices", stage),
        Preemption("preemption", stage),
        Gangs("gangs", stage),
    ]


def _shared_pools(stage: Stage) -> list[Pool]:
    return [*_mixed_pools(stage), Shares("shares", stage)]


def _pair_pools(stage: Stage) -> list[Pool]:
    return [
        WholeNodes("whole", stage),
        Dense("dense", stage),
        Constrained("constrained", stage),
        Preemption("preemption", stage),
        Devices("devices", stage),
    ]


def _pair(role: str, arguments: Callable[[Path, Path], tuple[str, ...]]) -> tuple[SlotSpec, ...]:
    return tuple(SlotSpec(f"{role}-{letter}", role, arguments) for letter in "ab")


_SCHEDULER_SLOT, _BINDER_SLOT = "scheduler", SlotSpec("binder", "binder", _binder)


def _all(server: str) -> list[Configuration]:
    one = (SlotSpec(_SCHEDULER_SLOT, "scheduler", _scheduler()),)
    with_binder = (SlotSpec(_SCHEDULER_SLOT, "scheduler", _scheduler(profiles=_LEFT_TO_BINDER)), _BINDER_SLOT)
    inside = (SlotSpec(_SCHEDULER_SLOT, "run", _both(elect=False, binder=True)),)
    batch = (SlotSpec(_SCHEDULER_SLOT, "batch", _batch()),)
    batch_binder = (SlotSpec(_SCHEDULER_SLOT, "batch", _batch(requests=True)), _BINDER_SLOT)
    run_pair, pair = _pair("run", _both(elect=True, binder=False)), _pair("scheduler", _scheduler(elect=True))
    leased = {**_DIRECT, **_LEASES}
    return [
        Configuration("pods", server, one, _pod_pools, _DIRECT),
        Configuration("pods-binder", server, with_binder, _binder_pools, _REQUESTS),
        Configuration("run-binder", server, inside, _shared_pools, {**_REQUESTS, **_BATCH_TARGETS}),
        Configuration("batch", server, batch, _batch_pools, {**_DIRECT, **_BATCH_TARGETS}),
        Configuration("batch-binder", server, batch_binder, _batch_pools, {**_REQUESTS, **_BATCH_TARGETS}),
        Configuration("run-pair", server, run_pair, _mixed_pools, {**leased, **_BATCH_TARGETS}, has_leases=True),
        Configuration("pods-pair", server, pair, _pair_pools, leased, has_leases=True),
    ]


EVERY = {each.full_name: each for server in ("real", "embedded") for each in _all(server)}
DEFAULT = (
    "pods@real",
    "pods-binder@real",
    "run-binder@embedded",
    "batch@embedded",
    "batch-binder@real",
    "run-pair@real",
    "pods-pair@real",
)
"""What `--configuration all` runs."""


def named(names: tuple[str, ...]) -> list[Configuration]:
    """By full names; "all" for the default campaign, "every" for all of them on both servers."""
    chosen: list[str] = []
    for each in names:
        chosen += list(DEFAULT) if each == "all" else list(EVERY) if each == "every" else [each]
    return [EVERY[each] for each in dict.fromkeys(chosen)]
