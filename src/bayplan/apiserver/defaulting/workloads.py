"""Defaults of workloads, autoscalers and disruption budgets. `kind_defaults` calls them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from bayplan.apiserver.defaulting.pods import fill_template
from bayplan.apiserver.defaulting.volumes import fill_claim
from bayplan.apiserver.resources.kinds import Tree

_INT32_MAX = 2**31 - 1


def _fill_template(spec: Tree) -> None:
    fill_template(spec.setdefault("template", {}))


def _fill_status(item: Tree, **counters: Any) -> None:
    """Set status counters, which are always returned."""
    status = item.setdefault("status", {})
    for name, value in counters.items():
        status.setdefault(name, value)


def fill_deployment(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("selector", None)
    strategy = spec.setdefault("strategy", {})
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    _fill_template(spec)
    item.setdefault("status", {})


TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
"""An internal field of the server, an annotation in the API: the writer becomes its manager in any case."""


def fill_daemon_set(item: Tree) -> None:
    metadata = item.setdefault("metadata", {})
    metadata["annotations"] = {TEMPLATE_GENERATION: "0", **(metadata.get("annotations") or {})}
    spec = item.setdefault("spec", {})
    spec.setdefault("selector", None)
    strategy = spec.setdefault("updateStrategy", {})
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    _fill_template(spec)
    _fill_status(item, currentNumberScheduled=0, numberMisscheduled=0, desiredNumberScheduled=0, numberReady=0)


def fill_stateful_set(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("selector", None)
    spec.setdefault("serviceName", "")
    if not spec.get("podManagementPolicy"):
        spec["podManagementPolicy"] = "OrderedReady"
    strategy = spec.setdefault("updateStrategy", {})
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
        strategy.setdefault("rollingUpdate", {})
    if strategy["type"] == "RollingUpdate" and (rolling := strategy.get("rollingUpdate")) is not None:
        rolling.setdefault("partition", 0)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for name in ("whenDeleted", "whenScaled"):
        if not retention.get(name):
            retention[name] = "Retain"
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    for claim in spec.get("volumeClaimTemplates", ()):
        claim.setdefault("metadata", {})
        claim["apiVersion"], claim["kind"] = "v1", "PersistentVolumeClaim"
        fill_claim(claim)
    _fill_template(spec)
    _fill_status(item, replicas=0, availableReplicas=0)


def fill_replica_set(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("selector", None)
    _fill_template(spec)
    _fill_status(item, replicas=0)


def fill_replication_controller(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    template = spec.get("template")
    if template is not None:
        labels = template.get("metadata", {}).get("labels")
        if labels:
            if not spec.get("selector"):
                spec["selector"] = dict(labels)
            if not item["metadata"].get("labels"):
                item["metadata"]["labels"] = dict(labels)
        fill_template(template)
    spec.setdefault("replicas", 1)
    _fill_status(item, replicas=0)


def fill_job(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    fill_job_spec(item, spec)
    item.setdefault("status", {})


def fill_job_spec(item: Tree, spec: Tree) -> None:
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", _INT32_MAX if "backoffLimitPerIndex" in spec else 6)
    _fill_template(spec)
    labels = spec["template"]["metadata"].get("labels")
    if labels and not item["metadata"].get("labels"):
        item["metadata"]["labels"] = labels  # the same dict: labels that are added to the pods are added to the job
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    spec.setdefault("manualSelector", False)
    _fill_failure_rules(spec)


def _fill_failure_rules(spec: Tree) -> None:
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions", ()):
            if not pattern.get("status"):
                pattern["status"] = "True"


def fill_cron_job(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("schedule", "")
    if not spec.get("concurrencyPolicy"):
        spec["concurrencyPolicy"] = "Allow"
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    template = spec.setdefault("jobTemplate", {})
    template.setdefault("metadata", {})
    # The job gets its defaults when it is created; the pod template gets them now.
    job = template.setdefault("spec", {})
    _fill_template(job)
    _fill_failure_rules(job)
    item.setdefault("status", {})


_SCALE_UP: Tree = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_SCALE_DOWN: Tree = {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}
_CPU_AT_80: Tree = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}


def fill_autoscaler(item: Tree) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("minReplicas", 1)
    spec.setdefault("maxReplicas", 0)
    if not spec.get("metrics"):
        spec["metrics"] = [deepcopy(_CPU_AT_80)]
    if (behavior := spec.get("behavior")) is not None:
        behavior["scaleUp"] = {**deepcopy(_SCALE_UP), **behavior.get("scaleUp", {})}
        behavior["scaleDown"] = {**deepcopy(_SCALE_DOWN), **behavior.get("scaleDown", {})}
    status = item.setdefault("status", {})
    status.setdefault("desiredReplicas", 0)
    status.setdefault("currentMetrics", None)


def fill_pod_disruption_budget(item: Tree) -> None:
    item.setdefault("spec", {})
    _fill_status(item, disruptionsAllowed=0, currentHealthy=0, desiredHealthy=0, expectedPods=0)
