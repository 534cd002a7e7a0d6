"""Refused updates with all their errors, and warnings for accepted pods."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.apiserver.resources.lookup import built_in
from bayplan.apiserver.validation import jobs, metadata, services, statuses, storage, workloads
from bayplan.apiserver.validation.pods import pod_spec, pod_updates
from bayplan.apiserver.warnings.pods import pod_warnings
from bayplan.codec.field_errors import FieldErrorList
from support.builders.manifest_mutations import apply_mutation, copy_tree
from support.builders.recorded_bounds import assert_faults
from support.builders.recorded_objects import recorded
from support.harness.apiserver_store import Tree


def stored_object(name: str) -> Tree:
    """A recorded object as stored, with a version."""
    found = next(
        each["updates"]["stored"]
        for each in recorded()
        if f"{each['item']['kind']}/{each['item']['metadata'].get('name')}" == name
    )
    tree: Tree = copy_tree(found)
    tree["metadata"]["resourceVersion"] = "1"
    return tree


def apply_changes(item: Tree, changes: dict[str, Any]) -> Tree:
    for path, value in changes.items():
        item = apply_mutation(item, tuple(int(each) if each.isdigit() else each for each in path.split(".")), value)
    return item


CHECKS = {
    "Pod": pod_updates.check_pod_update,
    "Endpoints": services.check_endpoints_update,
    "EndpointSlice": services.check_endpoint_slice_update,
    "Job": jobs.check_job_update,
    "Service": services.check_service_update,
    "PersistentVolumeClaim": storage.check_claim_update,
    "PersistentVolume": storage.check_volume_update,
    "StatefulSet": workloads.check_stateful_set_update,
    "Deployment": workloads.check_deployment_update,
}
TOLERATION = {"key": "a", "operator": "Exists"}


@pytest.mark.parametrize(
    ("name", "before", "after", "expected"),
    [
        ("Pod/guaranteed", {}, {}, []),
        ("Pod/guaranteed", {}, {"spec.activeDeadlineSeconds": 5}, []),
        ("Pod/guaranteed", {"spec.activeDeadlineSeconds": 5}, {"spec.activeDeadlineSeconds": 5}, []),
        ("Pod/guaranteed", {"spec.activeDeadlineSeconds": 5}, {"spec.activeDeadlineSeconds": 4}, []),
        ("Pod/guaranteed", {"spec.activeDeadlineSeconds": 5}, {"spec.activeDeadlineSeconds": 6}, ["previous value"]),
        ("Pod/guaranteed", {"spec.activeDeadlineSeconds": 5}, {"spec.activeDeadlineSeconds": "-"}, ["to nil value"]),
        ("Pod/guaranteed", {}, {"spec.activeDeadlineSeconds": -1}, ["must be between 0", "must be between 1"]),
        ("Pod/guaranteed", {}, {"spec.containers.0.image": "b:1"}, []),
        ("Pod/guaranteed", {}, {"spec.containers.0.image": " b"}, ["leading or trailing whitespace"]),
        ("Pod/guaranteed", {}, {"spec.containers.0.name": "b"}, ["pod updates may not change fields other than"]),
        ("Pod/guaranteed", {}, {"spec.tolerations": [{"operator": "Exists"}, TOLERATION]}, []),
        ("Pod/guaranteed", {}, {"spec.tolerations": [TOLERATION]}, ["existing toleration can not be modified"]),
        ("Pod/guaranteed", {"spec.terminationGracePeriodSeconds": -1}, {"spec.terminationGracePeriodSeconds": 1}, []),
        (
            "Pod/guaranteed",
            {"spec.terminationGracePeriodSeconds": 0},
            {"spec.terminationGracePeriodSeconds": 1},
            ["pod updates may not change"],
        ),
        (
            "Pod/guaranteed",
            {"spec.terminationGracePeriodSeconds": -1},
            {"spec.terminationGracePeriodSeconds": 2},
            ["pod updates may not change"],
        ),
        ("Pod/guaranteed", {}, {"spec.schedulingGates": [{"name": "g"}]}, ["found new scheduling gate 'g'"]),
        ("Pod/guaranteed", {"spec.schedulingGates": [{"name": "g"}]}, {"spec.schedulingGates": []}, []),
        ("Pod/guaranteed", {}, {"spec.nodeSelector": {"a": "b"}}, ["pod updates may not change fields"]),
        ("Pod/guaranteed", {"spec.schedulingGates": [{"name": "g"}]}, {"spec.nodeSelector": {"a": "b"}}, []),
        (
            "Pod/guaranteed",
            {"spec.schedulingGates": [{"name": "g"}], "spec.nodeSelector": {"a": "b"}},
            {"spec.nodeSelector": {"a": "c"}},
            ["only additions to spec.nodeSelector are allowed"],
        ),
        ("Job/rich", {}, {"spec.parallelism": 3, "spec.completions": 3}, []),
        ("Job/rich", {}, {"spec.completions": 3}, ["can only be modified in tandem with spec.parallelism"]),
        (
            "Job/rich",
            {},
            {"spec.completionMode": "NonIndexed"},
            [
                "spec.completionMode: field is immutable",
                "spec.backoffLimitPerIndex: requires indexed",
                "spec.maxFailedIndexes: requires indexed",
                "spec.successPolicy: requires indexed",
            ],
        ),
        ("Job/rich", {}, {"spec.template.spec.nodeSelector": {"a": "b"}}, []),
        ("Job/rich", {}, {"spec.template.spec.containers.0.resources": {"limits": {"cpu": "1"}}}, []),
        ("Job/rich", {}, {"spec.template.spec.containers.0.image": "b:1"}, ["spec.template.spec: field is immutable"]),
        (
            "Job/rich",
            {"spec.suspend": False},
            {"spec.template.spec.nodeSelector": {"a": "b"}},
            ["spec.template: field"],
        ),
        (
            "Job/rich",
            {"status.startTime": "2026-01-01T00:00:00Z"},
            {"spec.template.spec.nodeSelector": {"a": "b"}},
            ["spec.template: field is immutable"],
        ),
        ("Job/rich", {}, {"spec.backoffLimitPerIndex": 2}, ["backoffLimitPerIndex: field is immutable"]),
        ("Service/web", {}, {"metadata.labels": {"bad key!": "b"}}, ["metadata.labels: name part"]),
        ("Service/web", {}, {"metadata.uid": "other"}, ["metadata.uid: field is immutable"]),
        ("Endpoints/ext", {}, {"metadata.uid": "other"}, ["metadata.uid: field is immutable"]),
        ("Endpoints/ext", {"subsets.0.addresses.0.ip": "x"}, {}, []),
        ("Endpoints/ext", {}, {"subsets.0.addresses.0.ip": "127.0.0.1"}, ["may not be in the loopback range"]),
        ("EndpointSlice/web-1", {}, {"addressType": "FQDN"}, ["addressType: field is immutable"]),
        ("EndpointSlice/web-1", {"endpoints.0.addresses": ["x"]}, {}, []),
        ("PersistentVolumeClaim/data", {"spec.storageClassName": "-"}, {"spec.storageClassName": "fast"}, []),
        ("PersistentVolumeClaim/data", {}, {"spec.storageClassName": "slow"}, ["spec is immutable after creation"]),
        ("PersistentVolumeClaim/data", {}, {"spec.volumeName": "v"}, []),
        ("PersistentVolumeClaim/data", {"spec.volumeName": "v"}, {"spec.volumeName": "w"}, ["spec is immutable"]),
        ("PersistentVolumeClaim/data", {}, {"spec.resources.requests.storage": "2Gi"}, ["spec is immutable"]),
        ("PersistentVolumeClaim/data", {"status.phase": "Bound"}, {"spec.resources.requests.storage": "2Gi"}, []),
        (
            "PersistentVolumeClaim/data",
            {"status": {"phase": "Bound", "capacity": {"storage": "512Mi"}}},
            {"spec.resources.requests.storage": "512Mi"},
            ["field can not be less than status.capacity"],
        ),
        (
            "PersistentVolumeClaim/data",
            {"status": {"phase": "Bound", "capacity": {"storage": "512Mi"}}},
            {"spec.resources.requests.storage": "513Mi"},
            [],
        ),
        ("PersistentVolume/vol", {}, {"spec.local.path": "/other"}, ["is immutable after creation"]),
        ("PersistentVolume/vol", {}, {"spec.volumeMode": "Block"}, ["volumeMode: field is immutable"]),
        ("PersistentVolume/vol", {}, {"spec.capacity.storage": "20Gi"}, []),
        ("StatefulSet/db", {}, {"spec.replicas": 5}, []),
        ("StatefulSet/db", {}, {"spec.serviceName": "other"}, ["updates to statefulset spec for fields other than"]),
        (
            "Deployment/web",
            {},
            {"spec.selector.matchLabels": {"app": "b"}},
            ["spec.selector: field is", "does not match"],
        ),
    ],
)
def test_errors_of_updates(name: str, before: dict[str, Any], after: dict[str, Any], expected: list[str]) -> None:
    old = apply_changes(stored_object(name), before)
    errors = FieldErrorList()
    CHECKS[name.partition("/")[0]](errors, apply_changes(old, after), old)
    found = list(dict.fromkeys(f"{each.field}: {each.message}" for each in errors))
    parts = [text.split(": ", 1) for text in expected]
    assert len(found) == len(expected), found
    assert all(any(all(part in each for part in text) for each in found) for text in parts), found


@pytest.mark.parametrize(
    ("new", "old", "fields"),
    [
        ({"generation": 2}, {"generation": 2}, []),
        ({"generation": 1}, {"generation": 2}, ["metadata.generation"]),
        ({"resourceVersion": ""}, {}, ["metadata.resourceVersion"]),
        ({"finalizers": ["a.io/b"]}, {}, []),
        ({"finalizers": ["a.io/b"], "deletionTimestamp": "t"}, {"deletionTimestamp": "t"}, ["metadata.finalizers"]),
        ({"finalizers": [], "deletionTimestamp": "t"}, {"deletionTimestamp": "t", "finalizers": ["a.io/b"]}, []),
        ({"deletionTimestamp": "t"}, {}, ["metadata.deletionTimestamp"]),
        ({"finalizers": ["odd"]}, {}, ["metadata.finalizers[0]"]),
        ({"finalizers": ["orphan", "foregroundDeletion"]}, {}, ["metadata.finalizers"]),
        (
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "u"}]},
            {},
            ["metadata.ownerReferences"],
        ),
        (
            {"ownerReferences": [{"apiVersion": "apps/", "kind": "K", "name": "e", "uid": "u"}]},
            {},
            ["metadata.ownerReferences.apiVersion"],
        ),
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "e"}]}, {}, ["metadata.ownerReferences.uid"]),
        (
            {"ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "e", "uid": "u", "controller": True}] * 2},
            {},
            ["metadata.ownerReferences"],
        ),
    ],
)
def test_error_fields_of_metadata_updates(new: Tree, old: Tree, fields: list[str]) -> None:
    errors = FieldErrorList()
    metadata.check_metadata_update(errors, {"resourceVersion": "1", **new}, old)
    assert [each.field for each in errors] == fields


@pytest.mark.parametrize(
    ("kind", "status", "old", "fields"),
    [
        ("Deployment", {"replicas": 2, "readyReplicas": 2, "availableReplicas": 2, "updatedReplicas": 2}, {}, []),
        ("Deployment", {"replicas": 2, "updatedReplicas": 3}, {}, ["status.updatedReplicas"]),
        ("Deployment", {"replicas": 2, "readyReplicas": 1, "availableReplicas": 2}, {}, ["status.availableReplicas"]),
        ("Deployment", {"unavailableReplicas": -1}, {}, ["status.unavailableReplicas"]),
        ("Deployment", {"collisionCount": 2}, {"collisionCount": 2}, []),
        ("Deployment", {"collisionCount": 1}, {"collisionCount": 2}, ["status.collisionCount"]),
        ("Deployment", {}, {"collisionCount": 0}, ["status.collisionCount"]),
        ("DaemonSet", {"numberAvailable": 0}, {}, []),
        ("DaemonSet", {"numberAvailable": -1}, {}, ["status.numberAvailable"]),
        ("ConfigMap", {"replicas": -1}, {}, []),
    ],
)
def test_error_fields_of_statuses(kind: str, status: Tree, old: Tree, fields: list[str]) -> None:
    errors = FieldErrorList()
    group = "" if kind == "ConfigMap" else "apps"
    statuses.check_status(errors, built_in(kind, group), {"status": status}, {"status": old})
    assert [each.field for each in errors] == fields


SECURITY = "spec.containers.0.securityContext"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (f"{SECURITY}.privileged", True, ["cannot set `allowPrivilegeEscalation` to false and `privileged` to true"]),
        (f"{SECURITY}.procMount", "Default", []),
        (f"{SECURITY}.procMount", "Unmasked", ["`hostUsers` must be false to use `Unmasked`"]),
        (f"{SECURITY}.seccompProfile", {"type": "Localhost", "localhostProfile": "a/b"}, []),
        (f"{SECURITY}.seccompProfile", {"type": "Localhost"}, ["must be set when seccomp type is Localhost"]),
        (
            f"{SECURITY}.seccompProfile",
            {"type": "Unconfined", "localhostProfile": "a"},
            ["can only be set when seccomp"],
        ),
        (f"{SECURITY}.seccompProfile", {"type": "Odd"}, ["seccompProfile.type: Unsupported value"]),
        (f"{SECURITY}.appArmorProfile", {"type": "Localhost", "localhostProfile": "a"}, []),
        (f"{SECURITY}.appArmorProfile", {"type": "Localhost", "localhostProfile": " a"}, ["padded with whitespace"]),
        (f"{SECURITY}.appArmorProfile", {"type": "Localhost"}, ["must be set when AppArmor type is Localhost"]),
        (f"{SECURITY}.appArmorProfile", {"type": "Unconfined", "localhostProfile": "a"}, ["can only be set when App"]),
        (f"{SECURITY}.appArmorProfile", {"type": "Odd"}, ["appArmorProfile.type: Unsupported value"]),
        ("spec.securityContext.sysctls", [{"name": "a"}, {"name": "a"}], ["sysctls[1].name: Duplicate value"]),
        ("spec.securityContext.sysctls", [{"name": "a" * 253}], []),
        ("spec.securityContext.sysctls", [{"name": "a" * 254}], ["must have at most 253 characters"]),
        ("spec.securityContext.fsGroupChangePolicy", "Odd", ["fsGroupChangePolicy: Unsupported value"]),
        ("spec.securityContext.supplementalGroups", [-1], ["supplementalGroups[0]: must be between 0"]),
    ],
)
def test_errors_of_a_changed_security_context(path: str, value: Any, expected: list[str]) -> None:
    assert_faults("Pod/rich", path, value, expected)


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"os": {"name": "linux"}, "securityContext": {"runAsUser": 1}}, []),
        ({"os": {"name": "linux"}, "securityContext": {"windowsOptions": {}}}, ["spec.securityContext.windowsOptions"]),
        ({"os": {"name": "windows"}, "securityContext": {"windowsOptions": {}}}, []),
        ({"os": {"name": "windows"}, "securityContext": {"runAsUser": 1}}, ["spec.securityContext.runAsUser"]),
        ({"os": {"name": "windows"}, "hostPID": True}, ["spec.hostPID"]),
        ({"os": {"name": "windows"}, "hostPID": False}, []),
        ({"os": {"name": "windows"}, "shareProcessNamespace": False}, ["spec.shareProcessNamespace"]),
    ],
)
def test_fields_of_another_operating_system_are_refused(spec: Tree, fields: list[str]) -> None:
    item = stored_object("Pod/plain")
    common = {
        "containers": [{"name": "c", "image": "c:1", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}]
    }
    item["spec"] = {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", **common, **spec}
    errors = FieldErrorList()
    pod_spec.check_pod(errors, item)
    assert [each.field for each in errors] == fields


def projected(*sources: Tree) -> Tree:
    return {"volumes": [{"name": "v", "projected": {"sources": list(sources)}}]}


def config(path: str) -> Tree:
    return {"configMap": {"name": "m", "items": [{"key": "k", "path": path}]}}


TOKEN = {"serviceAccountToken": {"path": "token"}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (projected(config("a"), config("b")), []),
        (projected(config("a"), config("ab")), []),
        (projected(config("a"), config("a/b")), ['"a/b" (ConfigMap "m") with "a" (ConfigMap "m")']),
        (projected(config("a/b"), config("a")), ['"a" (ConfigMap "m") with "a/b" (ConfigMap "m")']),
        (projected(config("a/"), config("a")), ['"a" (ConfigMap "m") with "a" (ConfigMap "m")']),
        (projected(config("token"), TOKEN), ['"token" (ServiceAccountToken) with "token" (ConfigMap "m")']),
        (projected({}), ['volume "v" (Projected) has no sources provided']),
        ({"terminationGracePeriodSeconds": -1}, ["spec.terminationGracePeriodSeconds: must be >= 0"]),
        ({"terminationGracePeriodSeconds": 0}, []),
        ({"hostAliases": [{"ip": "1"}, {"ip": "1"}]}, ['hostAliases[1].ip: duplicate ip "1"']),
        ({"hostAliases": [{"ip": "1"}, {"ip": "2"}]}, []),
        ({"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}, ['imagePullSecrets[1].name: duplicate name "a"']),
        ({"imagePullSecrets": [{}]}, ["imagePullSecrets[0].name: invalid empty name"]),
        ({"overhead": {"memory": "1500m"}}, ["spec.overhead[memory]: fractional byte value"]),
        ({"overhead": {"memory": "1500"}}, []),
    ],
)
def test_warnings_for_pods(spec: Tree, expected: list[str]) -> None:
    found = pod_warnings("", {"metadata": {"name": "p"}, "spec": spec})
    assert len(found) == len(expected), found
    assert all(text in each for each, text in zip(found, expected, strict=True)), found


@pytest.mark.parametrize(
    ("annotation", "where", "count"),
    [
        ("seccomp.security.alpha.kubernetes.io/pod", "", 1),
        ("container.seccomp.security.alpha.kubernetes.io/c", "", 1),
        ("container.seccomp.security.alpha.kubernetes.io/d", "", 0),
        ("container.apparmor.security.beta.kubernetes.io/c", "", 0),
        ("container.apparmor.security.beta.kubernetes.io/c", "spec.template", 1),
    ],
)
def test_deprecated_annotations_get_a_warning(annotation: str, where: str, count: int) -> None:
    pod = {"metadata": {"name": "p", "annotations": {annotation: "x"}}, "spec": {"containers": [{"name": "c"}]}}
    assert len(pod_warnings(where, pod)) == count
