"""How far is a rollout, and what may it do next? Pure arithmetic on a Deployment and its ReplicaSets.

Asked by `deployments`. Numbers, conditions, annotations and texts are upstream's.
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


# Sizes


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
    """How many pods too many there may be, and how many too few: one of the two at least."""
    if not is_rolling(deployment):
        return 0, 0
    told_ = _strategy(deployment).get("rollingUpdate") or {}
    surge = scaled_value(told_.get("maxSurge", "25%"), replicas(deployment), round_up=True)
    unavailable = scaled_value(told_.get("maxUnavailable", "25%"), replicas(deployment), round_up=False)
    return surge, unavailable if surge or unavailable else 1


def new_set_size(deployment: UntypedObject, all_sets: Iterable[UntypedObject], current: int) -> int:
    """How large the set of the new template may be now."""
    wanted = replicas(deployment)
    if not is_rolling(deployment):
        return wanted
    room = wanted + max_surge(deployment) - total_replicas(all_sets)
    return current + min(room, wanted - current) if room > 0 else current


def proportional_sizes(deployment: UntypedObject, sets: Sequence[UntypedObject]) -> dict[str, int]:
    """The size of each set when the deployment is scaled in the middle of a rollout, by name."""
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
    made = item.metadata.creation_timestamp
    seconds = made.timestamp() if made is not None else 0.0
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
    most = replicas(deployment) + max_surge(deployment)
    before = number(item, MAX)
    before = status_number(deployment, "replicas") if before is None else before
    if not before:
        return 0
    return (2 * size * most + before) // (2 * before) - size


def number(item: UntypedObject, annotation: str) -> int | None:
    """A whole number in an annotation."""
    text = item.metadata.annotations.get(annotation, "")
    return int(text) if text.isascii() and text.isdigit() else None


def resized_annotations(deployment: UntypedObject) -> dict[str, str]:
    """What every set is told of the deployment's size."""
    wanted = replicas(deployment)
    return {DESIRED: str(wanted), MAX: str(wanted + max_surge(deployment))}


# Revisions


def revision(item: UntypedObject) -> int:
    return number(item, REVISION) or 0


def set_annotations(deployment: UntypedObject, have: dict[str, str], newest: int, *, exists: bool) -> dict[str, str]:
    """The annotations of the set of the new template."""
    wanted = {**have, **{k: v for k, v in deployment.metadata.annotations.items() if k not in _NOT_COPIED}}
    text = have.get(REVISION, "")
    before = int(text) if text.isascii() and text.isdigit() else 0
    if before < newest:
        wanted[REVISION] = str(newest)
        if text:
            wanted[REVISION_HISTORY] = ",".join(filter(None, (have.get(REVISION_HISTORY, ""), text)))
    return wanted if exists else {**wanted, **resized_annotations(deployment)}


def same_template(one: Tree, other: Tree) -> bool:
    return _template_without_hash(one) == _template_without_hash(other)


def _template_without_hash(template: Tree) -> Tree:
    meta = {key: value for key, value in (template.get("metadata") or {}).items() if value}
    labels = {key: value for key, value in (meta.pop("labels", None) or {}).items() if key != HASH}
    return {"labels": labels, "metadata": meta, "spec": template.get("spec")}


# Status


def status_of(
    deployment: UntypedObject, all_sets: Sequence[UntypedObject], new: UntypedObject | None, now: datetime
) -> Tree:
    """The numbers, and whether enough pods are available."""
    available, made = (
        sum(status_number(each, field) for each in all_sets) for field in ("availableReplicas", "replicas")
    )
    status: Tree = {
        "observedGeneration": deployment.metadata.generation,
        "replicas": made,
        "updatedReplicas": status_number(new, "replicas") if new is not None else 0,
        "readyReplicas": sum(status_number(each, "readyReplicas") for each in all_sets),
        "availableReplicas": available,
        "unavailableReplicas": max(0, made - available),
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
    """The conditions with this one; one that says the same for the same reason stays as it is."""
    before = condition(conditions, kind)
    if before is not None and (before["status"], before.get("reason")) == (status, reason):
        return list(conditions)
    moment = format_time(now)
    since = before["lastTransitionTime"] if before is not None and before["status"] == status else moment
    made = {"type": kind, "status": status, "reason": reason, "message": message}
    return [*without(conditions, kind), {**made, "lastUpdateTime": moment, "lastTransitionTime": since}]


def deadline_s(deployment: UntypedObject) -> int | None:
    found = deployment.spec.get("progressDeadlineSeconds")
    return None if found is None or found == _NO_DEADLINE else int(found)


def is_complete(deployment: UntypedObject, status: Tree) -> bool:
    wanted = replicas(deployment)
    numbers = [status.get(key, 0) for key in ("updatedReplicas", "replicas", "availableReplicas")]
    return numbers == [wanted] * 3 and status.get("observedGeneration", 0) >= deployment.metadata.generation


def _progresses(before: Tree, after: Tree) -> bool:
    def olds(status: Tree) -> int:
        return int(status.get("replicas", 0)) - int(status.get("updatedReplicas", 0))

    grown = ("updatedReplicas", "readyReplicas", "availableReplicas")
    return olds(after) < olds(before) or any(after.get(key, 0) > before.get(key, 0) for key in grown)


def _timed_out(deployment: UntypedObject, conditions: Iterable[Tree], now: datetime) -> bool:
    found = condition(conditions, PROGRESSING)
    if found is None or found.get("reason") == NEW_AVAILABLE:
        return False
    if found.get("reason") == TIMED_OUT:
        return True
    return progress_deadline_in_s(deployment, conditions, now) < 0


def progress_deadline_in_s(deployment: UntypedObject, conditions: Iterable[Tree], now: datetime) -> float:
    """How long until the deadline, counted from the last progress."""
    found, limit = condition(conditions, PROGRESSING), deadline_s(deployment)
    if found is None or limit is None:
        return float("inf")
    since = datetime.fromisoformat(found["lastUpdateTime"])
    return (since + timedelta(seconds=limit) - now).total_seconds()


def with_progress(deployment: UntypedObject, status: Tree, new: UntypedObject | None, now: datetime) -> list[Tree]:
    """The conditions with what is to be said of the rollout's progress."""
    conditions: list[Tree] = status["conditions"]
    if deadline_s(deployment) is None:
        return without(conditions, PROGRESSING)
    found = condition(conditions, PROGRESSING)
    settled = found is not None and found.get("reason") == NEW_AVAILABLE
    if settled and status.get("replicas", 0) == status.get("updatedReplicas", 0):
        return conditions
    who = f'ReplicaSet "{new.name}"' if new is not None else f'Deployment "{deployment.name}"'
    if is_complete(deployment, status):
        return with_condition(
            conditions, PROGRESSING, "True", NEW_AVAILABLE, f"{who} has successfully progressed.", now
        )
    if _progresses(deployment.status, status):
        told_ = {
            "type": PROGRESSING,
            "status": "True",
            "reason": "ReplicaSetUpdated",
            "message": f"{who} is progressing.",
        }
        moment = format_time(now)
        since = found["lastTransitionTime"] if found is not None and found["status"] == "True" else moment
        changed = {**told_, "lastUpdateTime": moment, "lastTransitionTime": since}
        return [*without(conditions, PROGRESSING), changed]
    if _timed_out(deployment, conditions, now):
        message = f"{who} has timed out progressing."
        return with_condition(conditions, PROGRESSING, "False", TIMED_OUT, message, now)
    return conditions


def with_failures(
    conditions: list[Tree], sets: Iterable[UntypedObject], new: UntypedObject | None, now: datetime
) -> list[Tree]:
    """The conditions with what keeps a set from making pods, the new one's first."""
    ordered = sorted(sets, key=lambda each: new is None or each.uid != new.uid)
    for each in ordered:
        found = condition(each.status.get("conditions") or (), FAILURE)
        if found is not None:
            return with_condition(
                conditions, FAILURE, found["status"], found.get("reason", ""), found.get("message", ""), now
            )
    return without(conditions, FAILURE)
