"""`bayplan batch` before it runs: flags and feature gates."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from bayplan.app.batch import BatchSettings
from bayplan.batch.live.options import BatchOptions
from bayplan.cli.commands.processes.batch_run import _validate_engine, batch_settings
from bayplan.cli.flags.vc_scheduler_flags import VC_SCHEDULER_FLAGS
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.volcano_feature_gates import parse_volcano_gates
from bayplan.errors import ConfigError
from support.harness.in_process_commands import CommandRunner

GOOD = "actions: allocate\ntiers: [{plugins: [{name: gang}]}]\n"
CHART = [
    "--logtostderr",
    "--scheduler-name=volcano",
    "--enable-healthz=true",
    "--enable-metrics=true",
    "--enable-pprof=true",
    "--leader-elect=true",
    "--leader-elect-resource-namespace=volcano-system",
    "--kube-api-qps=2000",
    "--kube-api-burst=2000",
    "--schedule-period=1s",
    "--node-worker-threads=20",
    "--percentage-nodes-to-find=0",
    "--feature-gates=SchedulingGatesQueueAdmission=true,CSIStorage=true",
    "--ignored-provisioners=example.com/mine",
    "--scheduler-sharding-mode=none",
    "-v=3",
    "2>&1",
]
"""Flags of Volcano's chart for its scheduler."""


def test_the_flags_of_volcanos_chart_are_accepted(run: CommandRunner) -> None:
    result = run("batch", *CHART, "--kubeconfig", "/nowhere")
    assert (result.code, "/nowhere" in result.text) == (1, True), result.text
    assert "feature gate CSIStorage has no effect here" in result.text
    assert "feature gate SchedulingGatesQueueAdmission" not in result.text


def test_an_unknown_feature_gate_is_refused(run: CommandRunner) -> None:
    result = run("batch", "--feature-gates=SchedulingGatesQueueAdmission=true,Bogus=true")
    assert (result.code, "unrecognized feature gate: Bogus" in result.text) == (1, True)


@pytest.mark.parametrize("text", ["", "SchedulingGatesQueueAdmission=true"])
def test_queue_admission_is_off_by_default(text: str) -> None:
    flags = {**{flag.name: flag.default for flag in VC_SCHEDULER_FLAGS}, "feature-gates": parse_volcano_gates(text)}
    options: BatchOptions = batch_settings(flags, (), trust_writable=False, own=BayplanSettings()).options
    assert options.queue_admission is bool(text)


@pytest.mark.parametrize(
    ("text", "strict", "refused"),
    [
        pytest.param(GOOD, True, False, id="good"),
        pytest.param("actions: [", True, True, id="broken"),
        pytest.param("actions: [", False, False, id="broken-but-there-is-a-default"),
    ],
)
def test_a_broken_file_without_a_default_is_an_error(
    run: CommandRunner, tmp_path: Path, text: str, strict: bool, refused: bool
) -> None:
    """With a default it continues to the connection, which fails because the kubeconfig is missing."""
    path = tmp_path / "conf"
    path.write_text(text, encoding="utf-8")
    flags = ["--disable-default-scheduler-config"] if strict else []
    ended = run("batch", "--scheduler-conf", path, *flags, "--kubeconfig", "/nowhere")
    assert ended.code == 1
    assert (f"error: {path}: " in ended.err, "/nowhere" in ended.err) == (refused, not refused), ended.text


def test_no_default_and_no_file_is_refused(run: CommandRunner) -> None:
    ended = run("batch", "--disable-default-scheduler-config", "--kubeconfig", "/nowhere")
    assert (ended.code, "give one with --scheduler-conf" in ended.err, "/nowhere" in ended.err) == (1, True, False)


@pytest.mark.parametrize("strict", [False, True])
def test_the_engine_of_the_validation_is_closed(monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    closed = []

    class Engine:
        file_fault = "conf: broken"

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(BatchSettings, "build_engine", lambda *_: Engine())
    with pytest.raises(ConfigError) if strict else nullcontext():
        _validate_engine(BatchSettings(), strict=strict)
    assert len(closed) == 1
