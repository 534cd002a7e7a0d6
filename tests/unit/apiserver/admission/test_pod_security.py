"""Warnings from the Pod Security labels of a namespace; refusals are in the recorded scenes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from support.harness.apiserver_store import ApiserverStore, Tree, pod

PREFIX = "pod-security.kubernetes.io/"
RESTRICTED_VIOLATIONS = (
    'allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), '
    'unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), '
    'runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), '
    'seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or '
    '"Localhost")'
)


def store_with_labels(**labels: str) -> ApiserverStore:
    store = ApiserverStore()
    relabel(store, **labels)
    return store


def relabel(store: ApiserverStore, **labels: str) -> list[str]:
    new_labels = {PREFIX + key.replace("_", "-"): value for key, value in labels.items()}
    write = store.write("Namespace")

    def set_labels(live: Tree) -> Tree:
        metadata = {**live["metadata"], "labels": {**(live["metadata"].get("labels") or {}), **new_labels}}
        return {**live, "metadata": metadata}

    store.writer.update(write, "default", set_labels)
    return write.warnings


def create_with_warnings(store: ApiserverStore, body: Tree) -> list[str]:
    write = store.write(body["kind"], body["apiVersion"].rpartition("/")[0])
    store.writer.create(write, deepcopy(body))
    return write.warnings


def workload(kind: str, group: str, **spec: Any) -> Tree:
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": {**pod("p")["spec"], "restartPolicy": "Always"}}
    spec = {"selector": {"matchLabels": labels}, "template": template, **spec}
    return {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "o"}, "spec": spec}


def cron_job() -> Tree:
    template = {"spec": {**pod("p")["spec"], "restartPolicy": "Never"}}
    spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "o"}, "spec": spec}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(workload("Deployment", "apps"), id="deployment"),
        pytest.param(workload("DaemonSet", "apps"), id="daemon set"),
        pytest.param(workload("StatefulSet", "apps", serviceName="s"), id="stateful set"),
        pytest.param(cron_job(), id="cron job"),
        pytest.param(pod("p"), id="pod"),
    ],
)
def test_warn_covers_pods_and_workloads(body: Tree) -> None:
    assert create_with_warnings(store_with_labels(warn="restricted"), body) == [
        f'would violate PodSecurity "restricted:latest": {RESTRICTED_VIOLATIONS}'
    ]


def test_enforce_admits_workloads_with_a_warning() -> None:
    warnings = create_with_warnings(store_with_labels(enforce="restricted"), workload("Deployment", "apps"))
    assert warnings == [f'would violate PodSecurity "restricted:latest": {RESTRICTED_VIOLATIONS}']


@pytest.mark.parametrize(
    ("labels", "level"),
    [
        pytest.param({"enforce": "baseline"}, "", id="a plain pod does not violate baseline"),
        pytest.param({"audit": "restricted"}, "", id="audit causes no warning"),
        pytest.param({"enforce": "privileged", "warn": "privileged"}, "", id="privileged admits everything"),
        pytest.param({"warn": "restricted", "warn_version": "v1.30"}, "restricted:v1.30", id="of a version"),
        pytest.param({"warn": "restricted", "warn_version": "v1.99"}, "restricted:v1.99", id="of a future version"),
    ],
)
def test_levels_and_versions_of_warnings(labels: dict[str, str], level: str) -> None:
    expected = [f'would violate PodSecurity "{level}": {RESTRICTED_VIOLATIONS}'] if level else []
    assert create_with_warnings(store_with_labels(**labels), pod("p")) == expected


def test_an_update_of_labels_is_not_checked() -> None:
    store = ApiserverStore()
    store.create(pod("p"))
    relabel(store, enforce="restricted")
    store.update("Pod", "p", lambda live: {**live, "metadata": {**live["metadata"], "labels": {"a": "b"}}})
    assert store.place("Pod").get("default", "p") is not None


def test_a_stricter_label_lists_the_violating_pods() -> None:
    store = ApiserverStore()
    for name in ("b", "a", "c"):
        store.create(pod(name))
    shared = pod("shared")
    shared["spec"]["hostNetwork"] = True
    store.create(shared)
    violations = "allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile"
    assert relabel(store, enforce="restricted", enforce_version="v1.30") == [
        'existing pods in namespace "default" violate the new PodSecurity enforce level "restricted:v1.30"',
        f"a (and 2 other pods): {violations}",
        f"shared: host namespaces, {violations}",
    ]
    assert relabel(store, enforce="baseline") == []  # same version, lower level
    assert relabel(store, enforce="baseline", enforce_version="latest") == [
        'existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"',
        "shared: host namespaces",
    ]
    assert relabel(store, enforce="privileged") == []


def test_one_pod_of_each_owner_is_checked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayplan.apiserver.admission.pod_security._MAX_PODS", 2)
    store = ApiserverStore()
    for number in range(3):
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
        store.create(pod(f"a-{number}", ownerReferences=[reference]))
    shared = pod("shared")
    shared["spec"]["hostNetwork"] = True
    store.create(shared)
    assert relabel(store, enforce="baseline") == [
        "new PodSecurity enforce level only checked against the first 2 of 4 existing pods",
        'existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"',
        "shared: host namespaces",
    ]
