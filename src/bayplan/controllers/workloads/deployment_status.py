"""State of a rollout and its next sizes, computed from a Deployment and its ReplicaSets. Pure functions.

Used by `deployments`. Numbers, conditions, annotations and texts are upstream's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from bayplan.controllers.core.api_types import Tree, UntypedObject
from bayplan.controllers.core.int_or_percent import scaled_value
from bayplan.objects.meta import format_time

REVISION = "deployment.kubernetes.io/revision"
REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAX = "deployment.kubernetes.io/max-replicas"
HASH = "pod-template-hash"
_NOT_COPIED = {
    "kubectl.kubernetes.io/last-applied-configuration",
    *(REVISION, REVISION_HISTORY, DESIRED, MAX),
    "deprecated.deployment.rollback.to",
}
_NO_DEADLINE = 2**31 - 1

PROGRESSING, AVAILABLE, FAILURE = "Progressing", "Available", "ReplicaFailure"
TIMED_OUT = "ProgressDeadlineExceeded"
NEW_AVAILABLE = "NewReplicaSetAvailable"


# Sizes.


def replicas(item: UntypedObject) -> int:
    return int(item.spec.get("replicas", 1))


def status_number(item: UntypedObject, field: str) -> int:
    return int(item.status.get(field) or 0)


def total_replicas(sets: Iterable[UntypedObject]) -> int:
    return sum(replicas(each) for each in sets)


def active_sets(sets: Iterable[UntypedObject]) -> list[UntypedObject]:
    return [each for each in sets if replicas(each) > 0]


def is_rolling(deployment: UntypedObject) -> bool:
    return bool(_strategy(deployment).get("type", "RollingUpdate") == "RollingUpdate")


def _strategy(deployment: UntypedObject) -> Tree:
    return deployment.spec.get("strategy") or {}


def max_surge(deployment: UntypedObject) -> int:
    return _surge_and_unavailable(deployment)[0]


def max_unavailable(deployment: UntypedObject) -> int:
    if not is_rolling(deployment) or not replicas(deployment):
        return 0
    return min(_surge_and_unavailable(deployment)[1], replicas(deployment))


def _surge_and_unavailable(deployment: UntypedObject) -> tuple[int, int]:
    """Return maxSurge and maxUnavailable; at least one of them is positive."""
    if not is_rolling(deployment):
        return 0, 0
    rolling_update = _strategy(deployment).get("rollingUpdate") or {}
    surge = scaled_value(rolling_update.get("maxSurge", "25%"), replicas(deployment), round_up=True)
    unavailable = scaled_value(rolling_update.get("maxUnavailable", "25%"), replicas(deployment), round_up=False)
    return surge, unavailable if surge or unavailable else 1


def new_set_size(deployment: UntypedObject, all_sets: Iterable[UntypedObject], current: int) -> int:
    """Allowed size of the new ReplicaSet."""
    wanted = replicas(deployment)
    if not is_rolling(deployment):
        return wanted
    room = wanted + max_surge(deployment) - total_replicas(all_sets)
    return current + min(room, wanted - current) if room > 0 else current


def proportional_sizes(deployment: UntypedObject, sets: Sequence[UntypedObject]) -> dict[str, int]:
    """Sizes of the ReplicaSets, by name, when the deployment is scaled during a rollout."""
    wanted = replicas(deployment)
    allowed = wanted + max_surge(deployment) if wanted > 0 else 0
    adding = allowed - total_replicas(sets)
    ordered = sorted(sets, key=lambda each: (-replicas(each), *_age(each, newer_first=adding > 0)))
    sizes: dict[str, int] = {}
    added = 0
    for each in ordered:
        share = _share(each, deployment, adding, added) if adding else 0
        sizes[each.name] = replicas(each) + share
        added += share
    if ordered and adding:
        first = ordered[0].name
        sizes[first] = max(0, sizes[first] + adding - added)
    return sizes


def _age(item: UntypedObject, *, newer_first: bool) -> tuple[float, str]:
    created = item.metadata.creation_timestamp
    seconds = created.timestamp() if created is not None else 0.0
    return (-seconds if newer_first else seconds), item.name


def _share(item: UntypedObject, deployment: UntypedObject, adding: int, added: int) -> int:
    if not replicas(item) or adding == added:
        return 0
    allowed = adding - added
    fraction = _fraction(item, deployment)
    return min(fraction, allowed) if adding > 0 else max(fraction, allowed)


def _fraction(item: UntypedObject, deployment: UntypedObject) -> int:
    size = replicas(item)
    if not replicas(deployment):
        return -size
    max_replicas = replicas(deployment) + max_surge(deployment)
    before = number(item, MAX)
    before = status_number(deployment, "replicas") if before is None else before
    if not before:
        return 0
    return (2 * size * max_replicas + before) // (2 * before) - size


def number(item: UntypedObject, annotation: str) -> int | None:
    """Number in an annotation; None when it is not one."""
    text = item.metadata.annotations.get(annotation, "")
    return int(text) if text.isascii() and text.isdigit() else None


def resized_annotations(deployment: UntypedObject) -> dict[str, str]:
    """Annotations with the deployment's size, for all its ReplicaSets."""
    wanted = replicas(deployment)
    return {DESIRED: str(wanted), MAX: str(wanted + max_surge(deployment))}


# Revisions.


def revision(item: UntypedObject) -> int:
    return number(item, REVISION) or 0


def set_annotations(
    deployment: UntypedObject, current_annotations: dict[str, str], newest: int, *, exists: bool
) -> dict[str, str]:
    """Annotations of the new ReplicaSet."""
    wanted = {
        **current_annotations,
        **{k: v for k, v in deployment.metadata.annotations.items() if k not in _NOT_COPIED},
    }
    text = current_annotations.get(REVISION, "")
    before = int(text) if text.isascii() and text.isdigit() else 0
    if before < newest:
        wanted[REVISION] = str(newest)
        if text:
            wanted[REVISION_HISTORY] = ",".join(filter(None, (current_annotations.get(REVISION_HISTORY, ""), text)))
    return wanted if exists else {**wanted, **resized_annotations(deployment)}


def same_template(one: Tree, other: Tree) -> bool:
    return _template_without_hash(one) == _template_without_hash(other)


def _template_without_hash(template: Tree) -> Tree:
    meta = {key: value for key, value in (template.get("metadata") or {}).items() if value}
    labels = {key: value for key, value in (meta.pop("labels", None) or {}).items() if key != HASH}
    return {"labels": labels, "metadata": meta, "spec": template.get("spec")}


# Status.


def status_of(
    deployment: UntypedObject, all_sets: Sequence[UntypedObject], new: UntypedObject | None, now: datetime
) -> Tree:
    """Counters of the status, and condition Available."""
    available, created = (
        sum(status_number(each, field) for each in all_sets) for field in ("availableReplicas", "replicas")
    )
    status: Tree = {
        "observedGeneration": deployment.metadata.generation,
        "replicas": created,
        "updatedReplicas": status_number(new, "replicas") if new is not None else 0,
        "readyReplicas": sum(status_number(each, "readyReplicas") for each in all_sets),
        "availableReplicas": available,
        "unavailableReplicas": max(0, created - available),
        "collisionCount": status_number(deployment, "collisionCount"),
    }
    status = {key: value for key, value in status.items() if value}
    terminating = sum(status_number(each, "terminatingReplicas") for each in all_sets)
    if terminating or "terminatingReplicas" in deployment.status:
        status["terminatingReplicas"] = terminating
    enough = available >= replicas(deployment) - max_unavailable(deployment)
    outcome = (
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        if enough
        else ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    )
    status["conditions"] = with_condition(deployment.status.get("conditions") or [], AVAILABLE, *outcome, now)
    return status


def condition(conditions: Iterable[Tree], kind: str) -> Tree | None:
    return next((each for each in conditions if each["type"] == kind), None)


def without(conditions: Iterable[Tree], kind: str) -> list[Tree]:
    return [each for each in conditions if each["type"] != kind]


def with_condition(
    conditions: Sequence[Tree], kind: str, status: str, reason: str, message: str, now: datetime
) -> list[Tree]:
    """Set a condition. One with the same status and reason stays unchanged."""
    before = condition(conditions, kind)
    if before is not None and (before["status"], before.get("reason")) == (status, reason):
        return list(conditions)
    moment = format_time(now)
    since = before["lastTransitionTime"] if before is not None and before["status"] == status else moment
    created = {"type": kind, "status": status, "reason": reason, "message": message}
    return [*without(conditions, kind), {**created, "lastUpdateTime": moment, "lastTransitionTime": since}]


def deadline_s(deployment: UntypedObject) -> int | None:
    found = deployment.spec.get("progressDeadlineSeconds")
    return None if found is None or found == _NO_DEADLINE else int(found)


def is_complete(deployment: UntypedObject, status: Tree) -> bool:
    wanted = replicas(deployment)
    numbers = [status.get(key, 0) for key in ("updatedReplicas", "replicas", "availableReplicas")]
    return numbers == [wanted] * 3 and status.get("observedGeneration", 0) >= deployment.metadata.generation


def _progresses(before: Tree, after: Tree) -> bool:
    def old_replicas(status: Tree) -> int:
        return int(status.get("replicas", 0)) - int(status.get("updatedReplicas", 0))

    counters = ("updatedReplicas", "readyReplicas", "availableReplicas")
    return old_replicas(after) < old_replicas(before) or any(after.get(key, 0) > before.get(key, 0) for key in counters)


def _timed_out(deployment: UntypedObject, conditions: Iterable[Tree], now: datetime) -> bool:
    found = condition(conditions, PROGRESSING)
    if found is None or found.get("reason") == NEW_AVAILABLE:
        return False
    if found.get("reason") == TIMED_OUT:
        return True
    return progress_deadline_in_s(deployment, conditions, now) < 0


def progress_deadline_in_s(deployment: UntypedObject, conditions: Iterable[Tree], now: datetime) -> float:
    """Seconds until the progress deadline, counted from the last progress."""
    found, limit = condition(conditions, PROGRESSING), deadline_s(deployment)
    if found is None or limit is None:
        return float("inf")
    since = datetime.fromisoformat(found["lastUpdateTime"])
    return (since + timedelta(seconds=limit) - now).total_seconds()


def with_progress(deployment: UntypedObject, status: Tree, new: UntypedObject | None, now: datetime) -> list[Tree]:
    """Set condition Progressing."""
    conditions: list[Tree] = status["conditions"]
    if deadline_s(deployment) is None:
        return without(conditions, PROGRESSING)
    found = condition(conditions, PROGRESSING)
    is_finished = found is not None and found.get("reason") == NEW_AVAILABLE
    if is_finished and status.get("replicas", 0) == status.get("updatedReplicas", 0):
        return conditions
    subject = f'ReplicaSet "{new.name}"' if new is not None else f'Deployment "{deployment.name}"'
    if is_complete(deployment, status):
        return with_condition(
            conditions, PROGRESSING, "True", NEW_AVAILABLE, f"{subject} has successfully progressed.", now
        )
    if _progresses(deployment.status, status):
        progressing = {
            "type": PROGRESSING,
            "status": "True",
            "reason": "ReplicaSetUpdated",
            "message": f"{subject} is progressing.",
        }
        moment = format_time(now)
        since = found["lastTransitionTime"] if found is not None and found["status"] == "True" else moment
        changed = {**progressing, "lastUpdateTime": moment, "lastTransitionTime": since}
        return [*without(conditions, PROGRESSING), changed]
    if _timed_out(deployment, conditions, now):
        message = f"{subject} has timed out progressing."
        return with_condition(conditions, PROGRESSING, "False", TIMED_OUT, message, now)
    return conditions


def with_failures(
    conditions: list[Tree], sets: Iterable[UntypedObject], new: UntypedObject | None, now: datetime
) -> list[Tree]:
    """Copy condition ReplicaFailure from a ReplicaSet, the new one first."""
    ordered = sorted(sets, key=lambda each: new is None or each.uid != new.uid)
    for each in ordered:
        found = condition(each.status.get("conditions") or (), FAILURE)
        if found is not None:
            return with_condition(
                conditions, FAILURE, found["status"], found.get("reason", ""), found.get("message", ""), now
            )
    return without(conditions, FAILURE)
