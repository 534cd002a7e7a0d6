"""ReplicaSet controller: creates missing pods and deletes surplus ones.

The deletion order is upstream's: pods without a node, not running, not ready, with low deletion cost, on a node with
more related pods, young. A sync walks the set's own pods.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from bayplan.controllers.core.api_types import REPLICA_SETS, PodFields, Tree, UntypedObject
from bayplan.controllers.core.owner_refs import count_where, generated_prefix, owner_reference, pod_from_template
from bayplan.controllers.core.shared_informers import Key
from bayplan.controllers.workloads.owned_pods import OwnedPodsController
from bayplan.errors import ApiError
from bayplan.objects.meta import format_time

BURST = 500
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


class ReplicaSetController(OwnedPodsController):
    name = "replicaset-controller"
    resource = REPLICA_SETS

    async def sync(self, key: Key) -> float | None:
        found = self.owners.get(*key)
        if found is None:
            return None
        pods = [pod for pod in await self.claim_pods(found) if pod.active]
        failure: ApiError | None = None
        if self.expectations.satisfied(found.uid) and not found.terminating:
            try:
                await self._manage(found, pods)
            except ApiError as fault:
                failure = fault
        now = self.clock.now()
        await self.write_status(REPLICA_SETS, found, _status(found, pods, self._terminating(found), failure, now))
        if failure is not None:
            raise failure
        return _next_available_s(pods, found.spec.get("minReadySeconds") or 0, now)

    def _terminating(self, found: UntypedObject) -> int:
        return count_where(self.pods.owned_by(found.uid), lambda pod: pod.terminating and not pod.finished)

    async def _manage(self, found: UntypedObject, pods: Sequence[PodFields]) -> None:
        missing = int(found.spec.get("replicas", 1)) - len(pods)
        if missing > 0:
            owner = owner_reference(REPLICA_SETS, found)
            body = pod_from_template(found.spec.get("template") or {}, owner, generate=generated_prefix(found.name))
            await self.create_pods(found, [body] * min(missing, BURST))
        elif missing < 0:
            ranked = sorted(pods, key=_deletion_rank(self._count_related_pods(found), self.clock.now()))
            await self.delete_pods(found, ranked[: min(-missing, BURST)])

    def _count_related_pods(self, found: UntypedObject) -> Counter[str]:
        """Number of pods per node of all ReplicaSets with the same owner."""
        owner = found.metadata.controller
        sets = self.owners.owned_by(owner.uid) if owner is not None else [found]
        on_nodes: Counter[str] = Counter()
        for each in sets:
            on_nodes.update(pod.spec.node_name for pod in self.pods.owned_by(each.uid) if pod.active)
        return on_nodes


def _deletion_rank(on_nodes: Counter[str], now: datetime) -> Any:
    """Sort key of the deletion order; the smallest is deleted first."""

    def rank(pod: PodFields) -> tuple[object, ...]:
        ready = pod.ready_since
        created = pod.metadata.creation_timestamp
        restarts = max((each.restart_count for each in pod.status.container_statuses), default=0)
        return (
            bool(pod.spec.node_name),
            _PHASES.get(pod.status.phase, 0),
            pod.ready,
            deletion_cost(pod),
            -on_nodes[pod.spec.node_name],
            _age_class(ready, now),
            -restarts,
            _age_class(created, now),
            pod.uid,
        )

    return rank


def _age_class(since: datetime | None, now: datetime) -> float:
    """Logarithm of the age: pods of similar age count as equal, so that no single node is emptied first."""
    if since is None:
        return -1.0
    age_ns = (now - since).total_seconds() * 1e9
    return math.floor(math.log2(age_ns)) if age_ns >= 1 else 0.0


def deletion_cost(pod: PodFields) -> int:
    """Value of the pod-deletion-cost annotation; invalid text counts as 0."""
    text = pod.metadata.annotations.get(DELETION_COST, "0")
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit()) or (len(digits) > 1 and digits.startswith("0")):
        return 0
    cost = int(text)
    return cost if -(2**31) <= cost < 2**31 else 0


def _status(
    found: UntypedObject, pods: Sequence[PodFields], terminating: int, failure: ApiError | None, now: datetime
) -> Tree:
    labels = (found.spec.get("template") or {}).get("metadata", {}).get("labels") or {}
    min_ready_s = found.spec.get("minReadySeconds") or 0
    status: Tree = {
        "replicas": len(pods),
        "fullyLabeledReplicas": count_where(pods, lambda pod: labels.items() <= pod.labels.items()),
        "readyReplicas": count_where(pods, lambda pod: pod.ready),
        "availableReplicas": count_where(pods, lambda pod: pod.available_in_s(min_ready_s, now) == 0.0),
        "observedGeneration": found.metadata.generation,
    }
    if "terminatingReplicas" in found.status or terminating:
        status["terminatingReplicas"] = terminating
    conditions = [each for each in found.status.get("conditions") or () if each["type"] != "ReplicaFailure"]
    if failure is not None:
        conditions.append(_failure(found, pods, failure, now))
    if conditions:
        status["conditions"] = conditions
    return {key: value for key, value in status.items() if value != 0 or key in ("replicas", "terminatingReplicas")}


def _failure(found: UntypedObject, pods: Sequence[PodFields], failure: ApiError, now: datetime) -> Tree:
    before = next((each for each in found.status.get("conditions") or () if each["type"] == "ReplicaFailure"), None)
    if before is not None:
        return dict(before)
    fewer = int(found.spec.get("replicas", 1)) > len(pods)
    return {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate" if fewer else "FailedDelete",
        "message": failure.details,
        "lastTransitionTime": format_time(now),
    }


def _next_available_s(pods: Sequence[PodFields], min_ready_s: int, now: datetime) -> float | None:
    """Seconds until the next pod becomes available without an event."""
    waits = [wait for pod in pods if (wait := pod.available_in_s(min_ready_s, now))]
    return min(waits) if waits else None
