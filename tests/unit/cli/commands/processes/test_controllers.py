"""`bayplan controllers` before it runs: help, flags, and refused arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.cli.flags import kube_controller_manager_flags
from bayplan.cli.flags.kube_controller_manager_flags import expand_controller_names
from bayplan.controllers import CONTROLLER_NAMES, select_controllers
from support.harness.in_process_commands import CommandRunner

PAGE = Path(__file__).resolve().parents[5] / "docs" / "controllers.md"
KUBERNETES = [name for name in CONTROLLER_NAMES if not name.startswith("volcano-")]
PVC = "persistentvolumeclaim-protection-controller"

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
"""Flags of Volcano's chart for its controller manager, and further ones."""


def test_the_flags_of_volcanos_chart_are_accepted(run: CommandRunner) -> None:
    result = run("controllers", *CHART, "--kubeconfig", "/nowhere")
    assert (result.code, "/nowhere" in result.text) == (1, True), result.text
    assert "--worker-threads has no effect in Bayplan" in result.text
    assert "feature gate CSIStorage has no effect here" in result.text


KUBEADM = [
    "--allocate-node-cidrs=true",
    "--authentication-kubeconfig=/etc/kubernetes/controller-manager.conf",
    "--authorization-kubeconfig=/etc/kubernetes/controller-manager.conf",
    "--bind-address=127.0.0.1",
    "--client-ca-file=/etc/kubernetes/pki/ca.crt",
    "--cluster-cidr=10.244.0.0/16",
    "--cluster-name=kubernetes",
    "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt",
    "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
    "--controllers=*,bootstrapsigner,tokencleaner",
    "--kubeconfig=/nowhere",
    "--leader-elect=true",
    "--requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt",
    "--root-ca-file=/etc/kubernetes/pki/ca.crt",
    "--service-account-private-key-file=/etc/kubernetes/pki/sa.key",
    "--service-cluster-ip-range=10.96.0.0/12",
    "--use-service-account-credentials=true",
    "--concurrent-deployment-syncs=5",
    "--concurrent-gc-syncs=20",
    "--node-monitor-grace-period=40s",
    "--node-monitor-period=5s",
    "--v=2",
]
"""Flags of kubeadm's static pod, and further ones."""


def test_the_flags_of_kubeadms_manifest_are_accepted(run: CommandRunner) -> None:
    result = run("controllers", *KUBEADM)
    assert (result.code, "/nowhere" in result.text) == (1, True), result.text
    assert "unknown" not in result.text
    for flag in ("allocate-node-cidrs", "bind-address", "concurrent-gc-syncs", "node-monitor-grace-period"):
        assert f"--{flag} has no effect in Bayplan" in result.text
    assert "Bayplan has no bootstrapsigner; it is ignored" in result.text


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        pytest.param("deployment,replicaset", ["deployment-controller", "replicaset-controller"], id="short"),
        pytest.param("podgc,pvc-protection", [PVC, "pod-garbage-collector-controller"], id="old"),
        pytest.param("deployment,job", ["deployment-controller", "job-controller"], id="job of kubernetes"),
        pytest.param("job", ["volcano-job-controller"], id="job of volcano"),
        pytest.param("queue,job", ["volcano-job-controller", "volcano-queue-controller"], id="both of volcano"),
        pytest.param("*,bootstrapsigner,-volcano", KUBERNETES, id="all of kubernetes"),
        pytest.param(
            "*,-nodelifecycle,-volcano", [each for each in KUBERNETES if "lifecycle" not in each], id="but one"
        ),
        pytest.param("horizontalpodautoscaling", [], id="none of ours"),
    ],
)
def test_short_names_are_upstreams(patterns: str, expected: list[str]) -> None:
    assert select_controllers(expand_controller_names(patterns.split(","))) == expected


def test_every_short_name_is_a_controller_or_unsupported() -> None:
    assert set(kube_controller_manager_flags._LEGACY_NAMES.values()) <= set(CONTROLLER_NAMES)
    assert kube_controller_manager_flags._UNSUPPORTED_CONTROLLERS.isdisjoint(
        {*CONTROLLER_NAMES, *kube_controller_manager_flags._LEGACY_NAMES}
    )


def test_the_help_has_flags_and_examples(run: CommandRunner) -> None:
    result = run("controllers", "--help")
    assert result.code == 0
    for part in ("--leader-elect", "--controllers='*,-job-controller", "--default-storage-class"):
        assert part in result.text


def test_the_names_are_listed_and_documented(run: CommandRunner) -> None:
    result = run("controllers", "--list")
    assert (result.code, result.text.split()) == (0, list(CONTROLLER_NAMES))
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in CONTROLLER_NAMES if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        pytest.param(
            ["--controllers", "jobs"],
            2,
            "'jobs' is no controller; the controllers are clusterrole-aggregation-controller",
            id="no name",
        ),
        pytest.param(["--kubeconfig", "/nowhere"], 1, "/nowhere", id="no such kubeconfig"),
        pytest.param(["--scheduler-name", ""], 2, "--scheduler-name must not be empty", id="a scheduler with no name"),
        pytest.param(["--feature-gates", "Bogus=true"], 2, "unrecognized feature gate: Bogus", id="no gate"),
        pytest.param(
            ["--concurrent-deployment-sync=5"],
            2,
            "unknown flag: --concurrent-deployment-sync; did you mean --concurrent-deployment-syncs?",
            id="an unknown flag",
        ),
        pytest.param(["--zzz"], 2, "unknown flag: --zzz; leave it out", id="an unknown flag without a similar one"),
        pytest.param(["--kube-api-qps", "many"], 2, "--kube-api-qps", id="no number"),
    ],
)
def test_a_wrong_call_is_one_sentence(run: CommandRunner, arguments: list[str], code: int, expected: str) -> None:
    result = run("controllers", *arguments)
    assert (result.code, "Traceback" in result.text) == (code, False)
    assert expected in result.text
