"""Validation of Jobs and CronJobs on create and update."""

from __future__ import annotations

import re
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.go_struct_text import struct_text
from bayplan.apiserver.validation.metadata import (
    check_immutable,
    check_metadata,
    check_metadata_update,
    check_same_selector,
    check_selector,
    normalize_selector,
    selector_matches,
    sorted_map,
)
from bayplan.apiserver.validation.names import dns_label, dns_subdomain, label_key, pattern_problem
from bayplan.apiserver.validation.pods.pod_spec import check_template
from bayplan.apiserver.validation.workloads import check_non_negative
from bayplan.codec.cron import schedule_error, time_zone_error
from bayplan.codec.field_errors import INVALID, FieldError, FieldErrorList
from bayplan.codec.go_text import quote

MAX_PARALLELISM_INDEXED = 100_000
_LEGACY_UID_LABEL = "controller-uid"
_PREFIX = "batch.kubernetes.io/"
_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_INDEXED_ONLY = "requires indexed completion mode"
_HTTP_PATH = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
_ZONED = re.compile(r"^(?:CRON_)?TZ=\S+ ")
_is_http_path = re.compile(_HTTP_PATH).fullmatch


def check_job(out: FieldErrorList, job: Tree, *, prefixed: bool = True) -> None:
    """`prefixed` is false for jobs that were stored without the labels that have a prefix."""
    metadata, spec = job["metadata"], job["spec"]
    check_metadata(out, metadata, dns_subdomain, namespaced=True)
    _check_generated(out, job, prefixed=prefixed)
    _check_job_spec(out, spec)
    completions = spec.get("completions")
    if spec.get("completionMode") == "Indexed" and completions is not None and completions > 0:
        last = f"{metadata.get('name', '')}-{completions - 1}"
        if dns_label(last):
            rule = f"will not able to create pod with invalid DNS label: {last}"
            out.invalid("metadata.name", metadata.get("name", ""), rule)


def _check_generated(out: FieldErrorList, job: Tree, *, prefixed: bool = True) -> None:
    """Require the labels and the selector that the server generates, unless `manualSelector` is set."""
    spec = job["spec"]
    if spec.get("manualSelector") or spec.get("selector") is None:
        return
    metadata = job["metadata"]
    uid, name = metadata.get("uid", ""), metadata.get("name", "")
    labels = (spec.get("template", {}).get("metadata") or {}).get("labels") or {}
    generated = {_LEGACY_UID_LABEL: uid, "job-name": name}
    prefixes = ("", _PREFIX) if prefixed else ("",)
    expected = {f"{prefix}{key}": value for prefix in prefixes for key, value in generated.items()}
    where = "spec.template.metadata.labels"
    for key, value in expected.items():
        if key not in labels:
            out.required(f"{where}[{key}]", f"must be '{value}'")
        elif labels[key] != value:
            out.invalid(f"{where}[{key}]", sorted_map(labels), f"must be '{value}'")
    malformed = FieldErrorList()
    check_selector(malformed, spec["selector"], "")
    if not malformed and not selector_matches(spec["selector"], expected):
        out.invalid("spec.selector", normalize_selector(spec["selector"]), "`selector` not auto-generated")


def _check_job_spec(out: FieldErrorList, spec: Tree) -> None:
    check_job_details(out, spec, "spec")
    selector = spec.get("selector")
    if selector is None:
        out.required("spec.selector")
    before = len(out)
    check_selector(out, selector, "spec.selector")
    labels = (spec.get("template", {}).get("metadata") or {}).get("labels") or {}
    if len(out) == before and not selector_matches(selector, labels):
        out.invalid("spec.template.metadata.labels", sorted_map(labels), "`selector` does not match template `labels`")


def check_job_details(out: FieldErrorList, spec: Tree, path: str) -> None:
    """Check what Jobs and the job templates of CronJobs have in common."""
    numbers = ("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished")
    check_non_negative(out, spec, *numbers, "backoffLimitPerIndex", "maxFailedIndexes", path=path)
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        out.required(f"{path}.backoffLimitPerIndex", "when maxFailedIndexes is specified")
    if (manager := spec.get("managedBy")) is not None:
        check_domain_path(out, manager, f"{path}.managedBy")
        if len(manager) > 63:
            out.too_long(f"{path}.managedBy", 63)
    _check_completion(out, spec, path)
    if (policy := spec.get("podFailurePolicy")) is not None:
        _check_failure_policy(out, spec, policy, f"{path}.podFailurePolicy")
    if (policy := spec.get("successPolicy")) is not None:
        _check_success_policy(out, spec, policy, f"{path}.successPolicy")
    _check_replacement(out, spec, f"{path}.podReplacementPolicy")
    template = spec.get("template") or {}
    check_template(out, template, f"{path}.template")
    restart = (template.get("spec") or {}).get("restartPolicy", "")
    where = f"{path}.template.spec.restartPolicy"
    if restart in ("Always", ""):
        out.required(where, 'valid values: "OnFailure", "Never"')
    elif restart not in ("OnFailure", "Never"):
        out.unsupported(where, restart, ("OnFailure", "Never"))
    elif spec.get("podFailurePolicy") is not None and restart != "Never":
        out.invalid(where, restart, 'only "Never" is supported when podFailurePolicy is specified')


def check_domain_path(out: FieldErrorList, text: str, path: str) -> None:
    """`example.com/some/path`."""
    host, slash, rest = text.partition("/")
    if not text:
        out.required(path)
    elif not (slash and host and rest):
        out.invalid(path, text, 'must be a domain-prefixed path (such as "acme.io/foo")')
    else:
        out.each_invalid(path, host, dns_subdomain(host))
        if not _is_http_path(rest):
            out.invalid(path, rest, pattern_problem("Invalid path", _HTTP_PATH))


def _check_completion(out: FieldErrorList, spec: Tree, path: str) -> None:
    mode, completions = spec.get("completionMode"), spec.get("completions")
    failed = spec.get("maxFailedIndexes")
    if mode is not None and mode not in ("NonIndexed", "Indexed"):
        out.unsupported(f"{path}.completionMode", mode, ("NonIndexed", "Indexed"))
    if mode == "Indexed":
        if completions is None:
            out.required(f"{path}.completions", "when completion mode is Indexed")
        if spec.get("parallelism", 0) > MAX_PARALLELISM_INDEXED:
            rule = f"must be less than or equal to {MAX_PARALLELISM_INDEXED} when completion mode is Indexed"
            out.invalid(f"{path}.parallelism", spec["parallelism"], rule)
        if completions is not None and failed is not None and failed > completions:
            out.invalid(f"{path}.maxFailedIndexes", failed, "must be less than or equal to completions")
    elif mode in (None, "NonIndexed"):
        for name in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if spec.get(name) is not None:
                out.invalid(f"{path}.{name}", spec[name], _INDEXED_ONLY)


def _check_replacement(out: FieldErrorList, spec: Tree, path: str) -> None:
    policy = spec.get("podReplacementPolicy")
    known = ("Failed",) if spec.get("podFailurePolicy") is not None else ("Failed", "TerminatingOrFailed")
    if policy is not None and policy not in known:
        out.unsupported(path, policy, known)


def _quoted_list(values: tuple[str, ...]) -> str:
    return f"valid values: [{' '.join(map(quote, values))}]"


def _invalid_without_value(out: FieldErrorList, path: str, detail: str) -> None:
    out.append(FieldError(path, INVALID, "", detail))


def _check_failure_policy(out: FieldErrorList, spec: Tree, policy: Tree, path: str) -> None:
    pod = (spec.get("template") or {}).get("spec") or {}
    names = {each.get("name") for key in ("containers", "initContainers") for each in pod.get(key) or ()}
    rules = policy.get("rules") or ()
    if len(rules) > 20:
        out.too_many(f"{path}.rules", len(rules), 20)
    for index, rule in enumerate(rules):
        where, action = f"{path}.rules[{index}]", rule.get("action", "")
        if not action:
            out.required(f"{where}.action", _quoted_list(_ACTIONS))
        elif action == "FailIndex":
            if spec.get("backoffLimitPerIndex") is None:
                out.invalid(f"{where}.action", action, "requires the backoffLimitPerIndex to be set")
        elif action not in _ACTIONS:
            out.unsupported(f"{where}.action", action, _ACTIONS)
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions") or ()
        if codes is not None:
            _check_exit_codes(out, codes, names, f"{where}.onExitCodes")
        for at, condition in enumerate(conditions):
            _check_condition(out, condition, f"{where}.onPodConditions[{at}]")
        if codes is not None and conditions:
            _invalid_without_value(out, where, "specifying both OnExitCodes and OnPodConditions is not supported")
        if codes is None and not conditions:
            _invalid_without_value(out, where, "specifying one of OnExitCodes and OnPodConditions is required")


def _check_exit_codes(out: FieldErrorList, codes: Tree, names: set[Any], path: str) -> None:
    operator, values = codes.get("operator", ""), codes.get("values") or []
    if not operator:
        out.required(f"{path}.operator", _quoted_list(("In", "NotIn")))
    elif operator not in ("In", "NotIn"):
        out.unsupported(f"{path}.operator", operator, ("In", "NotIn"))
    if codes.get("containerName") is not None and codes["containerName"] not in names:
        rule = "must be one of the container or initContainer names in the pod template"
        out.invalid(f"{path}.containerName", codes["containerName"], rule)
    if not values:
        out.invalid(f"{path}.values", None, "at least one value is required")
    elif len(values) > 255:
        out.too_many(f"{path}.values", len(values), 255)
    for index, value in enumerate(values):
        if operator == "In" and value == 0:
            out.invalid(f"{path}.values[{index}]", value, "must not be 0 for the In operator")
        if value in values[:index]:
            out.duplicate(f"{path}.values[{index}]", value)
    if values != sorted(values):
        out.invalid(f"{path}.values", values, "must be ordered")


def _check_condition(out: FieldErrorList, condition: Tree, path: str) -> None:
    kind, status = condition.get("type", ""), condition.get("status", "")
    out.each_invalid(f"{path}.type", kind, label_key(kind))
    if status not in ("False", "True", "Unknown"):
        out.unsupported(f"{path}.status", status, ("False", "True", "Unknown"))


def _check_success_policy(out: FieldErrorList, spec: Tree, policy: Tree, path: str) -> None:
    rules = policy.get("rules") or ()
    if spec.get("completionMode", "NonIndexed") != "Indexed":
        shown = [
            {"SucceededIndexes": r.get("succeededIndexes"), "SucceededCount": r.get("succeededCount")} for r in rules
        ]
        out.invalid(path, {"Rules": shown or None}, _INDEXED_ONLY)
        return
    if not rules:
        out.required(f"{path}.rules", "at least one rules must be specified when the successPolicy is specified")
    for index, rule in enumerate(rules):
        _check_success_rule(out, rule, spec.get("completions") or 0, f"{path}.rules[{index}]")


def _check_success_rule(out: FieldErrorList, rule: Tree, completions: int, path: str) -> None:
    indexes, count = rule.get("succeededIndexes"), rule.get("succeededCount")
    if indexes is None and count is None:
        out.required(path, "at least one of succeededCount or succeededIndexes must be specified")
    total = 0
    if indexes is not None:
        total, problem = _indexes(indexes, completions)
        if problem:
            out.invalid(f"{path}.succeededIndexes", indexes, f"error parsing succeededIndexes: {problem}")
    if count is not None:
        check_non_negative(out, rule, "succeededCount", path=path)
        if count > completions:
            rule_text = f"must be less than or equal to {completions} (the number of specified completions)"
            out.invalid(f"{path}.succeededCount", count, rule_text)
        if indexes is not None and count > total:
            known = "the number of indexes in the specified succeededIndexes field"
            out.invalid(f"{path}.succeededCount", count, f"must be less than or equal to {total} ({known})")


def _indexes(text: str, completions: int) -> tuple[int, str]:
    """The number of indexes in a text such as `0-2,5`, or the error of the text."""
    total, last = 0, -1
    for interval in text.split(",") if text else ():
        ends = interval.split("-")
        if len(ends) > 2:
            rule = "violates the requirement that an index interval can have at most two parts separated by '-'"
            return 0, f"the fragment {quote(interval)} {rule}"
        for end in ends:
            if not (end.isascii() and end.isdigit()):
                return 0, f"cannot convert string to integer for index: {quote(end)}"
            if int(end) >= completions:
                return 0, f"too large index: {quote(end)}"
        low, high = int(ends[0]), int(ends[-1])
        if low > high or (len(ends) == 2 and low == high):
            return 0, f"non-increasing order, previous: {low}, current: {high}"
        if last >= low:
            return 0, f"non-increasing order, previous: {last}, current: {low}"
        total, last = total + high - low + 1, high
    return total, ""


def check_job_update(out: FieldErrorList, job: Tree, old: Tree) -> None:
    stored = (old["spec"].get("template", {}).get("metadata") or {}).get("labels") or {}
    check_job(out, job, prefixed=f"{_PREFIX}job-name" in stored)
    check_metadata_update(out, job["metadata"], old["metadata"])
    spec, before = job["spec"], old["spec"]
    if spec.get("completionMode") != "Indexed":
        check_immutable(out, spec.get("completions"), before.get("completions"), "spec.completions")
    elif spec.get("completions") not in (None, before.get("completions"), spec.get("parallelism")):
        rule = "can only be modified in tandem with spec.parallelism"
        out.invalid("spec.completions", spec["completions"], rule)
    check_same_selector(out, spec, before)
    _check_template_update(out, job, old)
    for name in ("completionMode", "backoffLimitPerIndex", "managedBy"):
        check_immutable(out, spec.get(name), before.get(name), f"spec.{name}")
    for name, kind in (("podFailurePolicy", "batch.PodFailurePolicy"), ("successPolicy", "batch.SuccessPolicy")):
        if spec.get(name) != before.get(name):
            shown = struct_text(kind, spec[name]) if name in spec else None
            out.invalid(f"spec.{name}", shown, "field is immutable")


_SCHEDULING_DIRECTIVES = ("nodeSelector", "tolerations", "schedulingGates")


def _check_template_update(out: FieldErrorList, job: Tree, old: Tree) -> None:
    """Check the pod template. A suspended Job may still change scheduling directives and resources."""
    new, before = job["spec"].get("template") or {}, old["spec"].get("template") or {}
    waits = bool(old["spec"].get("suspend")) and not (old.get("status") or {}).get("startTime")
    if waits:
        pod_new, pod_old = dict(new.get("spec") or {}), dict(before.get("spec") or {})
        for pod in (pod_new, pod_old):
            for name in _SCHEDULING_DIRECTIVES:
                pod.pop(name, None)
            other_affinity = {k: v for k, v in (pod.pop("affinity", None) or {}).items() if k != "nodeAffinity"}
            pod["affinity"] = other_affinity
            for name in ("containers", "initContainers"):
                pod[name] = [{k: v for k, v in each.items() if k != "resources"} for each in pod.get(name) or ()]
        if pod_new != pod_old:
            out.invalid("spec.template.spec", struct_text("core.PodSpec", new.get("spec")), "field is immutable")
    elif new != before:
        out.invalid("spec.template", struct_text("core.PodTemplateSpec", new), "field is immutable")


def check_cron_job(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=True)
    _check_cron_spec(out, item["spec"], None)
    name = item["metadata"].get("name", "")
    if len(name) > 52:
        out.invalid("metadata.name", name, "must be no more than 52 characters")


def check_cron_job_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"])
    _check_cron_spec(out, item["spec"], old["spec"])


def _check_cron_spec(out: FieldErrorList, spec: Tree, old: Tree | None) -> None:
    schedule = spec.get("schedule", "")
    if not schedule:
        out.required("spec.schedule")
    else:
        if problem := schedule_error(_ZONED.sub("", schedule)):
            out.invalid("spec.schedule", schedule, problem)
        if "TZ" in schedule and "TZ" not in (old or {}).get("schedule", ""):
            rule = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
            out.invalid("spec.schedule", schedule, rule)
    check_non_negative(out, spec, "startingDeadlineSeconds")
    zone = spec.get("timeZone")
    if zone is not None and (old is None or old.get("timeZone") != zone) and (problem := time_zone_error(zone)):
        out.invalid("spec.timeZone", zone, problem)
    policy = spec.get("concurrencyPolicy")
    if policy not in ("Allow", "Forbid", "Replace"):
        out.unsupported("spec.concurrencyPolicy", policy or "", ("Allow", "Forbid", "Replace"))
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    check_job_details(out, job, "spec.jobTemplate.spec")
    if job.get("selector") is not None:
        out.invalid(
            "spec.jobTemplate.spec.selector", normalize_selector(job["selector"]), "`selector` will be auto-generated"
        )
    if job.get("manualSelector"):
        out.unsupported("spec.jobTemplate.spec.manualSelector", True, ("nil", "false"))
    check_non_negative(out, spec, "successfulJobsHistoryLimit", "failedJobsHistoryLimit")
