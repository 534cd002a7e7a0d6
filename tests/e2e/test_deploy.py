"""`deploy/` on a real API server: every field accepted, the chart equal to the manifests, the flags accepted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan.app import configured, known_plugins
from bayplan.config.bayplan_settings import load_settings
from bayplan.config.reservation_settings import ReservationSettings
from cluster.build import program
from cluster.run import Cluster
from support.harness.deadlines import DEADLINE_S

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "helm" / "bayplan"
BATCH_CHART = DEPLOY / "helm" / "bayplan-batch"

Tree = dict[str, Any]

MONITORS: Tree = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "ServiceMonitor", "plural": "servicemonitors", "singular": "servicemonitor"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture(scope="module")
def prepared(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with the namespaces, and with the CRD of the Prometheus operator."""
    cluster.apply(MONITORS)
    cluster.kubectl("wait", "--for=condition=Established", "crd/servicemonitors.monitoring.coreos.com")
    cluster.kubectl("create", "namespace", "bayplan-system")
    for name in ("volcano-system", "kai-resource-reservation"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield cluster
    cluster.kubectl("delete", "namespace", "bayplan-system", "--wait=false")


def kustomized(cluster: Cluster, overlay: str) -> list[Tree]:
    return list(yaml.safe_load_all(cluster.kubectl("kustomize", str(DEPLOY / "kustomize" / overlay))))


def helm(chart: Path, name: str, namespace: str, *values: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("helm"), chart, name, namespace, *values],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def rendered(
    *values: Path, name: str = "bayplan", namespace: str = "bayplan-system", chart: Path = CHART
) -> list[Tree]:
    done = helm(chart, name, namespace, *values)
    assert done.returncode == 0, done.stderr
    return [tree for tree in yaml.safe_load_all(done.stdout) if tree]


def comparable(trees: list[Tree]) -> dict[tuple[str, str, str], Tree]:
    """The objects by kind and name; the configuration is parsed, so that its formatting does not matter."""
    found = {}
    for tree in trees:
        meta = tree["metadata"]
        if tree["kind"] == "ConfigMap" and "config.yaml" in tree["data"]:
            tree["data"]["config.yaml"] = yaml.safe_load(tree["data"]["config.yaml"])
        if tree["kind"] == "Deployment":
            # helm's checksum annotation, which restarts pods
            tree["spec"]["template"]["metadata"].pop("annotations", None)
        found[tree["kind"], meta.get("namespace", ""), meta["name"]] = tree
    assert len(found) == len(trees)
    return found


@pytest.mark.parametrize(
    ("overlay", "more"),
    [
        ("base", 0),
        ("monitoring", 1),
        ("pod-groups", 2),
        ("shared-gpus", 2),
        ("batch", -2),
        ("batch-controllers", -4),
        ("batch-admission", -5),
        ("binder", 12),
        ("binder-gpu-sharing", 23),
        ("binder-beside-kai", 19),
        ("binder-monitoring", 14),
        ("gpu-admission", -6),
        ("binder-program", -3),
        ("batch-binder", 11),
    ],
)
def test_the_api_server_accepts_every_field_of_the_manifests(prepared: Cluster, overlay: str, more: int) -> None:
    trees = kustomized(prepared, overlay)
    assert len(trees) == 11 + more
    accepted(prepared, trees)


def accepted(cluster: Cluster, trees: list[Tree]) -> None:
    text = yaml.safe_dump_all(trees)
    told = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
    assert told.count("(server dry run)") == len(trees), told


def test_the_chart_gives_the_same_objects(prepared: Cluster, tmp_path: Path) -> None:
    base = comparable(kustomized(prepared, "base"))
    del base["Namespace", "", "bayplan-system"]  # created by helm itself: --create-namespace
    assert comparable(rendered()) == base
    for overlay, value in (
        ("monitoring", "serviceMonitor"),
        ("pod-groups", "podGroups"),
        ("shared-gpus", "sharedGpus"),
        ("binder", "binder"),
    ):
        values = tmp_path / "values.yaml"
        values.write_text(f"{value}: {{enabled: true}}")
        wanted = comparable(kustomized(prepared, overlay))
        del wanted["Namespace", "", "bayplan-system"]
        assert comparable(rendered(values)) == wanted, overlay


SHARED: Tree = {
    "binder": {"enabled": True, "gpuSharing": True},
    "settings": {"resourceReservation": {"image": ReservationSettings().image}},
}


@pytest.mark.parametrize(
    ("overlay", "chosen"),
    [
        ("binder-gpu-sharing", SHARED),
        ("binder-beside-kai", {**SHARED, "binder": {**SHARED["binder"], "reservations": {"create": False}}}),
        ("binder-monitoring", {"binder": {"enabled": True}, "serviceMonitor": {"enabled": True}}),
    ],
)
def test_the_chart_gives_the_binder_the_same_objects_as_the_overlay(
    prepared: Cluster, tmp_path: Path, overlay: str, chosen: Tree
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(chosen))
    wanted = comparable(kustomized(prepared, overlay))
    del wanted["Namespace", "", "bayplan-system"]
    assert comparable(rendered(values)) == wanted
    made = any("kai-resource-reservation" in key for key in wanted)
    assert made is (overlay == "binder-gpu-sharing"), "where KAI-Scheduler is they are its own"


def test_the_charts_settings_are_read_by_scheduler_and_binder_and_name_what_reservation_pods_need(
    prepared: Cluster, tmp_path: Path
) -> None:
    values, ns = tmp_path / "values.yaml", "bayplan-system"
    holders = {"namespace": "gpu-holders", "serviceAccountName": "holder", "runtimeClassName": "nvidia"}
    chosen = {
        "binder": {"enabled": True, "gpuSharing": True, "plugins": {"mine.py": "class Mine: ...\n"}},
        "settings": {"bindAttempts": 5, "resourceReservation": holders},
        "imagePullSecrets": [{"name": "mirror"}],
    }
    values.write_text(yaml.safe_dump(chosen))
    trees = rendered(values, name="second")
    prepared.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": holders["namespace"]}})
    accepted(prepared, trees)
    found = comparable(trees)
    read = load_settings(found["ConfigMap", ns, "second"]["data"]["settings.yaml"], "settings.yaml")
    assert (read.bind_attempts, read.resource_reservation.runtime_class_name) == (5, "nvidia")
    for name in ("second", "second-binder"):
        spec = found["Deployment", ns, name]["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert "--settings=/etc/bayplan/settings.yaml" in container["args"]
        mounted = {each["name"] for each in container["volumeMounts"] if each["mountPath"] == "/etc/bayplan"}
        assert [each["configMap"]["name"] for each in spec["volumes"] if each["name"] in mounted] == ["second"]
    namespace, account = read.resource_reservation.namespace, read.resource_reservation.service_account_name
    assert ("Namespace", "", namespace) in found
    assert found["ServiceAccount", namespace, account]["imagePullSecrets"] == [{"name": "mirror"}]
    binding = found["RoleBinding", namespace, "second-reservation"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]


def test_settings_as_a_text_are_refused(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("settings: |\n  bindAttempts: 5\n")
    done = helm(CHART, "second", "bayplan-system", values)
    assert done.returncode != 0
    assert "settings: give the BayplanConfiguration as keys, not as a text" in done.stderr


def test_the_charts_webhooks_are_about_the_schedulers_that_share_gpus(prepared: Cluster, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    by_binder = {"multiPoint": {"enabled": [{"name": "BindRequestBinder"}]}}
    sharing = {"multiPoint": {"enabled": [{"name": "BindRequestBinder"}, {"name": "GpuSharing"}]}}
    profiles = [{"schedulerName": "mine"}, {"schedulerName": "not", "plugins": by_binder}, {"plugins": sharing}]
    binder = {"enabled": True, "gpuSharing": True}
    values.write_text(yaml.safe_dump({"config": {"profiles": profiles}, "binder": binder}))
    trees = rendered(values, name="second")
    accepted(prepared, trees)
    found, ns = comparable(trees), "bayplan-system"
    (container,) = found["Deployment", ns, "second-gpu-admission"]["spec"]["template"]["spec"]["containers"]
    named = [flag.partition("=")[2] for flag in container["args"] if flag.startswith("--gpu-scheduler-name")]
    assert named == ["mine", "default-scheduler"]
    assert "--webhook-service=bayplan-system/second-gpu-admission" in container["args"]
    assert ("Service", ns, "second-gpu-admission") in found
    values.write_text(yaml.safe_dump({"config": {"profiles": profiles[1:2]}, "binder": binder}))
    done = helm(CHART, "second", ns, values)
    assert done.returncode != 0
    assert "binder.gpuSharing: every profile of config.profiles has plugins of its own" in done.stderr


def test_the_charts_binder_does_what_its_values_say(prepared: Cluster, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    own = {"multiPoint": {"enabled": [{"name": "GpuSharing"}, {"name": "BindRequestBinder"}]}}
    chosen = {
        "config": {"profiles": [{"schedulerName": "mine"}, {"schedulerName": "theirs", "plugins": own}]},
        "binder": {
            "enabled": True,
            "replicas": 3,
            "plugins": {"mine.py": 'class Mine:\n    """A {{ brace }}."""\n'},
            "extraArgs": ["--all"],
        },
    }
    values.write_text(yaml.safe_dump(chosen))
    trees = rendered(values, name="second")
    accepted(prepared, trees)
    found, ns = comparable(trees), "bayplan-system"
    spec = found["Deployment", ns, "second-binder"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["replicas"] == 3
    assert container["args"][-2:] == ["--plugins-dir=/etc/bayplan-plugins", "--all"]
    assert found["ConfigMap", ns, "second-binder-plugins"]["data"] == chosen["binder"]["plugins"]
    mine, theirs = found["ConfigMap", ns, "second"]["data"]["config.yaml"]["profiles"]
    assert [each["name"] for each in mine["plugins"]["multiPoint"]["enabled"]] == ["BindRequestBinder"]
    assert theirs["plugins"] == own


def test_a_profile_that_binds_itself_is_refused_beside_a_binder(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    profile = {"schedulerName": "mine", "plugins": {"score": {"disabled": [{"name": "*"}]}}}
    values.write_text(yaml.safe_dump({"config": {"profiles": [profile]}, "binder": {"enabled": True}}))
    done = helm(CHART, "second", "bayplan-system", values)
    assert done.returncode != 0
    assert "config.profiles: mine has plugins of its own: with binder.enabled it must enable" in done.stderr


def test_the_batch_engines_chart_creates_requests_if_enabled(prepared: Cluster, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("bindRequests: {enabled: true}\n")
    wanted = comparable(kustomized(prepared, "batch-binder"))
    for each in comparable(kustomized(prepared, "binder-program")):
        del wanted[each]  # from the other chart
    del wanted["Namespace", "", "volcano-system"], wanted["Namespace", "", "bayplan-system"]
    ours: dict[str, Any] = {"name": "bayplan-batch", "namespace": "volcano-system", "chart": BATCH_CHART}
    assert comparable(rendered(values, **ours)) == wanted


def test_the_batch_engines_chart_gives_the_same_objects(prepared: Cluster, tmp_path: Path) -> None:
    wanted = comparable(kustomized(prepared, "batch"))
    del wanted["Namespace", "", "volcano-system"]
    ours: dict[str, Any] = {"name": "bayplan-batch", "namespace": "volcano-system", "chart": BATCH_CHART}
    assert comparable(rendered(**ours)) == wanted
    values = tmp_path / "values.yaml"
    values.write_text("controllers: {enabled: true}\nadmission: {enabled: true}\n")
    for overlay in ("batch-controllers", "batch-admission"):
        wanted |= comparable(kustomized(prepared, overlay))
    del wanted["Namespace", "", "volcano-system"]
    assert comparable(rendered(values, **ours)) == wanted
    chosen = {
        "schedulerConf": 'actions: "allocate"\n',
        "plugins": {"mine.py": 'class Mine:\n    """A {{ brace }}."""\n'},
        "extraArgs": ["--schedule-period=500ms"],
    }
    values.write_text(yaml.safe_dump(chosen))
    trees = rendered(values, **{**ours, "name": "second"})
    accepted(prepared, trees)
    found = comparable(trees)
    (container,) = found["Deployment", "volcano-system", "second"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == ["--plugins-dir=/etc/bayplan-plugins", "--schedule-period=500ms"]
    assert found["ConfigMap", "volcano-system", "second"]["data"]["volcano-scheduler.conf"] == chosen["schedulerConf"]
    assert found["ConfigMap", "volcano-system", "second-plugins"]["data"] == chosen["plugins"]


def test_the_chart_does_what_its_values_say(prepared: Cluster, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    chosen = {
        "replicas": 3,
        "image": {"repository": "registry.example/bayplan", "tag": "next"},
        "imagePullSecrets": [{"name": "pull"}],
        "config": {"profiles": [{"schedulerName": "mine"}], "parallelism": 4},
        "plugins": {"mine.py": 'class Mine:\n    """Mine: a {{ brace }}."""\n\n    name = "Mine"\n'},
        "extraArgs": ["-v=4"],
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "tolerations": [{"operator": "Exists"}],
    }
    values.write_text(yaml.safe_dump(chosen))
    trees = rendered(values, name="second")
    accepted(prepared, trees)
    found = comparable(trees)
    ns = "bayplan-system"
    spec = found["Deployment", ns, "second"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["replicas"], container["image"]) == (3, "registry.example/bayplan:next")
    assert container["args"][-2:] == ["--plugins-dir=/etc/bayplan-plugins", "-v=4"]
    assert found["ConfigMap", ns, "second-plugins"]["data"] == chosen["plugins"]
    config = found["ConfigMap", ns, "second"]["data"]["config.yaml"]
    assert (config["profiles"], config["parallelism"]) == ([{"schedulerName": "mine"}], 4)
    assert config["leaderElection"]["resourceName"] == "second"
    assert found["Role", ns, "second"]["rules"][1]["resourceNames"] == ["second"]
    assert {name for _, _, name in found} <= {"second", "second-plugins", "second-authentication-reader"}


PASTED: Tree = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": True, "resourceName": "theirs", "resourceNamespace": "kube-system"},
    "parallelism": 4,
    "profiles": [{"schedulerName": "mine"}],
}
OWN_ELECTION: Tree = {"leaderElect": True, "resourceName": "second", "resourceNamespace": "bayplan-system"}


@pytest.mark.parametrize(
    ("given", "election"),
    [
        pytest.param(PASTED, PASTED["leaderElection"], id="whole"),
        pytest.param(
            {"leaderElection": {"leaderElect": False}}, {**OWN_ELECTION, "leaderElect": False}, id="no-election"
        ),
        pytest.param({"leaderElection": {"leaseDuration": "30s"}}, {**OWN_ELECTION, "leaseDuration": "30s"}, id="more"),
        pytest.param({"leaderElection": None, "kind": None}, OWN_ELECTION, id="empty"),
    ],
)
def test_a_configuration_that_is_pasted_into_the_chart_wins(
    prepared: Cluster, tmp_path: Path, given: Tree, election: Tree
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"config": given}))
    trees = rendered(values, name="second")
    accepted(prepared, trees)
    (text,) = (tree["data"]["config.yaml"] for tree in trees if tree["kind"] == "ConfigMap")
    defaults = {"profiles": [{"schedulerName": "bayplan"}]}
    named = {"apiVersion": PASTED["apiVersion"], "kind": PASTED["kind"]}
    assert yaml.safe_load(text) == {**defaults, **given, **named, "leaderElection": election}
    configured(text, known_plugins())  # which refuses duplicate keys, unlike YAML's reader
    found = comparable(trees)
    role = found["Role", election["resourceNamespace"], "second"]
    assert role["rules"][1]["resourceNames"] == [election["resourceName"]]
    assert ("RoleBinding", election["resourceNamespace"], "second") in found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(
            {**PASTED, "apiVersion": "kubescheduler.config.k8s.io/v1beta3"},
            "config.apiVersion is kubescheduler.config.k8s.io/v1beta3: Bayplan reads kubescheduler.config.k8s.io/v1 ",
            id="version",
        ),
        pytest.param(
            {**PASTED, "kind": "BayplanConfiguration"},
            "config.kind is BayplanConfiguration: Bayplan reads KubeSchedulerConfiguration only",
            id="kind",
        ),
        pytest.param(yaml.safe_dump(PASTED), "give the KubeSchedulerConfiguration as keys, not as a text", id="text"),
    ],
)
def test_a_configuration_of_another_kind_is_refused_before_it_is_installed(
    tmp_path: Path, given: object, words: str
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"config": given}))
    done = helm(CHART, "second", "bayplan-system", values)
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize("chart", [False, True], ids=["manifests", "chart"])
def test_the_flags_and_the_configuration_are_accepted(prepared: Cluster, tmp_path: Path, chart: bool) -> None:
    found = comparable(rendered() if chart else kustomized(prepared, "base"))
    given = found["ConfigMap", "bayplan-system", "bayplan"]["data"]["config.yaml"]
    (container,) = found["Deployment", "bayplan-system", "bayplan"]["spec"]["template"]["spec"]["containers"]
    path, written = tmp_path / "config.yaml", tmp_path / "written.yaml"
    path.write_text(yaml.safe_dump(given))
    args = [each.replace("/etc/bayplan/config.yaml", str(path)) for each in container["args"]]
    done = subprocess.run(
        [sys.executable, "-m", "bayplan", *args, f"--write-config-to={written}"],
        env={**os.environ, "KUBECONFIG": str(prepared.kubeconfig())},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    in_force = yaml.safe_load(written.read_text())
    assert in_force["leaderElection"]["resourceName"] == "bayplan"
    assert [each["schedulerName"] for each in in_force["profiles"]] == ["bayplan"]
