"""Bounds of numbers in validation: the last accepted and the first refused value."""

from __future__ import annotations

from typing import Any

import pytest

from support.builders.recorded_bounds import cases, faults

GREATER_0 = "must be greater than 0"
GREATER_ZERO = "must be greater than zero"
NATURAL = "must be greater than or equal to 0"
MODE = "must be a number between 0 and 0777 (octal), both inclusive"
TOKEN_SHORT = "may not specify a duration less than 10 minutes"
TOKEN_LONG = "may not specify a duration larger than 2^32 seconds"
PORT = "must be between 1 and 65535, inclusive"

BOUNDS: dict[str, list[Any]] = {
    "Pod/rich": [
        ("spec.activeDeadlineSeconds", 1, 0, "must be between 1 and 2147483647"),
        ("spec.activeDeadlineSeconds", 2**31 - 1, 2**31, "must be between 1 and"),
        ("spec.containers.0.ports.0.containerPort", 65535, 65536, PORT),
        ("spec.containers.0.ports.1.hostPort", 1, -1, PORT),
        ("spec.securityContext.runAsUser", 0, -1, "between 0 and 2147483647"),
        ("spec.securityContext.fsGroup", 2**31 - 1, 2**31, "between 0 and"),
        ("spec.volumes.1.configMap.items.0.mode", 0, -1, MODE),
        ("spec.volumes.1.configMap.items.0.mode", 0o777, 0o1000, MODE),
        ("spec.volumes.1.configMap.defaultMode", 0o777, 0o1000, MODE),
        ("spec.volumes.5.projected.defaultMode", 0o777, 0o1000, MODE),
        ("spec.volumes.6.downwardAPI.items.0.mode", 0, -1, MODE, "spec.volumes[6].downwardAPI.mode"),
        ("spec.volumes.0.emptyDir.sizeLimit", "0", "-1", "valid resource quantity"),
        ("spec.volumes.5.projected.sources.0.serviceAccountToken.expirationSeconds", 600, 599, TOKEN_SHORT),
        (
            "spec.volumes.5.projected.sources.0.serviceAccountToken.expirationSeconds",
            1 << 32,
            (1 << 32) + 1,
            TOKEN_LONG,
        ),
        (
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution.0.weight",
            1,
            0,
            "must be in the range 1-100",
        ),
        (
            "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution.0.weight",
            100,
            101,
            "must be in the range 1-100",
        ),
        ("spec.topologySpreadConstraints.0.maxSkew", 1, 0, GREATER_ZERO),
        ("spec.topologySpreadConstraints.0.minDomains", 1, 0, GREATER_ZERO),
        ("spec.containers.0.livenessProbe.terminationGracePeriodSeconds", 1, 0, GREATER_0),
        (
            "spec.containers.0.lifecycle.preStop",
            {"sleep": {"seconds": 10}},
            {"sleep": {"seconds": 11}},
            "must be non-negative and less than",
            "spec.containers[0].lifecycle.preStop.sleep",
        ),
        (
            "spec.containers.0.lifecycle.preStop",
            {"sleep": {"seconds": 1}},
            {"sleep": {"seconds": -1}},
            "must be non-negative and less than",
            "spec.containers[0].lifecycle.preStop.sleep",
        ),
        (
            "metadata.annotations",
            {"controller.kubernetes.io/pod-deletion-cost": str(2**31 - 1)},
            {"controller.kubernetes.io/pod-deletion-cost": str(2**31)},
            "must be a 32bit integer",
            "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]",
        ),
        (
            "metadata.annotations",
            {"controller.kubernetes.io/pod-deletion-cost": str(-(2**31))},
            {"controller.kubernetes.io/pod-deletion-cost": str(-(2**31) - 1)},
            "must be a 32bit integer",
            "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]",
        ),
        (
            "metadata.annotations",
            {"controller.kubernetes.io/pod-deletion-cost": "0"},
            {"controller.kubernetes.io/pod-deletion-cost": "00"},
            "must be a 32bit integer",
            "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]",
        ),
        (
            "metadata.annotations",
            {"a": "v" * (256 * 1024 - 1)},
            {"a": "v" * (256 * 1024)},
            "may not be more than 262144 bytes",
        ),
        (
            "metadata.annotations",
            {"a": "\u00e9" * (128 * 1024 - 1)},
            {"a": "\u00e9" * (128 * 1024)},
            "may not be more than 262144 bytes",
        ),
    ],
    "Service/ports": [
        (
            "spec.sessionAffinityConfig",
            {"clientIP": {"timeoutSeconds": 1}},
            {"clientIP": {"timeoutSeconds": 0}},
            "must be greater than 0 and less than 86400",
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
        ),
        (
            "spec.sessionAffinityConfig",
            {"clientIP": {"timeoutSeconds": 86400}},
            {"clientIP": {"timeoutSeconds": 86401}},
            "must be greater than 0 and less than 86400",
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
        ),
    ],
    "Deployment/web": [
        ("spec.progressDeadlineSeconds", 6, 5, "must be greater than minReadySeconds"),
        ("spec.strategy.rollingUpdate.maxUnavailable", "100%", "101%", "must not be greater than 100%"),
    ],
    "DaemonSet/agent": [
        ("spec.updateStrategy.rollingUpdate.maxUnavailable", "100%", "101%", "must not be greater than 100%")
    ],
    "StatefulSet/db": [("spec.ordinals.start", 0, -1, NATURAL)],
    "ControllerRevision/rev": [("revision", 0, -1, NATURAL)],
    "Job/rich": [
        ("spec.parallelism", 100_000, 100_001, "must be less than or equal to 100000"),
        ("spec.maxFailedIndexes", 5, 6, "must be less than or equal to completions"),
        ("spec.successPolicy.rules.0.succeededCount", 3, 4, "must be less than or equal to 3 (the number of indexes"),
        (
            "spec.successPolicy.rules.0",
            {"succeededCount": 5},
            {"succeededCount": 6},
            "must be less than or equal to 5 (the number of specified",
            "spec.successPolicy.rules[0].succeededCount",
        ),
        ("spec.successPolicy.rules.0.succeededIndexes", "0,1,3-4", "0,1,3-5", 'too large index: "5"'),
        (
            "spec.successPolicy.rules.0.succeededIndexes",
            "0,3-4",
            "0,4-3",
            "non-increasing order, previous: 4, current: 3",
        ),
        (
            "spec.successPolicy.rules.0.succeededIndexes",
            "0,1",
            "0,1-1",
            "non-increasing order, previous: 1, current: 1",
        ),
        (
            "spec.successPolicy.rules.0.succeededIndexes",
            "0-1,2",
            "0-2,2",
            "non-increasing order, previous: 2, current: 2",
        ),
        ("spec.successPolicy.rules.0.succeededIndexes", "0-1", "0-1-2", "at most two parts separated by '-'"),
    ],
    "HorizontalPodAutoscaler/web": [
        ("spec.maxReplicas", 2, 1, "must be greater than or equal to `minReplicas`"),
        ("spec.minReplicas", 1, 0, "must be greater than or equal to 1"),
        ("spec.behavior.scaleDown.stabilizationWindowSeconds", 0, -1, "must be greater than or equal to zero"),
        ("spec.behavior.scaleDown.stabilizationWindowSeconds", 3600, 3601, "must be less than or equal to 3600"),
        ("spec.metrics.0.resource.target.averageUtilization", 1, 0, GREATER_0),
        (
            "spec.behavior.scaleDown.policies",
            [{"type": "Pods", "value": 1, "periodSeconds": 1}],
            [{"type": "Pods", "value": 0, "periodSeconds": 1}],
            GREATER_ZERO,
            "spec.behavior.scaleDown.policies[0].value",
        ),
        (
            "spec.behavior.scaleDown.policies",
            [{"type": "Pods", "value": 1, "periodSeconds": 1}],
            [{"type": "Pods", "value": 1, "periodSeconds": 0}],
            GREATER_ZERO,
            "spec.behavior.scaleDown.policies[0].periodSeconds",
        ),
        (
            "spec.behavior.scaleDown.policies",
            [{"type": "Percent", "value": 1, "periodSeconds": 1800}],
            [{"type": "Percent", "value": 1, "periodSeconds": 1801}],
            "must be less than or equal to 1800",
            "spec.behavior.scaleDown.policies[0].periodSeconds",
        ),
        ("spec.scaleTargetRef.apiVersion", "apps/v1", "apps/v1/x", "unexpected GroupVersion string"),
    ],
    "PriorityClass/high": [("value", 1_000_000_000, 1_000_000_001, "maximum allowed value of a user defined priority")],
    "Lease/leader": [("spec.leaseDurationSeconds", 1, 0, GREATER_0), ("spec.leaseTransitions", 0, -1, NATURAL)],
    "CSIDriver/disk.example.com": [
        ("spec.tokenRequests.0.expirationSeconds", 600, 599, TOKEN_SHORT),
        ("spec.tokenRequests.0.expirationSeconds", 1 << 32, (1 << 32) + 1, TOKEN_LONG),
    ],
    "CSINode/n1": [("spec.drivers.0.allocatable.count", 0, -1, NATURAL)],
    "PersistentVolumeClaim/data": [
        ("spec.resources.requests.storage", "1", "0", GREATER_ZERO, "spec.resources[storage]")
    ],
    "PersistentVolume/vol": [("spec.capacity.storage", "1", "0", GREATER_ZERO, "spec.capacity[storage]")],
    "NetworkPolicy/guard": [("spec.ingress.0.ports.1.endPort", 8000, 7999, "must be greater than or equal to `port`")],
    "ResourceClaim/shared": [("spec.devices.requests.0.exactly.count", 1, -1, GREATER_ZERO)],
    "ResourceSlice/slice": [
        ("spec.pool.resourceSliceCount", 1, 0, GREATER_ZERO),
        ("spec.pool.generation", 0, -1, "must be greater than or equal to zero"),
    ],
    "MutatingWebhookConfiguration/changing": [
        ("webhooks.0.timeoutSeconds", 1, 0, "the timeout value must be between 1 and 30 seconds"),
        ("webhooks.0.timeoutSeconds", 30, 31, "the timeout value must be between 1 and 30 seconds"),
    ],
    "LimitRange/limits": [
        (
            "spec.limits.0.maxLimitRequestRatio.cpu",
            "1",
            "0.999",
            "is less than 1",
            "spec.limits[0].maxLimitRequestRatio[cpu]",
        ),
        (
            "spec.limits.0.maxLimitRequestRatio.cpu",
            "20",
            "20.001",
            "is greater than max/min = 20.000000",
            "spec.limits[0].maxLimitRequestRatio[cpu]",
        ),
        (
            "spec.limits.0.min.cpu",
            "200m",
            "201m",
            "min value 201m is greater than default request value 200m",
            "spec.limits[0].defaultRequest[cpu]",
        ),
        (
            "spec.limits.0.defaultRequest.cpu",
            "500m",
            "501m",
            "default request value 501m is greater than default limit value 500m",
            "spec.limits[0].defaultRequest[cpu]",
        ),
    ],
}


@pytest.mark.parametrize(("name", "path", "accepted", "refused", "text", "field"), cases(BOUNDS))
def test_the_last_accepted_and_the_first_refused_value(
    name: str, path: str, accepted: Any, refused: Any, text: str, field: str
) -> None:
    assert faults(name, path, accepted) == []
    found = faults(name, path, refused)
    assert any(each == field and text in message for each, message in found), found
