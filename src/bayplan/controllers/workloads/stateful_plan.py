"""What is the next step of a StatefulSet? A pure function of the set, its pods and its two revisions.

Ordered sets get one step at a time and wait for it to be ready; parallel ones get all. The status counts what the steps
will have done, as upstream's does.
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
    """Make the pod of this number."""

    ordinal: int
    revision: str


@dataclass(frozen=True, slots=True)
class DeleteSetPod:
    """Delete this pod; `scaled_down`: its number is not wanted any more."""

    pod: PodFields
    scaled_down: bool = False
    reason: str = ""
    note: str = ""


@dataclass(slots=True)
class StatefulSetPlan:
    status: Tree
    steps: list[CreateSetPod | DeleteSetPod] = field(default_factory=list)
    again_s: float | None = None
    """After how long a pod becomes available by the passing of time alone."""


def plan(found: UntypedObject, pods: Sequence[PodFields], current: str, update: str, now: datetime) -> StatefulSetPlan:
    """The steps that may be taken now, and the status after them."""
    planner = _StatefulSetPlanner(found, pods, current, update, now)
    planner.decide()
    return StatefulSetPlan(planner.status(), planner.steps, planner.again_s)


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
        self._made: list[str] = []
        self._gone: list[PodFields] = []
        self.steps: list[CreateSetPod | DeleteSetPod] = []
        self.again_s: float | None = None

    # Health.

    def _available(self, pod: PodFields) -> bool:
        wait_s = pod.available_in_s(self._min_ready_s, self._now) if pod.status.phase == "Running" else None
        if wait_s:
            self.again_s = wait_s if self.again_s is None else min(self.again_s, wait_s)
        return wait_s == 0.0

    def _healthy(self, pod: PodFields | None) -> bool:
        return pod is not None and not pod.terminating and self._available(pod)

    # Decisions.

    def decide(self) -> None:
        if self._scale_up() or self._scale_down():
            return
        self._rolling_update()

    def _scale_up(self) -> bool:
        """Make what is missing and what has ended; true when everything further has to wait."""
        for number, pod in self._replicas:
            if pod is None:
                revision = self._revision_for(number)
                self.steps.append(CreateSetPod(number, revision))
                self._made.append(revision)
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
        """Delete from the highest number down; true when everything further has to wait."""
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
            self._delete(pod, for_good=True)
            if self._ordered:
                return True
        return False

    def _rolling_update(self) -> None:
        """Replace what is not of the new revision, from the highest number down to the partition."""
        strategy = self._set.spec.get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return
        told = strategy.get("rollingUpdate") or {}
        partition = int(told.get("partition") or 0)
        most = max(1, scaled_value(told.get("maxUnavailable", 1), self._wanted, round_up=True))
        kept = [pod for number, pod in self._replicas if number - self._start >= partition]
        down = sum(1 for _, pod in self._replicas if not self._healthy(pod))
        for pod in reversed(kept):
            fresh = pod is not None and pod.labels.get(HASH_LABEL) == self._update
            if pod is None or pod.terminating or fresh:
                if most == 1 and not self._healthy(pod):
                    return
                continue
            if self._healthy(pod):
                if down >= most:
                    return
                down += 1
            self._delete(pod)
            if most == 1:
                return

    def _delete(self, pod: PodFields, *, for_good: bool = False, reason: str = "", note: str = "") -> None:
        self.steps.append(DeleteSetPod(pod, for_good, reason, note))
        self._gone.append(pod)

    def _revision_for(self, number: int) -> str:
        """A pod that is missing below the partition, or that a rollout has not reached, is made as it was."""
        strategy = self._set.spec.get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return self._update
        told = strategy.get("rollingUpdate") or {}
        partition = int(told.get("partition") or 0)
        if partition:
            return self._current if number < self._start + partition else self._update
        current = int(self._set.status.get("currentReplicas") or 0)
        return self._current if number < self._start + current else self._update

    # The status.

    def status(self) -> Tree:
        gone = {pod.uid for pod in self._gone}
        there = [pod for pod in self._pods if pod.status.phase]
        of = [pod.labels.get(HASH_LABEL) for pod in there if pod.uid not in gone and not pod.terminating] + self._made
        ready = [pod for pod in there if pod.status.phase == "Running" and pod.ready]
        numbers = {
            "replicas": len(there) + len(self._made),
            "readyReplicas": len(ready),
            "availableReplicas": sum(1 for pod in ready if self._available(pod)),
            "currentReplicas": of.count(self._current),
            "updatedReplicas": of.count(self._update),
        }
        current = self._current
        rolling = (self._set.spec.get("updateStrategy") or {}).get("type", "RollingUpdate") == "RollingUpdate"
        reached = [numbers[key] for key in ("updatedReplicas", "replicas", "readyReplicas")]
        if rolling and reached == [self._wanted] * 3:
            current, numbers["currentReplicas"] = self._update, numbers["updatedReplicas"]
        status: Tree = {key: value for key, value in numbers.items() if value or key in _ALWAYS}
        status |= {"currentRevision": current, "updateRevision": self._update}
        status["observedGeneration"] = self._set.metadata.generation
        status["collisionCount"] = int(self._set.status.get("collisionCount") or 0)
        return status | {key: value for key, value in self._set.status.items() if key == "conditions"}


_ALWAYS = ("replicas", "availableReplicas")
