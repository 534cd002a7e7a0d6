"""Refused fields of pods, each with all its errors, and accepted values next to them."""

from __future__ import annotations

from typing import Any

import pytest

from support.builders.recorded_bounds import assert_faults

C = "spec.containers.0"
V = "spec.volumes"
DEVICE = [{"name": "data", "devicePath": "/dev/x"}]
MUST = "must not already exist"

TABLE: list[tuple[str, Any, list[str]]] = [
    # Devices
    (f"{C}.volumeDevices", [{"name": "none", "devicePath": "/dev/x"}], ["volumeDevices[0].name: Not found"]),
    (f"{C}.volumeDevices", [{"name": "info", "devicePath": "/dev/x"}], ["volumeDevices[0].name: can only use volume"]),
    (
        f"{C}.volumeDevices",
        DEVICE,
        [f"volumeDevices[0].name: {MUST} in volumeMounts", f"volumeMounts[5].name: {MUST} in volumeDevices"],
    ),
    (
        f"{C}.volumeDevices",
        [{"name": "data", "devicePath": "/work"}],
        [
            f"volumeDevices[0].devicePath: {MUST} as a path in volumeMounts",
            f"volumeDevices[0].name: {MUST} in volumeMounts",
            f"volumeMounts[0].mountPath: {MUST} as a path in volumeDevices",
            f"volumeMounts[5].name: {MUST} in volumeDevices",
        ],
    ),
    (f"{C}.volumeDevices", [{"name": "data", "devicePath": "/a/../b"}], [f"{MUST} in", "can not contain backsteps"]),
    (f"{C}.volumeDevices", [{"name": "data", "devicePath": ""}], [f"{MUST} in", "devicePath: Required value"]),
    (f"{C}.volumeDevices", DEVICE * 2, [f"{MUST} in", "devicePath: must be unique", "[1].name: must be unique"]),
    # Mounts
    (f"{C}.volumeMounts.1.mountPath", "/work", ["volumeMounts[1].mountPath: must be unique"]),
    (f"{C}.volumeMounts.0.subPathExpr", "a", ["volumeMounts[0].subPathExpr: subPathExpr and subPath are mutually"]),
    (f"{C}.volumeMounts.1.recursiveReadOnly", "Disabled", []),
    (f"{C}.volumeMounts.1.recursiveReadOnly", "Enabled", []),
    (f"{C}.volumeMounts.0.recursiveReadOnly", "Enabled", ["recursiveReadOnly: may only be specified when readOnly"]),
    (
        f"{C}.volumeMounts.2.recursiveReadOnly",
        "IfPossible",
        [
            "recursiveReadOnly: may only be specified when mountPropagation is None",
            "recursiveReadOnly: may only be specified when readOnly is true",
        ],
    ),
    (f"{C}.volumeMounts.2.mountPropagation", "Bidirectional", ["mountPropagation: Bidirectional mount propagation is"]),
    # Environment
    (f"{C}.env.1.value", "x", ["env[1].valueFrom: may not be specified when `value` is not empty"]),
    (f"{C}.env.1.valueFrom", {}, ["env[1].valueFrom: must specify one of: `fieldRef`"]),
    (
        f"{C}.env.1.valueFrom.configMapKeyRef",
        {"name": "a", "key": "b"},
        ["env[1].valueFrom: may not have more than one field specified at a time"],
    ),
    (f"{C}.env.1.valueFrom.fieldRef", {"fieldPath": "metadata.labels['a']"}, []),
    (f"{C}.env.1.valueFrom.fieldRef", {"fieldPath": "metadata.annotations['A']"}, []),
    (f"{C}.env.1.valueFrom.fieldRef", {"fieldPath": "metadata.name['a']"}, ["fieldPath: error converting fieldPath"]),
    (f"{C}.env.1.valueFrom.fieldRef", {"fieldPath": "metadata.labels"}, ["fieldPath: Unsupported value"]),
    (f"{C}.env.1.valueFrom.fieldRef", {"fieldPath": "spec.x"}, ["fieldPath: error converting fieldPath: field label"]),
    (f"{C}.env.1.valueFrom.fieldRef", {"fieldPath": "metadata.uid", "apiVersion": "v2"}, ["unsupported pod version"]),
    (f"{C}.env.2.valueFrom.resourceFieldRef.divisor", "1", []),
    (f"{C}.env.2.valueFrom.resourceFieldRef.divisor", "2m", ["divisor: only divisor's values 1m and 1"]),
    (f"{C}.env.2.valueFrom.resourceFieldRef", {"resource": "limits.memory", "divisor": "1Mi"}, []),
    (
        f"{C}.env.2.valueFrom.resourceFieldRef",
        {"resource": "limits.ephemeral-storage", "divisor": "2"},
        ["divisor: only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki"],
    ),
    (f"{C}.env.2.valueFrom.resourceFieldRef", {"resource": "requests.hugepages-2Mi", "divisor": "1Mi"}, []),
    (
        f"{C}.env.2.valueFrom.resourceFieldRef",
        {"resource": "requests.hugepages-2Mi", "divisor": "2Mi"},
        ["1Ei are supported with the hugepages resource"],
    ),
    (f"{C}.envFrom.0.secretRef", {"name": "s"}, ["envFrom: may not have more than one field specified at a time"]),
    (f"{C}.envFrom", [{"prefix": "X"}], ["envFrom: must specify one of: `configMapRef` or `secretRef`"]),
    (f"{C}.envFrom", [{"secretRef": {"name": "ends-"}}], []),
    # Ports, resize policies, probes and hooks
    (f"{C}.ports.1.name", "http", ["ports[1].name: Duplicate value"]),
    (f"{C}.ports.0", {"containerPort": 1, "hostPort": 9090, "hostIP": "127.0.0.1"}, ["ports[1].hostPort: Duplicate"]),
    (f"{C}.ports.0", {"containerPort": 1, "hostPort": 9090}, []),
    (
        f"{C}.resizePolicy",
        [{"resourceName": "cpu", "restartPolicy": "NotRequired"}] * 2,
        ["resizePolicy[1]: Duplicate value"],
    ),
    (f"{C}.resizePolicy.0.restartPolicy", "RestartContainer", []),
    (f"{C}.resizePolicy.0.resourceName", "pods", ["resizePolicy: Unsupported value"]),
    (f"{C}.livenessProbe.successThreshold", 1, []),
    (f"{C}.livenessProbe.successThreshold", 2, ["livenessProbe.successThreshold: must be 1"]),
    (f"{C}.readinessProbe.terminationGracePeriodSeconds", 1, ["must not be set for readinessProbes"]),
    (
        f"{C}.livenessProbe.tcpSocket",
        {"port": 1},
        ["livenessProbe.tcpSocket: may not specify more than 1 handler type"],
    ),
    (f"{C}.lifecycle.postStart", {}, ["lifecycle.postStart: must specify a handler type"]),
    (f"{C}.lifecycle.postStart", {"exec": {}}, ["lifecycle.postStart.exec.command: Required value"]),
    (
        f"{C}.restartPolicyRules",
        [{"action": "Restart"}],
        ["exitCodes: must be specified", "restartPolicy: must specify"],
    ),
    # Names of containers
    ("spec.initContainers.0.name", "web", ["initContainers[0].name: Duplicate value"]),
    ("spec.initContainers.0.livenessProbe", {"exec": {"command": ["a"]}}, ["livenessProbe: may not be set for init"]),
    ("spec.initContainers.1.livenessProbe", {"exec": {"command": ["a"]}}, []),
    (
        "spec.initContainers.0.resizePolicy",
        [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}],
        ["must not be set to 'RestartContainer' for non-sidecar initContainers"],
    ),
    ("spec.initContainers.1.resizePolicy", [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}], []),
    # The pod
    ("spec.hostNetwork", True, ["sysctls[0].name: may not be"]),
    (f"{C}.ports.1.hostPort", 9091, []),
    ("spec.hostUsers", False, []),
    ("spec.hostPID", True, []),
    ("spec.setHostnameAsFQDN", True, []),
    ("spec.os", {"name": "linux"}, []),
    ("spec.os", {"name": ""}, ["spec.os.name: Required value"]),
    ("spec.os", {"name": "plan9"}, ["spec.os: Unsupported value"]),
    ("spec.dnsPolicy", "None", []),
    ("spec.dnsConfig.searches", [".", "a.", "_a.b"], []),
    ("spec.dnsConfig.options", [{"value": "1"}], ["spec.dnsConfig.options[0]: must not be empty"]),
    ("spec.dnsConfig.nameservers", ["10.0.0"], ["spec.dnsConfig.nameservers[0]: must be a valid IP address"]),
    ("spec.resourceClaims", [{"name": "a", "resourceClaimName": "x"}], []),
    (
        "spec.resourceClaims",
        [{"name": "a", "resourceClaimName": "x"}, {"name": "a", "resourceClaimName": "y"}],
        ["resourceClaims[1].name: Duplicate value"],
    ),
    (
        "spec.resourceClaims",
        [{"name": "a", "resourceClaimName": "x", "resourceClaimTemplateName": "y"}],
        ["resourceClaims[0]: at most one of `resourceClaimName`"],
    ),
    ("spec.resourceClaims", [{"name": "a"}], ["resourceClaims[0]: must specify one of: `resourceClaimName`"]),
    # Volumes
    (f"{V}.0", {"name": "work"}, []),
    (
        f"{V}.0.nfs",
        {"server": "s", "path": "/"},
        ["volumes[0].nfs: may not specify more than 1 volume type", "Not found"],
    ),
    (f"{V}.1.name", "work", ["volumes[1].name: Duplicate value", "volumeMounts[1].name: Not found"]),
    (f"{V}.7.nfs.path", "export", ["volumes[7].nfs.path: must be an absolute path"]),
    (f"{V}.3.hostPath.path", "/a/../b", ["volumes[3].hostPath.path: must not contain '..'", "Not found"]),
    (f"{V}.3.hostPath.path", "", ["volumes[3].hostPath.path: Required value", "Not found"]),
    (
        f"{V}.5.projected.sources.1.secret",
        {"name": "s"},
        ["sources[1]: may not specify more than 1 volume type per source", "Not found"],
    ),
    (
        f"{V}.5.projected.sources.2.secret.items",
        [{"key": "k", "path": "a"}],
        ["volumes[5].projected: conflicting duplicate paths", "Not found"],
    ),
    (
        f"{V}.5.projected.sources.3.downwardAPI.items.0.path",
        "a",
        ["volumes[5].projected: conflicting duplicate paths", "Not found"],
    ),
    (
        f"{V}.4.persistentVolumeClaim.claimName",
        "rich-scratch",
        ["must not reference a PVC that gets created for an ephemeral volume"],
    ),
    (
        f"{V}.9.ephemeral.volumeClaimTemplate.metadata.name",
        "x",
        ["volumeClaimTemplate.metadata.name: cannot be set", "Not found"],
    ),
    # Placement
    ("spec.tolerations.0.operator", "Exists", ["tolerations[0].operator: value must be empty"]),
    ("spec.tolerations.0", {"operator": "Equal", "value": "v"}, ["operator must be Exists when `key` is empty"]),
    ("spec.tolerations.0", {"operator": "Exists"}, []),
    ("spec.tolerations.1.effect", "NoSchedule", ["effect must be 'NoExecute' when `tolerationSeconds` is set"]),
    (
        "spec.topologySpreadConstraints.1.minDomains",
        1,
        ["can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway"],
    ),
    (
        "spec.topologySpreadConstraints.1",
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
        ["topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value"],
    ),
    (
        "spec.topologySpreadConstraints.1",
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
        [],
    ),
    (
        "spec.topologySpreadConstraints.1.labelSelector",
        {"matchLabels": {"rev": "1"}, "matchExpressions": [{"key": "rev", "operator": "Exists"}]},
        ["exists in both matchLabelKeys and labelSelector"],
    ),
    (
        "spec.topologySpreadConstraints.1.labelSelector",
        {"matchExpressions": [{"key": "rev", "operator": "Exists"}]},
        [],
    ),
    (
        "spec.topologySpreadConstraints.1.labelSelector",
        {"matchLabels": {"b": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]},
        [],
    ),
    (
        f"{V}.9.ephemeral.volumeClaimTemplate.metadata.annotations",
        {"bad key!": "b"},
        ["volumeClaimTemplate.metadata.annotations: name part", "Not found"],
    ),
    ("spec.schedulingGates", [{"name": "a.io/b"}, {"name": "a.io/b"}], ["schedulingGates[1]: Duplicate value"]),
]


@pytest.mark.parametrize(
    ("path", "value", "expected"), [pytest.param(*each, id=f"{number}-{each[0]}") for number, each in enumerate(TABLE)]
)
def test_errors_of_a_changed_pod_field(path: str, value: Any, expected: list[str]) -> None:
    assert_faults("Pod/rich", path, value, expected)
