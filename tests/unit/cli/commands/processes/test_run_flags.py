"""`bayplan run` accepts the flags of a kube-scheduler manifest and of a vc-scheduler manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan.app.batch import BatchSettings
from bayplan.app.insecure_serving import InsecureServingOptions
from bayplan.cli.commands.processes import run as cli_run
from bayplan.cli.commands.processes.batch_run import command as batch_engine
from bayplan.cli.commands.processes.run import RUN_FLAGS
from bayplan.cli.commands.processes.run import command as both_engines
from bayplan.cli.flags.kube_scheduler_flags import KUBE_SCHEDULER_FLAGS
from bayplan.cli.flags.vc_scheduler_flags import VC_SCHEDULER_FLAGS
from bayplan.config.model import LeaderElection
from support.harness.in_process_commands import UNREACHABLE_KUBECONFIG

MANIFEST_OF_VC_SCHEDULER = (
    "--logtostderr",
    "--enable-healthz=true",
    "--enable-metrics=true",
    "--enable-pprof=true",
    "--leader-elect=true",
    "--schedule-period=2s",
    "--node-worker-threads=20",
    "--percentage-nodes-to-find=0",
    "--feature-gates=SchedulingGatesQueueAdmission=true",
    "--ignored-provisioners=example.com/host",
    "--lock-object-namespace=gangs",
    "--priority-class=true",
    "--csi-storage",
    "--resync-period=0s",
    "--cache-dumper=true",
    "--cache-dump-dir=/tmp",
    "--kube-api-qps=2000",
    "--kube-api-burst=2000",
    "--ca-cert-file=ca.crt",
    "-v=3",
)
MANIFEST_OF_KUBE_SCHEDULER = (
    "--bind-address=127.0.0.1",
    "--leader-elect-resource-namespace=control",
    "--authentication-skip-lookup",
    "--profiling=false",
)


class RecordedRun:
    """Records the arguments of the process instead of running it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._kubeconfig = folder / "config"
        self._kubeconfig.write_text(UNREACHABLE_KUBECONFIG)
        self.told: dict[str, Any] = {}
        self.dumps: Any = None
        monkeypatch.setattr(cli_run, "combined_process", self._process)
        monkeypatch.setattr(cli_run, "run_process", self._run)

    def run(self, *arguments: str) -> RecordedRun:
        with pytest.raises(SystemExit) as ended:
            both_engines.main(args=["--kubeconfig", str(self._kubeconfig), *arguments], standalone_mode=False)
        assert ended.value.code == 0
        return self

    @property
    def batch(self) -> BatchSettings:
        found = self.told["batch"]
        assert isinstance(found, BatchSettings)
        return found

    @property
    def leases(self) -> list[tuple[str, str]]:
        found: list[LeaderElection] = [self.told["configuration"].leader_election, self.batch.lease]
        return [(each.resource_namespace, each.resource_name) for each in found]

    def _process(self, configuration: Any, _registry: Any, batch: BatchSettings, _target: Any, **more: Any) -> Any:
        self.told = {"configuration": configuration, "batch": batch, **more}
        return None

    async def _run(self, _process: Any, dumps: Any = None) -> int:
        self.dumps = dumps
        return 0


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RecordedRun:
    monkeypatch.setattr(cli_run, "freeze_memory", lambda: None)
    return RecordedRun(monkeypatch, tmp_path)


def test_the_flags_are_those_of_both_schedulers() -> None:
    names = [flag.name for flag in RUN_FLAGS]
    assert {flag.name for flag in (*KUBE_SCHEDULER_FLAGS, *VC_SCHEDULER_FLAGS)} == set(names)
    assert len(names) == len(set(names))


def test_flags_without_effect_have_the_same_help_as_in_batch_run() -> None:
    told = {flag.name: (flag.section, flag.help) for flag in RUN_FLAGS}
    ignored = {"resync-period", "priority-class", "csi-storage", "node-worker-threads", "ca-cert-file"}
    batch_flags = {flag.name: (flag.section, flag.help) for flag in batch_engine.flags}
    assert {told[name][0] for name in ignored} == {"Accepted, without effect in Bayplan"}
    assert all(told[name] == batch_flags[name] for name in (*ignored, "logtostderr"))


def test_the_flags_of_both_manifests_can_be_combined(recorded: RecordedRun) -> None:
    found = recorded.run(*MANIFEST_OF_VC_SCHEDULER, *MANIFEST_OF_KUBE_SCHEDULER)
    assert found.leases == [("control", "kube-scheduler"), ("gangs", "volcano")]
    assert found.told["openly"] == InsecureServingOptions(health=True, metrics=True, profiling=True)
    assert found.told["configuration"].client_connection.qps == 2000
    assert found.batch.options.schedule_period.seconds == 2
    assert found.batch.options.ignored_provisioners == ("example.com/host",)


@pytest.mark.parametrize(
    ("arguments", "leases"),
    [
        pytest.param([], [("kube-system", "kube-scheduler"), ("volcano-system", "volcano")], id="upstream's"),
        pytest.param(
            ["--lock-object-namespace=gangs"],
            [("kube-system", "kube-scheduler"), ("gangs", "volcano")],
            id="volcano elsewhere",
        ),
        pytest.param(
            ["--leader-elect-resource-namespace=control", "--leader-elect-resource-name=mine"],
            [("control", "mine"), ("volcano-system", "volcano")],
            id="kube-scheduler elsewhere",
        ),
    ],
)
def test_each_lease_has_a_namespace_of_its_own(
    recorded: RecordedRun, arguments: list[str], leases: list[tuple[str, str]]
) -> None:
    assert recorded.run(*arguments).leases == leases


@pytest.mark.parametrize(
    ("gates", "told"),
    [
        pytest.param("SchedulingGatesQueueAdmission=true,GenericWorkload=true", [], id="one of each scheduler"),
        pytest.param("CSIStorage=true", ["feature gate CSIStorage has no effect here"], id="without effect"),
        pytest.param("Nope=true", ["feature gate Nope is unknown to Bayplan and has no effect"], id="of neither"),
    ],
)
def test_feature_gates_of_both_schedulers_are_known(
    recorded: RecordedRun, capsys: pytest.CaptureFixture[str], gates: str, told: list[str]
) -> None:
    recorded.run(f"--feature-gates={gates}", "--leader-elect=false")
    stderr = capsys.readouterr().err
    assert stderr.count("feature gate") == len(told)
    assert all(each in stderr for each in told)


WARNED = "Volcano's is volcano in volcano-system, unless --lock-object-namespace sets its namespace"


@pytest.mark.parametrize(
    ("arguments", "warned"),
    [
        pytest.param(["--leader-elect-resource-namespace=volcano"], True, id="as Volcano's chart has it"),
        pytest.param(["--leader-elect-resource-namespace=kube-system"], False, id="as kube-scheduler has it"),
        pytest.param(["--leader-elect-resource-namespace=a", "--lock-object-namespace=b"], False, id="both are set"),
        pytest.param(["--leader-elect-resource-namespace=volcano", "--leader-elect=false"], False, id="no lease"),
    ],
)
def test_moving_only_kube_schedulers_lease_is_warned_about(
    recorded: RecordedRun, capsys: pytest.CaptureFixture[str], arguments: list[str], warned: bool
) -> None:
    recorded.run(*arguments)
    assert (WARNED in capsys.readouterr().err) is warned


def test_endpoints_without_tls_follow_the_flags(recorded: RecordedRun) -> None:
    assert recorded.run().told["openly"] == InsecureServingOptions()
    addresses = ("--healthz-address=127.0.0.1:1", "--listen-address=127.0.0.1:2")
    found = recorded.run("--enable-healthz", "--enable-pprof", *addresses).told["openly"]
    assert found == InsecureServingOptions(
        health=True, health_address="127.0.0.1:1", profiling=True, listen_address="127.0.0.1:2"
    )


def test_the_cache_dumper_can_be_disabled(recorded: RecordedRun) -> None:
    assert recorded.run().dumps is not None
    assert recorded.run("--cache-dumper=false").dumps is None
