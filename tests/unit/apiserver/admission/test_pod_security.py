"""What labels of a namespace say about pods that are let in; who is refused is in the recorded scenes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from support.harness.apiserver_store import ApiserverStore, Tree, pod

PREFIX = "pod-security.kubernetes.io/"
NEEDED = (
    'allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), '
    'unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), '
    'runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), '
    'seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or '
    '"Localhost")'
)


def labelled(**labels: str) -> ApiserverStore:
    world = ApiserverStore()
    relabel(world, **labels)
    return world


def relabel(world: ApiserverStore, **labels: str) -> list[str]:
    named = {PREFIX + key.replace("_", "-"): value for key, value in labels.items()}
    write = world.write("Namespace")

    def revision(live: Tree) -> Tree:
        metadata = {**live["metadata"], "labels": {**(live["metadata"].get("labels") or {}), **named}}
        return {**live, "metadata": metadata}

    world.writer.update(write, "default", revision)
    return write.warnings


def created(world: ApiserverStore, body: Tree) -> list[str]:
    write = world.write(body["kind"], body["apiVersion"].rpartition("/")[0])
    world.writer.create(write, deepcopy(body))
    return write.warnings


def owner(kind: str, group: str, **spec: Any) -> Tree:
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
        pytest.param(owner("Deployment", "apps"), id="deployment"),
        pytest.param(owner("DaemonSet", "apps"), id="daemon set"),
        pytest.param(owner("StatefulSet", "apps", serviceName="s"), id="stateful set"),
        pytest.param(cron_job(), id="cron job"),
        pytest.param(pod("p"), id="pod"),
    ],
)
def test_warn_warns_of_pods_and_of_what_makes_them(body: Tree) -> None:
    assert created(labelled(warn="restricted"), body) == [f'would violate PodSecurity "restricted:latest": {NEEDED}']


def test_what_makes_pods_is_let_in_where_they_are_not() -> None:
    told = created(labelled(enforce="restricted"), owner("Deployment", "apps"))
    assert told == [f'would violate PodSecurity "restricted:latest": {NEEDED}']


@pytest.mark.parametrize(
    ("labels", "level"),
    [
        pytest.param({"enforce": "baseline"}, "", id="a plain pod violates no baseline"),
        pytest.param({"audit": "restricted"}, "", id="audit says nothing to the client"),
        pytest.param({"enforce": "privileged", "warn": "privileged"}, "", id="privileged lets everything in"),
        pytest.param({"warn": "restricted", "warn_version": "v1.30"}, "restricted:v1.30", id="of a version"),
        pytest.param({"warn": "restricted", "warn_version": "v1.99"}, "restricted:v1.99", id="of a version to come"),
    ],
)
def test_who_is_warned_of(labels: dict[str, str], level: str) -> None:
    expected = [f'would violate PodSecurity "{level}": {NEEDED}'] if level else []
    assert created(labelled(**labels), pod("p")) == expected


def test_a_change_that_matters_to_no_standard_is_not_judged() -> None:
    world = ApiserverStore()
    world.create(pod("p"))
    relabel(world, enforce="restricted")
    world.update("Pod", "p", lambda live: {**live, "metadata": {**live["metadata"], "labels": {"a": "b"}}})
    assert world.place("Pod").get("default", "p") is not None


def test_a_stricter_label_tells_which_pods_would_not_be_let_in_again() -> None:
    world = ApiserverStore()
    for name in ("b", "a", "c"):
        world.create(pod(name))
    shared = pod("shared")
    shared["spec"]["hostNetwork"] = True
    world.create(shared)
    lack = "allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile"
    assert relabel(world, enforce="restricted", enforce_version="v1.30") == [
        'existing pods in namespace "default" violate the new PodSecurity enforce level "restricted:v1.30"',
        f"a (and 2 other pods): {lack}",
        f"shared: host namespaces, {lack}",
    ]
    assert relabel(world, enforce="baseline") == []  # of the same version, and less strict
    assert relabel(world, enforce="baseline", enforce_version="latest") == [
        'existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"',
        "shared: host namespaces",
    ]
    assert relabel(world, enforce="privileged") == []


def test_one_pod_of_each_owner_comes_first_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayplan.apiserver.admission.pod_security._MAX_PODS", 2)
    world = ApiserverStore()
    for number in range(3):
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
        world.create(pod(f"a-{number}", ownerReferences=[reference]))
    shared = pod("shared")
    shared["spec"]["hostNetwork"] = True
    world.create(shared)
    assert relabel(world, enforce="baseline") == [
        "new PodSecurity enforce level only checked against the first 2 of 4 existing pods",
        'existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"',
        "shared: host namespaces",
    ]
