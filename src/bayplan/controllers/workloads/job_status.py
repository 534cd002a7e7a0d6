"""Status of a Job: counts, indexes, failure policies and conditions, as upstream has them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from bayplan.controllers.core.api_types import ContainerStatusFields, PodFields, Tree, UntypedObject
from bayplan.objects.meta import format_time

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
BACKOFF_LIMIT = 6


@dataclass(frozen=True, slots=True)
class JobOutcome:
    succeeded: bool
    reason: str
    message: str


# Conditions.


def condition(job: UntypedObject, kind: str) -> Tree | None:
    return next((each for each in job.status.get("conditions") or () if each["type"] == kind), None)


def has_condition(job: UntypedObject, kind: str) -> bool:
    found = condition(job, kind)
    return found is not None and found["status"] == "True"


def is_finished(job: UntypedObject) -> bool:
    return has_condition(job, "Complete") or has_condition(job, "Failed")


def make_condition(kind: str, status: str, reason: str, message: str, now: datetime) -> Tree:
    moment = format_time(now)
    times = {"lastProbeTime": moment, "lastTransitionTime": moment}
    return {"type": kind, "status": status, **times, "reason": reason, "message": message}


def with_suspension(conditions: Sequence[Tree], *, suspended: bool, now: datetime) -> list[Tree]:
    """Update the Suspended condition. A job that was never suspended gets no Resumed condition."""
    before = next((each for each in conditions if each["type"] == "Suspended"), None)
    wanted = "True" if suspended else "False"
    if (before is None and not suspended) or (before is not None and before["status"] == wanted):
        return list(conditions)
    outcome = ("JobSuspended", "Job suspended") if suspended else ("JobResumed", "Job resumed")
    other_conditions = [each for each in conditions if each["type"] != "Suspended"]
    return [*other_conditions, make_condition("Suspended", wanted, *outcome, now)]


# Pods.


def index_of(pod: PodFields) -> int | None:
    text = pod.metadata.annotations.get(INDEX, "")
    return int(text) if text.isascii() and text.isdigit() else None


def replaces_failed_only(job: UntypedObject) -> bool:
    policy = job.spec.get("podReplacementPolicy")
    return bool(policy == "Failed") if policy else job.spec.get("podFailurePolicy") is not None


def has_failed(job: UntypedObject, pod: PodFields) -> bool:
    """Whether the pod counts as failed. A deleted pod does, unless podReplacementPolicy is Failed."""
    if pod.status.phase == "Failed":
        return True
    return pod.terminating and pod.status.phase != "Succeeded" and not replaces_failed_only(job)


def finish_time(pod: PodFields, now: datetime) -> datetime:
    """Finish time of a pod, from its containers, its deletion or `now`."""
    ends = [
        each.state.terminated.finished_at
        for each in pod.status.container_statuses
        if each.state.terminated is not None and each.state.terminated.finished_at is not None
    ]
    return max(ends, default=pod.metadata.deletion_timestamp or now)


def restarts(pods: Iterable[PodFields]) -> int:
    return sum(
        each.restart_count
        for pod in pods
        for each in (*pod.status.container_statuses, *pod.status.init_container_statuses)
    )


# Indexes.


def parse_indexes(text: str | None, completions: int) -> set[int]:
    """Parse `0-2,5`; indexes above the current number of completions are dropped."""
    found: set[int] = set()
    for part in (text or "").split(","):
        low, _, high = part.partition("-")
        if low.isdigit():
            found.update(range(int(low), min(int(high or low), completions - 1) + 1))
    return {each for each in found if each < completions}


def format_indexes(indexes: Iterable[int]) -> str:
    """Format indexes as `0-2,5`; two neighbours are separated by a comma."""
    runs: list[list[int]] = []
    for each in sorted(indexes):
        if runs and runs[-1][1] == each - 1:
            runs[-1][1] = each
        else:
            runs.append([each, each])
    parts = [str(low) if low == high else f"{low},{high}" if high == low + 1 else f"{low}-{high}" for low, high in runs]
    return ",".join(parts)


def first_pending(used: set[int], count: int, completions: int) -> list[int]:
    found: list[int] = []
    for index in range(completions):
        if len(found) == count:
            break
        if index not in used:
            found.append(index)
    return found


# Failure policies.


@dataclass(frozen=True, slots=True)
class PolicyMatch:
    """Action of the failure policy for a pod, with its message."""

    action: str
    message: str = ""


COUNT_FAILURE = PolicyMatch("Count")


def match_failure_policy(job: UntypedObject, pod: PodFields) -> PolicyMatch:
    rules = (job.spec.get("podFailurePolicy") or {}).get("rules") or ()
    for number, rule in enumerate(rules):
        if (codes := rule.get("onExitCodes")) is not None:
            found = _exit_code(pod, codes)
            if found is not None:
                name, code = found.name, found.state.terminated.exit_code if found.state.terminated else 0
                what = f"Container {name} for pod {pod.namespace}/{pod.name} failed with exit code {code}"
                return PolicyMatch(rule["action"], f"{what} matching {rule['action']} rule at index {number}")
        elif _matching_condition(pod, rule.get("onPodConditions") or ()) is not None:
            kind = _matching_condition(pod, rule.get("onPodConditions") or ())
            what = f"Pod {pod.namespace}/{pod.name} has condition {kind}"
            return PolicyMatch(rule["action"], f"{what} matching {rule['action']} rule at index {number}")
    return COUNT_FAILURE


def _exit_code(pod: PodFields, codes: Tree) -> ContainerStatusFields | None:
    for each in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        ended = each.state.terminated
        if ended is None or not ended.exit_code or codes.get("containerName") not in (None, each.name):
            continue
        if (ended.exit_code in codes["values"]) == (codes["operator"] == "In"):
            return each
    return None


def _matching_condition(pod: PodFields, patterns: Iterable[Tree]) -> str | None:
    for pattern in patterns:
        found = pod.condition(pattern["type"])
        if found is not None and found.status == pattern.get("status", "True"):
            return str(pattern["type"])
    return None


# Outcomes.


def check_success_policy(job: UntypedObject, succeeded: set[int]) -> JobOutcome | None:
    """Check the job's success policy with the succeeded indexes."""
    for number, rule in enumerate((job.spec.get("successPolicy") or {}).get("rules") or ()):
        wanted, count = rule.get("succeededIndexes"), rule.get("succeededCount")
        matching = succeeded
        if wanted is not None:
            indexes = parse_indexes(wanted, int(job.spec.get("completions") or 0))
            matching = succeeded & indexes
            count = len(indexes) if count is None else count
        if count is not None and len(matching) >= count:
            return JobOutcome(True, "SuccessPolicy", f"Matched rules at index {number}")
    return None


def deadline_in_s(job: UntypedObject, start: datetime | None, now: datetime) -> float | None:
    """Seconds until activeDeadlineSeconds is over."""
    limit = job.spec.get("activeDeadlineSeconds")
    if limit is None or start is None or job.spec.get("suspend"):
        return None
    return float(limit) - (now - start).total_seconds()
