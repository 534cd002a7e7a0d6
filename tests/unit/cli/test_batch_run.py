"""`bayplan batch` before it runs: whose flags it takes, and what it says of gates."""

from __future__ import annotations

import pytest

from bayplan.batch.live.options import BatchOptions
from bayplan.cli.batch_flags import BATCH_FLAGS
from bayplan.cli.batch_run import batch_settings
from bayplan.config.own_settings import OwnSettings
from bayplan.config.volcano_features import go_volcano_gates
from command_runs import Run

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
"""What Volcano's chart gives its scheduler."""


def test_the_flags_of_volcanos_chart_are_taken(run: Run) -> None:
    told = run("batch", *CHART, "--kubeconfig", "/nowhere")
    assert (told.code, "/nowhere" in told.text) == (1, True), told.text
    assert "feature gate CSIStorage has no effect here" in told.text
    assert "feature gate SchedulingGatesQueueAdmission" not in told.text


def test_a_gate_that_nobody_knows_is_refused(run: Run) -> None:
    told = run("batch", "--feature-gates=SchedulingGatesQueueAdmission=true,Bogus=true")
    assert (told.code, "unrecognized feature gate: Bogus" in told.text) == (1, True)


@pytest.mark.parametrize("text", ["", "SchedulingGatesQueueAdmission=true"])
def test_the_gate_of_queues_is_off_unless_it_is_turned_on(text: str) -> None:
    flags = {**{flag.name: flag.default for flag in BATCH_FLAGS}, "feature-gates": go_volcano_gates(text)}
    options: BatchOptions = batch_settings(flags, (), trust_writable=False, own=OwnSettings()).options
    assert options.queues_admit is bool(text)
