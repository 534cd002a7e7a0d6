"""Validation of workloads and disruption budgets on create and update."""

from __future__ import annotations

from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.metadata import (
    check_annotations,
    check_immutable,
    check_labels,
    check_metadata,
    check_metadata_update,
    check_same_selector,
    check_selector,
    normalize_selector,
    selector_is_empty,
    selector_matches,
    sorted_map,
)
from bayplan.apiserver.validation.names import dns_label, dns_subdomain, path_segment, percent
from bayplan.apiserver.validation.pods.pod_spec import check_template
from bayplan.apiserver.validation.resource_quantities import NEGATIVE
from bayplan.apiserver.validation.storage import check_claim_spec
from bayplan.codec.field_errors import FieldErrorList

_SELECTOR_MISMATCH = "`selector` does not match template `labels`"
_STATEFUL_SET_MUTABLE = (
    "replicas",
    "template",
    "updateStrategy",
    "minReadySeconds",
    "ordinals",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
)
_RETENTION = ("Retain", "Delete")


def check_non_negative(out: FieldErrorList, tree: Tree, *names: str, path: str = "spec") -> None:
    for name in names:
        if (tree.get(name) or 0) < 0:
            out.invalid(f"{path}.{name}", tree[name], NEGATIVE)


def _check_selector(out: FieldErrorList, spec: Tree, kind_name: str) -> bool:
    selector = spec.get("selector")
    if selector is None:
        out.required("spec.selector")
        return True
    before = len(out)
    check_selector(out, selector, "spec.selector")
    usable = len(out) == before
    if selector_is_empty(selector):
        out.invalid("spec.selector", normalize_selector(selector), f"empty selector is invalid for {kind_name}")
    return usable


def _check_selected_template(out: FieldErrorList, spec: Tree, kind_name: str) -> None:
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not selector_is_empty(spec.get("selector")) and not selector_matches(spec.get("selector"), labels):
        out.invalid("spec.template.metadata.labels", sorted_map(labels), _SELECTOR_MISMATCH)
    check_template(out, template, "spec.template")
    _check_restart_policy(out, template, kind_name)


def _check_restart_policy(out: FieldErrorList, template: Tree, kind_name: str) -> None:
    spec, where = template.get("spec") or {}, "spec.template.spec"
    if spec.get("restartPolicy") != "Always":
        out.unsupported(f"{where}.restartPolicy", spec.get("restartPolicy", ""), ("Always",))
    if spec.get("activeDeadlineSeconds") is not None:
        out.forbidden(f"{where}.activeDeadlineSeconds", f"activeDeadlineSeconds in {kind_name} is not Supported")


# Integers or percentages.


def check_int_or_percent(out: FieldErrorList, value: Any, path: str) -> None:
    if isinstance(value, str):
        out.each_invalid(path, value, percent(value))
    elif value < 0:
        out.invalid(path, value, NEGATIVE)


def _int_or_percent_value(value: Any) -> int:
    if isinstance(value, str):
        return int(value[:-1]) if not percent(value) else _leading_number(value)
    return int(value)


def _leading_number(text: str) -> int:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() else 0


def check_at_most_100_percent(out: FieldErrorList, value: Any, path: str) -> None:
    if isinstance(value, str) and not percent(value) and int(value[:-1]) > 100:
        out.invalid(path, value, "must not be greater than 100%")


# Deployments and replica sets.


def check_deployment(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    _check_deployment_spec(out, item["spec"])


def _check_deployment_spec(out: FieldErrorList, spec: Tree) -> None:
    check_non_negative(out, spec, "replicas")
    if _check_selector(out, spec, "deployment"):
        _check_selected_template(out, spec, "ReplicaSet")
    else:
        out.invalid("spec.selector", normalize_selector(spec["selector"]), "invalid label selector")
    _check_strategy(out, spec.get("strategy") or {})
    check_non_negative(out, spec, "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None and deadline <= spec.get("minReadySeconds", 0):
        out.invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds")


def _check_strategy(out: FieldErrorList, strategy: Tree) -> None:
    kind, rolling = strategy.get("type"), strategy.get("rollingUpdate")
    if kind == "Recreate":
        if rolling is not None:
            rule = "may not be specified when strategy `type` is 'Recreate'"
            out.forbidden("spec.strategy.rollingUpdate", rule)
    elif kind == "RollingUpdate":
        _check_rolling(out, rolling or {}, "spec.strategy.rollingUpdate")
    else:
        shown = {"Type": kind or "", "RollingUpdate": _normalize_rolling_update(rolling)}
        out.unsupported("spec.strategy", shown, ("Recreate", "RollingUpdate"))


def _normalize_rolling_update(rolling: Tree | None) -> Any:
    if rolling is None:
        return None
    return {"MaxUnavailable": rolling.get("maxUnavailable", 0), "MaxSurge": rolling.get("maxSurge", 0)}


def _check_rolling(out: FieldErrorList, rolling: Tree, path: str) -> None:
    missing, extra = rolling.get("maxUnavailable", 0), rolling.get("maxSurge", 0)
    check_int_or_percent(out, missing, f"{path}.maxUnavailable")
    check_int_or_percent(out, extra, f"{path}.maxSurge")
    if _int_or_percent_value(missing) == 0 and _int_or_percent_value(extra) == 0:
        out.invalid(f"{path}.maxUnavailable", missing, "may not be 0 when `maxSurge` is 0")
    check_at_most_100_percent(out, missing, f"{path}.maxUnavailable")


def check_deployment_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    _check_deployment_spec(out, item["spec"])
    check_same_selector(out, item["spec"], old["spec"])


def check_replica_set(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    _check_replica_set_spec(out, item["spec"])


def _check_replica_set_spec(out: FieldErrorList, spec: Tree) -> None:
    check_non_negative(out, spec, "replicas", "minReadySeconds")
    if _check_selector(out, spec, "deployment"):
        _check_selected_template(out, spec, "ReplicaSet")
    else:
        out.invalid("spec.selector", normalize_selector(spec["selector"]), "invalid label selector")


def check_replica_set_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    _check_replica_set_spec(out, item["spec"])
    check_same_selector(out, item["spec"], old["spec"])


def check_replication_controller(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    _check_controller_spec(out, item["spec"])


def _check_controller_spec(out: FieldErrorList, spec: Tree) -> None:
    check_non_negative(out, spec, "minReadySeconds")
    selector, template = spec.get("selector"), spec.get("template")
    if not selector:
        out.required("spec.selector")
    check_non_negative(out, spec, "replicas")
    if template is None:
        out.required("spec.template")
        return
    labels = (template.get("metadata") or {}).get("labels") or {}
    if selector and any(labels.get(key) != value for key, value in selector.items()):
        out.invalid("spec.template.metadata.labels", sorted_map(labels), _SELECTOR_MISMATCH)
    check_template(out, template, "spec.template")
    _check_restart_policy(out, template, "ReplicationController")


def check_replication_controller_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    _check_controller_spec(out, item["spec"])


# Daemon sets.


def check_daemon_set(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    _check_daemon_set_spec(out, item["spec"])


def _check_daemon_set_spec(out: FieldErrorList, spec: Tree) -> None:
    selector, template = spec.get("selector"), spec.get("template") or {}
    before = len(out)
    check_selector(out, selector, "spec.selector")
    usable = len(out) == before
    labels = (template.get("metadata") or {}).get("labels") or {}
    if usable and not selector_is_empty(selector) and not selector_matches(selector, labels):
        out.invalid("spec.template.metadata.labels", sorted_map(labels), _SELECTOR_MISMATCH)
    if selector_is_empty(selector):
        out.invalid("spec.selector", normalize_selector(selector), "empty selector is invalid for daemonset")
    check_template(out, template, "spec.template")
    _check_restart_policy(out, template, "DaemonSet")
    check_non_negative(out, spec, "minReadySeconds")
    _check_daemon_strategy(out, spec.get("updateStrategy") or {})
    check_non_negative(out, spec, "revisionHistoryLimit")


def _check_daemon_strategy(out: FieldErrorList, strategy: Tree) -> None:
    kind, path = strategy.get("type"), "spec.updateStrategy.rollingUpdate"
    if kind == "OnDelete":
        return
    rolling = strategy.get("rollingUpdate")
    if kind != "RollingUpdate":
        shown = {"Type": kind or "", "RollingUpdate": _normalize_rolling_update(rolling)}
        out.unsupported("spec.updateStrategy", shown, ("RollingUpdate", "OnDelete"))
        return
    missing, extra = (rolling or {}).get("maxUnavailable", 0), (rolling or {}).get("maxSurge", 0)
    check_int_or_percent(out, missing, f"{path}.maxUnavailable")
    check_int_or_percent(out, extra, f"{path}.maxSurge")
    check_at_most_100_percent(out, missing, f"{path}.maxUnavailable")
    check_at_most_100_percent(out, extra, f"{path}.maxSurge")
    if _int_or_percent_value(missing) and _int_or_percent_value(extra):
        out.invalid(f"{path}.maxSurge", extra, "may not be set when maxUnavailable is non-zero")
    elif not _int_or_percent_value(missing) and not _int_or_percent_value(extra):
        out.required(f"{path}.maxUnavailable", "cannot be 0 when maxSurge is 0")


def check_daemon_set_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    check_same_selector(out, item["spec"], old["spec"])
    _check_daemon_set_spec(out, item["spec"])


# Stateful sets.


def check_stateful_set(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_label, namespaced=True)
    for index, claim in enumerate(item["spec"].get("volumeClaimTemplates") or ()):
        check_claim_spec(out, claim.get("spec") or {}, f"spec.volumeClaimTemplates[{index}].spec")
    if name := item["spec"].get("serviceName"):
        out.each_invalid("spec.serviceName", name, dns_label(name))
    _check_stateful_set_spec(out, item["spec"])


def _check_stateful_set_spec(out: FieldErrorList, spec: Tree) -> None:
    policy = spec.get("podManagementPolicy", "")
    if policy not in ("OrderedReady", "Parallel"):
        out.invalid("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'")
    _check_stateful_strategy(out, spec.get("updateStrategy") or {})
    retention = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    for name in ("whenDeleted", "whenScaled"):
        if retention and retention.get(name) not in _RETENTION:
            where = f"spec.persistentVolumeClaimRetentionPolicy.{name}"
            out.unsupported(where, retention.get(name, ""), _RETENTION)
    check_non_negative(out, spec, "replicas", "minReadySeconds")
    if (spec.get("ordinals") or {}).get("start", 0) < 0:
        out.invalid("spec.ordinals.start", spec["ordinals"]["start"], NEGATIVE)
    template = spec.get("template") or {}
    if _check_selector(out, spec, "statefulset"):
        _check_stateful_template(out, spec, template)
    else:
        out.invalid("spec.selector", normalize_selector(spec["selector"]), "")
    _check_restart_policy(out, template, "StatefulSet")


def _check_stateful_strategy(out: FieldErrorList, strategy: Tree) -> None:
    kind, rolling = strategy.get("type"), strategy.get("rollingUpdate")
    path = "spec.updateStrategy.rollingUpdate"
    if kind == "OnDelete":
        if rolling is not None:
            shown = {"Partition": rolling.get("partition", 0), "MaxUnavailable": rolling.get("maxUnavailable")}
            out.invalid(path, shown, "only allowed for updateStrategy 'RollingUpdate'")
    elif kind == "RollingUpdate":
        check_non_negative(out, rolling or {}, "partition", path=path)
        if (missing := (rolling or {}).get("maxUnavailable")) is not None:
            check_int_or_percent(out, missing, f"{path}.maxUnavailable")
            if _int_or_percent_value(missing) == 0:
                out.invalid(f"{path}.maxUnavailable", missing, "cannot be 0")
            check_at_most_100_percent(out, missing, f"{path}.maxUnavailable")
    else:
        shown = {"Type": kind or "", "RollingUpdate": rolling}
        if rolling is not None:
            shown["RollingUpdate"] = {
                "Partition": rolling.get("partition", 0),
                "MaxUnavailable": rolling.get("maxUnavailable"),
            }
        out.invalid("spec.updateStrategy", shown, "must be 'RollingUpdate' or 'OnDelete'")


def _check_stateful_template(out: FieldErrorList, spec: Tree, template: Tree) -> None:
    metadata = template.get("metadata") or {}
    labels = metadata.get("labels") or {}
    if not selector_is_empty(spec.get("selector")) and not selector_matches(spec.get("selector"), labels):
        out.invalid("spec.template.metadata.labels", sorted_map(labels), _SELECTOR_MISMATCH)
    pod = {name: value for name, value in (template.get("spec") or {}).items() if name not in ("hostname", "subdomain")}
    claims = [(claim.get("metadata") or {}).get("name", "") for claim in spec.get("volumeClaimTemplates") or ()]
    if claims:
        own = [volume for volume in pod.get("volumes", ()) if volume.get("name") not in claims]
        given = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in dict.fromkeys(claims)]
        pod["volumes"] = [*given, *own]
    check_template(out, {**template, "spec": pod}, "spec.template")
    check_labels(out, labels, "spec.template.labels")
    check_annotations(out, metadata.get("annotations") or {}, "spec.template.annotations")


def check_stateful_set_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    _check_stateful_set_spec(out, item["spec"])
    new, before = ({k: v for k, v in each["spec"].items() if k not in _STATEFUL_SET_MUTABLE} for each in (item, old))
    if new != before:
        allowed = (
            "'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', "
            "'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds'"
        )
        out.forbidden("spec", f"updates to statefulset spec for fields other than {allowed} are forbidden")


# Revisions and budgets.


def check_controller_revision(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    if item.get("revision", 0) < 0:
        out.invalid("revision", item["revision"], NEGATIVE)
    if item.get("data") is None:
        out.required("data", "data is mandatory")
    elif not isinstance(item["data"], dict):
        out.required("data", "data must be a valid JSON object")


def check_controller_revision_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    if item.get("revision", 0) < 0:
        out.invalid("revision", item["revision"], NEGATIVE)
    check_immutable(out, item.get("data"), old.get("data"), "data")


def check_pod_disruption_budget(out: FieldErrorList, item: Tree) -> None:
    spec = item["spec"]
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        shown = {
            "MinAvailable": spec["minAvailable"],
            "Selector": spec.get("selector"),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        out.invalid("spec", shown, "minAvailable and maxUnavailable cannot be both set")
    for name in ("minAvailable", "maxUnavailable"):
        if (value := spec.get(name)) is not None:
            check_int_or_percent(out, value, f"spec.{name}")
            check_at_most_100_percent(out, value, f"spec.{name}")
    check_selector(out, spec.get("selector"), "spec.selector")
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in ("AlwaysAllow", "IfHealthyBudget"):
        out.unsupported("spec.unhealthyPodEvictionPolicy", policy, ("AlwaysAllow", "IfHealthyBudget"))


def check_new_pod_disruption_budget(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], path_segment, namespaced=True, kube=False)
    check_pod_disruption_budget(out, item)


def check_pod_disruption_budget_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    check_pod_disruption_budget(out, item)
