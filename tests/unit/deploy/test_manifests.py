"""The manifests of `deploy/`, as far as files can show; the end-to-end suite compares chart and overlays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import bayplan
from bayplan.admission.webhooks import GPU_WEBHOOKS
from bayplan.app.batch import WATCHED_KINDS
from bayplan.app.binder import binder_lease
from bayplan.app.configuration import batch_configured, configured, known_batch_plugins, known_plugins
from bayplan.app.scheduler import build_engine, gpu_sharing_schedulers
from bayplan.batch.live.options import LOCK_NAMESPACE, BatchOptions
from bayplan.cache import Cache
from bayplan.cli.commands.processes.admission import command as admission_command
from bayplan.cli.commands.processes.binder import command as binder_command
from bayplan.cli.commands.processes.controllers import command as controllers_command
from bayplan.cli.flags.vc_scheduler_flags import VC_SCHEDULER_FLAGS
from bayplan.config.bayplan_settings import load_settings
from bayplan.config.reservation_settings import ReservationSettings
from bayplan.controllers import select_controllers
from bayplan.controllers.volcano import VOLCANO_CONTROLLER_NAMES
from bayplan.objects.kinds import KINDS, Kind

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
BASE = DEPLOY / "kustomize" / "base"
CHART = DEPLOY / "helm" / "bayplan"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
NOT_FOR_PODS = {"ResourceQuota", "PriorityClass"}
"""Read by other components than the pod engine, or only from files."""


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of the base by kind and name."""
    files = sorted(path for path in BASE.glob("*.yaml") if path.name != "kustomization.yaml")
    trees = [tree for path in files for tree in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    return {(tree["kind"], tree["metadata"]["name"]): tree for tree in trees}


def rules(kind: str = "ClusterRole") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = manifests()[kind, "bayplan"]["rules"]
    return found


def pod_spec() -> dict[str, Any]:
    spec: dict[str, Any] = manifests()["Deployment", "bayplan"]["spec"]["template"]["spec"]
    return spec


def configuration() -> str:
    return str(manifests()["ConfigMap", "bayplan"]["data"]["config.yaml"])


def test_every_file_of_the_base_is_used() -> None:
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert sorted([*listed, "kustomization.yaml"]) == sorted(path.name for path in BASE.glob("*.yaml"))


def test_everything_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    (image,) = yaml.safe_load((BASE / "kustomization.yaml").read_text(encoding="utf-8"))["images"]
    assert {chart["version"], chart["appVersion"], image["newTag"]} == {bayplan.__version__}
    assert f"-t bayplan:{bayplan.__version__} " in CONTAINERFILE


def test_the_configuration_is_accepted_and_has_its_own_name_and_lease() -> None:
    registry = known_plugins()
    config = configured(configuration(), registry)
    assert list(build_engine(config, registry, Cache(), seed=0).scheduler_names) == ["bayplan"]
    election = yaml.safe_load(configuration())["leaderElection"]
    assert election == {"leaderElect": True, "resourceName": "bayplan", "resourceNamespace": "bayplan-system"}
    named = [rule["resourceNames"] for rule in rules("Role") if "resourceNames" in rule]
    assert named == [[election["resourceName"]]]
    assert manifests()["Role", "bayplan"]["metadata"]["namespace"] == election["resourceNamespace"]


OVERLAYS = {"PodGroup": "pod-groups/cluster-role.yaml", "BindRequest": "binder/requests-role.yaml"}
"""The folder with the rules for kinds that only optional features read."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "volcano" not in kind.group], ids=lambda kind: kind.name)
def test_the_pod_engine_may_read_its_kinds(kind: Kind) -> None:
    granted = rules()
    if kind.name in OVERLAYS:
        overlay = yaml.safe_load_all((DEPLOY / "kustomize" / OVERLAYS[kind.name]).read_text(encoding="utf-8"))
        granted = [*granted, *next(overlay)["rules"]]
    verbs = {
        verb
        for rule in granted
        if kind.group in rule["apiGroups"] and kind.plural in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {"list", "watch"} <= verbs or kind.name in NOT_FOR_PODS


def test_pods_are_patched_only_where_policies_for_shared_gpus_are_wanted() -> None:
    """The allocated device of a pod is an annotation, which needs the right to patch pods."""
    wanted = {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
    assert not [rule for rule in rules() if "pods" in rule["resources"] and "patch" in rule["verbs"]]
    overlay = DEPLOY / "kustomize" / "shared-gpus"
    role, binding = yaml.safe_load_all((overlay / "cluster-role.yaml").read_text(encoding="utf-8"))
    assert role["rules"] == [wanted]
    assert binding["subjects"] == manifests()["ClusterRoleBinding", "bayplan"]["subjects"]
    listed = yaml.safe_load((overlay / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert listed == ["../base", "cluster-role.yaml"]
    chart = (CHART / "templates" / "shared-gpus.yaml").read_text(encoding="utf-8")
    assert chart.startswith("{{- if .Values.sharedGpus.enabled }}")
    assert yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["sharedGpus"] == {"enabled": False}


def test_no_rule_is_wide() -> None:
    for rule in [*rules(), *rules("Role")]:
        assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
        assert not {"secrets", "configmaps"} & set(rule["resources"])


def test_two_replicas_with_a_disruption_budget_of_one() -> None:
    assert manifests()["Deployment", "bayplan"]["spec"]["replicas"] == 2
    assert manifests()["PodDisruptionBudget", "bayplan"]["spec"]["maxUnavailable"] == 1


def test_the_pod_has_no_more_rights_than_it_needs() -> None:
    (container,) = pod_spec()["containers"]
    assert pod_spec()["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert str(pod_spec()["securityContext"]["runAsUser"]) in re.findall(r"^USER (\d+):", CONTAINERFILE, re.MULTILINE)


def test_the_pod_reads_its_configuration_where_it_is_mounted() -> None:
    (container,) = pod_spec()["containers"]
    (mount,) = container["volumeMounts"]
    assert f"--config={mount['mountPath']}/config.yaml" in container["args"]
    assert {probe["httpGet"]["scheme"] for probe in (container["livenessProbe"], container["readinessProbe"])} == {
        "HTTPS"
    }


def test_the_image_is_built_in_one_stage_and_runs_in_another_without_build_tools() -> None:
    build, final = re.split(r"^FROM .*$", CONTAINERFILE, flags=re.MULTILINE)[1:]
    assert re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE) == ["docker.io/library/python:3.11-slim"] * 2
    assert "--requirement requirements.lock" in build
    assert "pip uninstall --quiet --yes --root-user-action=ignore setuptools wheel pip" in final
    assert "apt-get" not in CONTAINERFILE
    copied = re.findall(r"^COPY (?!--from)(.+)$", CONTAINERFILE, re.MULTILINE)
    for name in (name for line in copied for name in line.split()[:-1]):
        assert (DEPLOY.parent / name).exists(), name


def test_the_chart_explains_its_values() -> None:
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r"[a-zA-Z]", line)]
    assert [line.split(":")[0] for line in (lines[number] for number in keys)] == [
        "replicas",
        "image",
        "imagePullSecrets",
        "config",
        "plugins",
        "settings",
        "extraArgs",
        "resources",
        "priorityClassName",
        "nodeSelector",
        "tolerations",
        "serviceMonitor",
        "podGroups",
        "sharedGpus",
        "binder",
    ]


# the batch engine

BATCH = DEPLOY / "kustomize" / "batch"


def batch_manifests(folder: Path = BATCH) -> dict[str, dict[str, Any]]:
    trees = [
        tree
        for path in sorted(folder.glob("*.yaml"))
        for tree in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if tree
    ]
    return {tree["kind"]: tree for tree in trees}


@pytest.mark.parametrize("name", ["batch", "batch-controllers", "batch-admission", "gpu-admission"])
def test_every_file_of_the_batch_engine_is_used_and_of_this_version(name: str) -> None:
    folder = DEPLOY / "kustomize" / name
    kustomization = batch_manifests(folder)["Kustomization"]
    assert sorted([*kustomization["resources"], "kustomization.yaml"]) == sorted(path.name for path in folder.glob("*"))
    chart = yaml.safe_load((DEPLOY / "helm" / "bayplan-batch" / "Chart.yaml").read_text(encoding="utf-8"))
    versions = {chart["version"], chart["appVersion"], *(image["newTag"] for image in kustomization["images"])}
    assert versions == {bayplan.__version__}


@pytest.mark.parametrize("kind", WATCHED_KINDS, ids=lambda kind: kind.name)
def test_the_batch_engine_may_read_its_kinds(kind: Kind) -> None:
    verbs = {
        verb
        for rule in batch_manifests()["ClusterRole"]["rules"]
        if kind.group in rule["apiGroups"] and kind.plural in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {"list", "watch"} <= verbs


def test_the_batch_engine_has_no_wide_rule_and_its_lease() -> None:
    role, lease = batch_manifests()["ClusterRole"], batch_manifests()["Role"]
    for rule in [*role["rules"], *lease["rules"]]:
        assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
        assert not {"secrets", "configmaps"} & set(rule["resources"])
    named = [name for rule in lease["rules"] for name in rule.get("resourceNames", ())]
    assert (lease["metadata"]["namespace"], named) == (LOCK_NAMESPACE, [BatchOptions().lock_name])


def test_the_batch_engines_configuration_and_flags_are_taken() -> None:
    text = batch_manifests()["ConfigMap"]["data"]["volcano-scheduler.conf"]
    assert {each.name for each in batch_configured(text).plugins} <= set(known_batch_plugins())
    (container,) = batch_manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["batch", "run"]
    known = {flag.name for flag in VC_SCHEDULER_FLAGS} | {"secure-port"}
    assert {each.lstrip("-").partition("=")[0] for each in container["args"][2:]} <= known
    (port,) = [each["containerPort"] for each in container["ports"] if each["name"] == "why"]
    assert f"--secure-port={port}" in container["args"]


# the binder

BINDER_FOLDERS = ("binder", "binder-program", "binder-gpu-sharing", "gpu-admission")


def binder_trees(*folders: str) -> list[dict[str, Any]]:
    """All objects of binder and scheduler together; or those of some folders."""
    files = sorted(path for name in folders or BINDER_FOLDERS for path in (DEPLOY / "kustomize" / name).glob("*"))
    return [tree for path in files for tree in yaml.safe_load_all(path.read_text(encoding="utf-8")) if tree]


def test_the_binders_flags_are_taken_and_its_lease_is_the_one_that_it_may_hold() -> None:
    (deployment,) = [tree for tree in binder_trees("binder-program") if tree["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    verb, *flags = container["args"]
    known = {option for parameter in binder_command.params for option in parameter.opts}
    assert verb == "binder"
    assert {flag.partition("=")[0] for flag in flags} <= known
    (role,) = [tree for tree in binder_trees("binder-program") if tree["kind"] == "Role"]
    (looked_at,) = [tree for tree in binder_trees("binder") if tree["kind"] == "Role"]
    assert looked_at["rules"] == [{**role["rules"][1], "verbs": ["get"]}]  # the scheduler reads the holder
    named = [name for rule in role["rules"] for name in rule.get("resourceNames", ())]
    assert named == [binder_lease(leader_elect=True).resource_name]
    assert f"--leader-elect-resource-namespace={role['metadata']['namespace']}" in flags


def test_the_binder_has_no_wide_rule_and_each_engine_what_is_its_own() -> None:
    granted = {
        tree["metadata"]["name"]: [
            (resource, verb) for rule in tree["rules"] for resource in rule["resources"] for verb in rule["verbs"]
        ]
        for tree in binder_trees()
        if tree["kind"] == "ClusterRole"
    }
    assert all("*" not in pair for pairs in granted.values() for pair in pairs)
    assert ("bindrequests", "create") in granted["bayplan-bind-requests"]
    assert ("bindrequests", "create") not in granted["bayplan-binder"]
    assert ("pods/binding", "create") in granted["bayplan-binder"]


def test_the_webhooks_for_shared_gpus_are_about_the_scheduler_that_gives_them_out() -> None:
    (deployment,) = [tree for tree in binder_trees("gpu-admission") if tree["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    verb, *flags = container["args"]
    taken = admission_command.make_context(verb, flags).params
    (service,) = [tree["metadata"] for tree in binder_trees("gpu-admission") if tree["kind"] == "Service"]
    assert (verb, taken["webhook_service"]) == ("admission", f"{service['namespace']}/{service['name']}")
    assert taken["enabled_admission"] == ",".join(door.path for door in GPU_WEBHOOKS)
    (given,) = [tree["data"] for tree in binder_trees("binder-gpu-sharing") if "config.yaml" in tree.get("data", ())]
    configuration = configured(given["config.yaml"], known_plugins())
    assert gpu_sharing_schedulers(configuration) == list(taken["gpu_scheduler_name"])
    (role,) = [tree for tree in binder_trees("gpu-admission") if tree["kind"] == "ClusterRole"]
    named = [name for rule in role["rules"] for name in rule.get("resourceNames", ())]
    assert named == [door.registration(service["name"]) for door in GPU_WEBHOOKS]


def test_prometheus_finds_the_binders_port() -> None:
    """From the monitor's selector to the service, from its selector to the pods, from the port's name to the port."""
    (deployment,) = [tree for tree in binder_trees("binder-program") if tree["kind"] == "Deployment"]
    (service,) = [tree for tree in binder_trees("binder-program") if tree["kind"] == "Service"]
    (named,) = [tree for tree in binder_trees("binder-program") if tree["kind"] == "Kustomization"]
    (monitor,) = [tree for tree in binder_trees("binder-monitoring") if tree["kind"] == "ServiceMonitor"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert monitor["spec"]["selector"]["matchLabels"] == named["labels"][0]["pairs"]
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == [
        each["name"] for each in service["spec"]["ports"]
    ]
    (port,) = service["spec"]["ports"]
    assert {port["targetPort"]: port["port"]} == {each["name"]: each["containerPort"] for each in container["ports"]}
    assert f"--listen-address=:{port['port']}" in container["args"]


def test_documented_alerts_use_existing_metrics() -> None:
    pages = DEPLOY.parent / "docs"
    text = (pages / "binder.md").read_text(encoding="utf-8")
    (rules,) = [
        tree
        for fence in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        if (tree := yaml.safe_load(fence))["kind"] == "PrometheusRule"
    ]
    asked = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    there = set(
        re.findall(r"^\| `(\w+)`", (pages / "reference" / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert [len(there & set(re.findall(r"\w+", each))) for each in asked] == [1, 1, 1]


@pytest.mark.parametrize(("overlay", "beneath"), [("binder", "base"), ("batch-binder", "batch")])
def test_an_engine_beside_a_binder_loses_the_right_to_bind(overlay: str, beneath: str) -> None:
    """The patch selects a rule by its index, and tests its content."""
    (kustomization,) = [tree for tree in binder_trees(overlay) if tree["kind"] == "Kustomization"]
    (patch,) = [each for each in kustomization["patches"] if each.get("target", {}).get("kind") == "ClusterRole"]
    (role,) = [tree for tree in binder_trees(beneath) if tree["kind"] == "ClusterRole"]
    tested, removed = yaml.safe_load(patch["patch"])
    number = int(removed["path"].rpartition("/")[2])
    assert role["rules"][number]["resources"] == tested["value"] == ["pods/binding"]


def test_the_settings_of_shared_gpus_are_taken_and_name_what_the_manifests_make() -> None:
    trees = binder_trees("binder-gpu-sharing")
    (text,) = [tree["data"]["settings.yaml"] for tree in trees if "settings.yaml" in tree.get("data", ())]
    wanted = load_settings(text, "settings.yaml").resource_reservation
    assert wanted == ReservationSettings(), "what is shown is the default"
    (namespace,) = [tree["metadata"]["name"] for tree in trees if tree["kind"] == "Namespace"]
    (account,) = [tree["metadata"]["name"] for tree in trees if tree["kind"] == "ServiceAccount"]
    assert (namespace, account) == (wanted.namespace, wanted.service_account_name)
    (role,) = [tree for tree in trees if tree["kind"] == "Role"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]}]


def test_the_batch_engines_settings_are_taken_and_ask_for_requests() -> None:
    (settings,) = [
        tree["data"]["settings.yaml"] for tree in binder_trees("batch-binder") if tree["kind"] == "ConfigMap"
    ]
    assert load_settings(settings, "settings.yaml").bind_requests


# Volcano's controllers and webhooks


def test_the_controllers_and_webhooks_have_no_wide_rule_and_read_no_secret() -> None:
    for name in ("batch-controllers", "batch-admission"):
        for rule in batch_manifests(DEPLOY / "kustomize" / name)["ClusterRole"]["rules"]:
            assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
            assert "secrets" not in rule["resources"] or rule["verbs"] == ["create", "delete"]


@pytest.mark.parametrize(
    ("name", "command"), [("batch-controllers", controllers_command), ("batch-admission", admission_command)]
)
def test_the_flags_of_controllers_and_webhooks_are_taken(name: str, command: click.Command) -> None:
    (container,) = batch_manifests(DEPLOY / "kustomize" / name)["Deployment"]["spec"]["template"]["spec"]["containers"]
    verb, *flags = container["args"]
    assert verb == command.name
    taken = command.make_context(verb, flags).params
    if name == "batch-controllers":
        lease = batch_manifests(DEPLOY / "kustomize" / name)["Role"]
        named = [
            each for rule in lease["rules"] if "leases" in rule["resources"] for each in rule.get("resourceNames", ())
        ]
        assert (lease["metadata"]["namespace"], named) == (taken["lease_namespace"], [taken["lease_name"]])
        assert select_controllers([taken["patterns"]]) == list(VOLCANO_CONTROLLER_NAMES)
    else:
        service = batch_manifests(DEPLOY / "kustomize" / name)["Service"]["metadata"]
        assert taken["webhook_service"] == f"{service['namespace']}/{service['name']}"
