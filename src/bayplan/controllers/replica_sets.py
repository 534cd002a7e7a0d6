"""Are there as many pods as a ReplicaSet asks for? Makes what is missing, deletes what is too much.

Which pods go first is upstream's order: those without a node, not running, not ready, cheap to delete, on a node with
more of the same, young. A sync costs a walk over the set's own pods.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from bayplan.controllers.controller import Controller, first_fault, slowly
from bayplan.controllers.expectations import Expectations
from bayplan.controllers.owning import claimed, count_of, generated_prefix, owner_reference, pod_of, selector_of
from bayplan.controllers.seen import PODS, REPLICA_SETS, SeenPod, Tree, Whole
from bayplan.controllers.world import Key, World
from bayplan.errors import ApiError, Forbidden, NotFound
from bayplan.objects.meta import whole_time

BURST = 500
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


class ReplicaSets(Controller):
    """Keeps the number of pods of every ReplicaSet."""

    name = "replicaset-controller"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sets = self.feed(REPLICA_SETS, Whole)
        self.pods = self.feed(PODS, SeenPod)
        self.expected = Expectations(world.clock)
        self.sets.listen(self._on_set)
        self.pods.listen(self._on_pod)

    # What is heard.

    def _on_set(self, old: Whole | None, new: Whole | None) -> None:
        if new is None and old is not None:
            self.expected.forget(old.uid)
        self.enqueue(old, new)

    def _on_pod(self, old: SeenPod | None, new: SeenPod | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        if old is not None and new is not None and old.metadata.owner_references != new.metadata.owner_references:
            self._wake(old)
        owner = pod.metadata.controller
        if owner is None:
            if new is not None and (old is None or old.labels != new.labels or old.metadata.controller is not None):
                self._wake_adopters(new)
            return
        if owner.kind != "ReplicaSet":
            return
        if old is None:
            self.expected.saw_new(owner.uid)
        if new is None or new.terminating:
            self.expected.saw_end(owner.uid, pod.uid)
        self._wake(pod)

    def _wake(self, pod: SeenPod) -> None:
        owner = pod.metadata.controller
        if owner is not None and owner.kind == "ReplicaSet":
            self.queue.add((pod.namespace, owner.name))

    def _wake_adopters(self, pod: SeenPod) -> None:
        for each in self.sets.within(pod.namespace):
            if selector_of(each).matches(pod.labels):
                self.enqueue(None, each)

    # What is done.

    async def sync(self, key: Key) -> float | None:
        found = self.sets.get(*key)
        if found is None:
            return None
        pods = await claimed(
            self.client, self.pods, REPLICA_SETS, found, selector_of(found), wanted=lambda pod: not pod.finished
        )
        pods = [pod for pod in pods if pod.active]
        failure: BaseException | None = None
        if self.expected.settled(found.uid) and not found.terminating:
            try:
                await self._manage(found, pods)
            except ApiError as fault:
                failure = fault
        now = self.clock.now()
        status = _status(found, pods, self._terminating(found), failure, now)
        await self.write_status(REPLICA_SETS, found, status)
        if failure is not None:
            raise failure
        return _next_look(pods, found.spec.get("minReadySeconds") or 0, now)

    def _terminating(self, found: Whole) -> int:
        return count_of(self.pods.owned_by(found.uid), lambda pod: pod.terminating and not pod.finished)

    async def _manage(self, found: Whole, pods: Sequence[SeenPod]) -> None:
        missing = int(found.spec.get("replicas", 1)) - len(pods)
        if missing > 0:
            await self._create(found, min(missing, BURST))
        elif missing < 0:
            ranked = sorted(pods, key=_ranking(self._related(found), self.clock.now()))
            await self._remove(found, ranked[: min(-missing, BURST)])

    async def _create(self, found: Whole, count: int) -> None:
        owner = owner_reference(REPLICA_SETS, found)
        body = pod_of(found.spec.get("template") or {}, owner, generate=generated_prefix(found.name))
        self.expected.creating(found.uid, count)

        async def one(_: int) -> None:
            try:
                made = await self.client.created(SeenPod, body, namespace=found.namespace, resource=PODS)
            except ApiError as fault:
                self.expected.not_created(found.uid)
                if not _namespace_ends(fault):
                    self.say(REPLICA_SETS, found, "FailedCreate", f"Error creating: {fault.details}", warning=True)
                raise
            self.say(REPLICA_SETS, found, "SuccessfulCreate", f"Created pod: {made.name}")

        done, faults = await slowly(count, one)
        self.expected.not_created(found.uid, count - done - len(faults))
        if faults and not all(_namespace_ends(fault) for fault in faults):
            first_fault(faults)

    async def _remove(self, found: Whole, pods: Iterable[SeenPod]) -> None:
        chosen = list(pods)
        for pod in chosen:
            self.expected.deleting(found.uid, pod.uid)

        async def one(index: int) -> None:
            pod = chosen[index]
            try:
                await self.client.delete(PODS, namespace=pod.namespace, name=pod.name, uid=pod.uid)
            except NotFound:
                self.expected.saw_end(found.uid, pod.uid)
            except ApiError as fault:
                self.expected.saw_end(found.uid, pod.uid)
                self.say(REPLICA_SETS, found, "FailedDelete", f"Error deleting: {fault.details}", warning=True)
                raise
            else:
                self.say(REPLICA_SETS, found, "SuccessfulDelete", f"Deleted pod: {pod.name}")

        done, faults = await slowly(len(chosen), one, first=16)
        for pod in chosen[done + len(faults) :] if faults else ():
            self.expected.saw_end(found.uid, pod.uid)
        first_fault(faults)

    def _related(self, found: Whole) -> Counter[str]:
        """How many pods each node has of all the sets of this one's owner."""
        owner = found.metadata.controller
        sets = self.sets.owned_by(owner.uid) if owner is not None else [found]
        on_nodes: Counter[str] = Counter()
        for each in sets:
            on_nodes.update(pod.spec.node_name for pod in self.pods.owned_by(each.uid) if pod.active)
        return on_nodes


def _namespace_ends(fault: BaseException) -> bool:
    """Whether the namespace is being deleted: nothing can be made there, and nothing need be said of it."""
    return isinstance(fault, Forbidden) and "being terminated" in str(fault)


def _ranking(on_nodes: Counter[str], now: datetime) -> Any:
    """Smaller goes first."""

    def rank(pod: SeenPod) -> tuple[object, ...]:
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
    """Doublings of its age: pods that are about as old are alike, so that no single node is emptied first."""
    if since is None:
        return -1.0
    age_ns = (now - since).total_seconds() * 1e9
    return math.floor(math.log2(age_ns)) if age_ns >= 1 else 0.0


def deletion_cost(pod: SeenPod) -> int:
    """What its author says that losing it costs; nonsense costs nothing."""
    text = pod.metadata.annotations.get(DELETION_COST, "0")
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit()) or (len(digits) > 1 and digits.startswith("0")):
        return 0
    cost = int(text)
    return cost if -(2**31) <= cost < 2**31 else 0


def _status(
    found: Whole, pods: Sequence[SeenPod], terminating: int, failure: BaseException | None, now: datetime
) -> Tree:
    labels = (found.spec.get("template") or {}).get("metadata", {}).get("labels") or {}
    min_ready_s = found.spec.get("minReadySeconds") or 0
    status: Tree = {
        "replicas": len(pods),
        "fullyLabeledReplicas": count_of(pods, lambda pod: labels.items() <= pod.labels.items()),
        "readyReplicas": count_of(pods, lambda pod: pod.ready),
        "availableReplicas": count_of(pods, lambda pod: pod.available_in_s(min_ready_s, now) == 0.0),
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


def _failure(found: Whole, pods: Sequence[SeenPod], failure: BaseException, now: datetime) -> Tree:
    before = next((each for each in found.status.get("conditions") or () if each["type"] == "ReplicaFailure"), None)
    if before is not None:
        return dict(before)
    fewer = int(found.spec.get("replicas", 1)) > len(pods)
    return {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate" if fewer else "FailedDelete",
        "message": getattr(failure, "details", str(failure)),
        "lastTransitionTime": whole_time(now),
    }


def _next_look(pods: Sequence[SeenPod], min_ready_s: int, now: datetime) -> float | None:
    """When the next pod becomes available by the passing of time alone."""
    waits = [wait for pod in pods if (wait := pod.available_in_s(min_ready_s, now))]
    return min(waits) if waits else None
