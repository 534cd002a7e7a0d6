"""`bayplan controllers` before it runs: what it teaches, and what it refuses in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.controllers import CONTROLLER_NAMES
from command_runs import Run

PAGE = Path(__file__).resolve().parents[3] / "docs" / "controllers.md"


CHART = [
    "--logtostderr",
    "--enable-healthz=true",
    "--enable-metrics=true",
    "--leader-elect=true",
    "--scheduler-name=volcano",
    "--leader-elect-resource-namespace=volcano-system",
    "--kube-api-qps=50",
    "--kube-api-burst=100",
    "--worker-threads=3",
    "--worker-threads-for-gc=1",
    "--worker-threads-for-podgroup=5",
    "--sharding-configmap=volcano-sharding-configmap",
    "--sharding-configmap-namespace=volcano-system",
    "--inherit-owner-annotations=false",
    "--feature-gates=CSIStorage=true",
    "-v=4",
    "2>&1",
]
"""What Volcano's chart gives its controller manager, and what else that takes."""


def test_the_flags_of_volcanos_chart_are_taken(run: Run) -> None:
    told = run("controllers", *CHART, "--kubeconfig", "/nowhere")
    assert (told.code, "/nowhere" in told.text) == (1, True), told.text
    assert "--worker-threads has no effect here" in told.text
    assert "feature gate CSIStorage has no effect here" in told.text


def test_the_help_teaches(run: Run) -> None:
    told = run("controllers", "--help")
    assert told.code == 0
    for taught in ("--leader-elect", "--controllers='*,-job-controller", "--default-storage-class"):
        assert taught in told.text


def test_the_names_are_listed_and_documented(run: Run) -> None:
    told = run("controllers", "--list")
    assert (told.code, told.text.split()) == (0, list(CONTROLLER_NAMES))
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in CONTROLLER_NAMES if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(
            ["--controllers", "jobs"], 2, "'jobs' is no controller; there are cronjob-controller", id="no name"
        ),
        pytest.param(["--kubeconfig", "/nowhere"], 1, "/nowhere", id="no such kubeconfig"),
        pytest.param(["--scheduler-name", ""], 2, "--scheduler-name must not be empty", id="a scheduler with no name"),
        pytest.param(["--feature-gates", "Bogus=true"], 1, "unrecognized feature gate: Bogus", id="no gate"),
        pytest.param(["--kube-api-qps", "many"], 2, "--kube-api-qps", id="no number"),
    ],
)
def test_a_wrong_call_is_one_sentence(run: Run, arguments: list[str], code: int, said: str) -> None:
    told = run("controllers", *arguments)
    assert (told.code, "Traceback" in told.text) == (code, False)
    assert said in told.text
