"""Next steps of a StatefulSet, as a pure function of the set, its pods and its two revisions.

With OrderedReady there is one step at a time, which waits for readiness; Parallel has no waits. The status counts the
steps as done, as upstream does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from bayplan.controllers.core.api_types import PodFields, Tree, UntypedObject
from bayplan.controllers.core.int_or_percent import scaled_value
from bayplan.controllers.workloads.controller_revisions import HASH_LABEL
from bayplan.controllers.workloads.stateful_pods import first_ordinal, ordinal_of


@dataclass(frozen=True, slots=True)
class CreateSetPod:
    ordinal: int
    revision: str


@dataclass(frozen=True, slots=True)
class DeleteSetPod:
    """Delete this pod. `scaled_down`: its ordinal is not needed any more."""

    pod: PodFields
    scaled_down: bool = False
    reason: str = ""
    note: str = ""


@dataclass(slots=True)
class StatefulSetPlan:
    status: Tree
    steps: list[CreateSetPod | DeleteSetPod] = field(default_factory=list)
    requeue_after_s: float | None = None
    """Seconds until a pod becomes available without an event."""


def plan(found: UntypedObject, pods: Sequence[PodFields], current: str, update: str, now: datetime) -> StatefulSetPlan:
    """Return the steps that may be taken now, and the status after them."""
    planner = _StatefulSetPlanner(found, pods, current, update, now)
    planner.decide()
    return StatefulSetPlan(planner.status(), planner.steps, planner.requeue_after_s)


class _StatefulSetPlanner:
    def __init__(
        self, found: UntypedObject, pods: Sequence[PodFields], current: str, update: str, now: datetime
    ) -> None:
        self._set, self._current, self._update, self._now = found, current, update, now
        self._ordered = found.spec.get("podManagementPolicy", "OrderedReady") != "Parallel"
        self._min_ready_s = int(found.spec.get("minReadySeconds") or 0)
        self._wanted = int(found.spec.get("replicas", 1))
        self._start = first_ordinal(found)
        self._pods = list(pods)
        by_number = {number: pod for pod in pods if (number := ordinal_of(found, pod.name)) is not None}
        numbers = range(self._start, self._start + self._wanted)
        self._replicas: list[tuple[int, PodFields | None]] = [(number, by_number.get(number)) for number in numbers]
        self._condemned = [by_number[number] for number in sorted(by_number, reverse=True) if number not in numbers]
        self._created_revisions: list[str] = []
        self._deleted: list[PodFields] = []
        self.steps: list[CreateSetPod | DeleteSetPod] = []
        self.requeue_after_s: float | None = None

    # Health.

    def _available(self, pod: PodFields) -> bool:
        wait_s = pod.available_in_s(self._min_ready_s, self._now) if pod.status.phase == "Running" else None
        if wait_s:
            self.requeue_after_s = wait_s if self.requeue_after_s is None else min(self.requeue_after_s, wait_s)
        return wait_s == 0.0

    def _healthy(self, pod: PodFields | None) -> bool:
        return pod is not None and not pod.terminating and self._available(pod)

    # Decisions.

    def decide(self) -> None:
        if self._scale_up() or self._scale_down():
            return
        self._rolling_update()

    def _scale_up(self) -> bool:
        """Create missing pods and recreate finished ones. Returns True when all further steps have to wait."""
        for number, pod in self._replicas:
            if pod is None:
                revision = self._revision_for(number)
                self.steps.append(CreateSetPod(number, revision))
                self._created_revisions.append(revision)
                if self._ordered:
                    return True
            elif pod.finished and not pod.terminating:
                word = "Failed" if pod.status.phase == "Failed" else "Terminated"
                note = f"StatefulSet {self._set.namespace}/{self._set.name} is recreating {word.lower()} Pod {pod.name}"
                self._delete(pod, reason=f"Recreating{word}Pod", note=note)
                if self._ordered:
                    return True
            elif self._ordered and not self._healthy(pod):
                return True
        return bool(self.steps) and self._ordered

    def _scale_down(self) -> bool:
        """Delete pods from the highest ordinal down. Returns True when all further steps have to wait."""
        unhealthy = [pod for _, pod in self._replicas if pod is not None and not self._healthy(pod)]
        unhealthy += [pod for pod in reversed(self._condemned) if not self._healthy(pod)]
        first = unhealthy[0] if unhealthy else None
        for pod in self._condemned:
            if pod.terminating:
                if self._ordered:
                    return True
                continue
            if self._ordered and not self._healthy(pod) and pod is not first:
                return True
            self._delete(pod, scaled_down=True)
            if self._ordered:
                return True
        return False

    def _rolling_update(self) -> None:
        """Replace pods of old revisions, from the highest ordinal down to the partition."""
        strategy = self._set.spec.get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return
        rolling_update = strategy.get("rollingUpdate") or {}
        partition = int(rolling_update.get("partition") or 0)
        max_unavailable = max(1, scaled_value(rolling_update.get("maxUnavailable", 1), self._wanted, round_up=True))
        updatable = [pod for number, pod in self._replicas if number - self._start >= partition]
        unavailable = sum(1 for _, pod in self._replicas if not self._healthy(pod))
        for pod in reversed(updatable):
            is_updated = pod is not None and pod.labels.get(HASH_LABEL) == self._update
            if pod is None or pod.terminating or is_updated:
                if max_unavailable == 1 and not self._healthy(pod):
                    return
                continue
            if self._healthy(pod):
                if unavailable >= max_unavailable:
                    return
                unavailable += 1
            self._delete(pod)
            if max_unavailable == 1:
                return

    def _delete(self, pod: PodFields, *, scaled_down: bool = False, reason: str = "", note: str = "") -> None:
        self.steps.append(DeleteSetPod(pod, scaled_down, reason, note))
        self._deleted.append(pod)

    def _revision_for(self, number: int) -> str:
        """Revision of a missing pod: the current one below the partition or where the rollout has not arrived."""
        strategy = self._set.spec.get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return self._update
        rolling_update = strategy.get("rollingUpdate") or {}
        partition = int(rolling_update.get("partition") or 0)
        if partition:
            return self._current if number < self._start + partition else self._update
        current = int(self._set.status.get("currentReplicas") or 0)
        return self._current if number < self._start + current else self._update

    # Status.

    def status(self) -> Tree:
        deleted = {pod.uid for pod in self._deleted}
        existing = [pod for pod in self._pods if pod.status.phase]
        revisions = [
            pod.labels.get(HASH_LABEL) for pod in existing if pod.uid not in deleted and not pod.terminating
        ] + self._created_revisions
        ready = [pod for pod in existing if pod.status.phase == "Running" and pod.ready]
        numbers = {
            "replicas": len(existing) + len(self._created_revisions),
            "readyReplicas": len(ready),
            "availableReplicas": sum(1 for pod in ready if self._available(pod)),
            "currentReplicas": revisions.count(self._current),
            "updatedReplicas": revisions.count(self._update),
        }
        current = self._current
        rolling = (self._set.spec.get("updateStrategy") or {}).get("type", "RollingUpdate") == "RollingUpdate"
        counts = [numbers[key] for key in ("updatedReplicas", "replicas", "readyReplicas")]
        if rolling and counts == [self._wanted] * 3:
            current, numbers["currentReplicas"] = self._update, numbers["updatedReplicas"]
        status: Tree = {key: value for key, value in numbers.items() if value or key in _ALWAYS}
        status |= {"currentRevision": current, "updateRevision": self._update}
        status["observedGeneration"] = self._set.metadata.generation
        status["collisionCount"] = int(self._set.status.get("collisionCount") or 0)
        return status | {key: value for key, value in self._set.status.items() if key == "conditions"}


_ALWAYS = ("replicas", "availableReplicas")
