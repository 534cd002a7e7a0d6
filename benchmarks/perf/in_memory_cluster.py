"""A cluster in memory with a scheduler: objects change, pods are tried, victims are deleted, pods are requeued.

Called by the operations of a benchmark. `step` makes one attempt and carries out its decision; `busy_s` counts the time
of the scheduler, for attempts and for the handling of changes, without the creation of the objects.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from bayplan.app import configured, known_plugins
from bayplan.cache import Cache
from bayplan.clock import SystemClock
from bayplan.errors import BayplanError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.status import Status
from bayplan.framework.runtime.object_changes import cluster_events_of_change
from bayplan.objects.core import Node, Pod
from bayplan.objects.defaults import with_defaults, with_identity, with_priority
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceSlice
from bayplan.scheduler.cycle.schedule_result import ScheduleResult
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import PodInfo
from bayplan.testing.recorded_writes import with_recorded_writes
from benchmarks.perf.controllers import ClaimController, PerformedWrites, TaintController
from benchmarks.perf.pending_pods import PendingPods
from benchmarks.perf.templates import Names

GONE = datetime(2026, 1, 1, tzinfo=UTC)
PROFILE = "default-scheduler"


class AttemptFailed(BayplanError):
    """An attempt ended with an error, which no benchmark expects."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt and its time."""

    pod: Pod
    node: str | None
    took_us: float
    status: Status


class _Engine(PodEngine):
    """Keeps the cycle of the pod that was just placed, for the binding that follows."""

    last_cycle: Cycle | None = None

    def place(self, pod: Pod | PodInfo) -> ScheduleResult:
        placed = super().place(pod)
        self.last_cycle = placed.assumed.cycle if placed.assumed is not None else None
        return placed


class InMemoryCluster:
    """The cluster, its scheduler, and its in-memory API server and controllers."""

    def __init__(self, config: str | None = None, *, seed: int = 0, names: Names | None = None) -> None:
        self.names = names or Names()
        writes = PerformedWrites(self.names)
        registry = with_recorded_writes(writes, known_plugins())
        self.cache = Cache()
        self.engine = _Engine(
            configured(config, registry), registry, self.cache, clock=SystemClock(), chance=random.Random(seed)
        )
        self._framework = self.engine.framework(PROFILE)
        self.line = PendingPods(self._framework.profile.registered_events)
        self.claims = ClaimController(self, self.names)
        self.taints = TaintController()
        writes.changes = self
        self._writes = writes
        self.pods: dict[str, Pod] = {}  # by namespace/name, in the current state
        self.attempted: set[str] = set()  # by uid
        self.scheduled: Counter[str] = Counter()  # by namespace: pods that have a node
        self.last_refusal = ""
        self.busy_s = 0.0
        self._busy = False

    # objects ----------------------------------------------------------------------------------------------------

    def create(self, item: KubeObject) -> KubeObject:
        """Create an object; return its stored form."""
        known = with_defaults(with_identity(item))
        if isinstance(known, Pod):
            return self._create_pod(known)
        if not isinstance(known, Node):
            self.put(known)
            return known
        with self._at_work():
            self.cache.add_node(known)
            self._tell(None, known)
        return known

    def update(self, item: KubeObject) -> None:
        """Update an object; the state that only the cluster sets is kept."""
        known = with_defaults(with_identity(item))
        if isinstance(known, Pod):
            self._update_pod(known)
        elif isinstance(known, Node):
            with self._at_work():
                old = self.cache.node(known.name)
                self.cache.update_node(known)
                self._tell(old, known)
        else:
            self.put(known)

    def delete(self, item: KubeObject) -> None:
        """Delete an object, with its grace period: the benchmark has no kubelet that ends containers."""
        if isinstance(item, Pod):
            self._delete_pod(item)
        elif isinstance(item, Node):
            with self._at_work():
                self.cache.remove_node(item.name)
                self._tell(item, None)
        else:
            self.drop(item)

    def put(self, item: KubeObject) -> None:
        """Add or update any object except a pod or a node."""
        if isinstance(item, ResourceSlice):
            item = self.taints.tainted(item)
        with self._at_work():
            old = self.cache.catalog.table(type(item)).get(item.key)
            self.cache.upsert(item)
            self._tell(old, item)

    def drop(self, item: KubeObject) -> None:
        """Delete any object except a pod or a node."""
        with self._at_work():
            self.cache.delete(item)
            self._tell(item, None)

    # pods -------------------------------------------------------------------------------------------------------

    def _create_pod(self, pod: Pod) -> Pod:
        pod = with_priority(pod, self.cache.catalog.priority_classes)
        pod = self.claims.with_claims(pod)
        self.pods[pod.key] = pod
        with self._at_work():
            if pod.spec.node_name:
                self.scheduled[pod.namespace] += 1
                self.cache.add_pod(pod)
                self._tell(None, pod)
            else:
                self._enqueue(self.engine.prepare(pod))
        return pod

    def _update_pod(self, pod: Pod) -> None:
        old = self.pods[pod.key]
        new = with_priority(
            replace(pod, metadata=replace(pod.metadata, uid=old.uid), status=old.status),
            self.cache.catalog.priority_classes,
        )
        if old.spec.node_name:
            new = new.bound_to(old.spec.node_name)
        self._replace_pod(old, new)

    def _replace_pod(self, old: Pod, new: Pod) -> None:
        self.pods[new.key] = new
        with self._at_work():
            if old.spec.node_name:
                if self.cache.is_assumed(old.uid):
                    self.cache.add_pod(old)  # the pod watch would have confirmed the assumed pod long ago
                self.cache.update_pod(new)
                self._tell(old, new)
                return
            events = cluster_events_of_change(old, new)
            waits_on = self.line.is_parked(old.uid) and not any(
                self.line.helps(old.uid, event, old, new) for event in events
            )
            if not waits_on:
                self.line.drop(old.uid)
                self._enqueue(self.engine.prepare(new))

    def _delete_pod(self, pod: Pod) -> None:
        known = self.pods.get(pod.key)
        if known is None:
            return
        lingers = known.spec.node_name and known.spec.termination_grace_period_seconds
        if known.metadata.finalizers or lingers:
            self._terminate(known)
        else:
            self.remove_pod(known)

    def _terminate(self, pod: Pod) -> None:
        """The pod gets a deletion timestamp and stays."""
        marked = replace(pod, metadata=replace(pod.metadata, deletion_timestamp=GONE))
        if pod.spec.node_name:
            self._replace_pod(pod, marked)
        else:
            self.pods[pod.key] = marked
            self.line.drop(pod.uid)

    def remove_pod(self, pod: Pod) -> None:
        """The pod is deleted at once."""
        known = self.pods.pop(pod.key)
        with self._at_work():
            self.engine.nominator.delete_nomination(known.uid)
            if known.spec.node_name:
                self.scheduled[known.namespace] -= 1
                self.cache.remove_pod(known)
            else:
                self.line.drop(known.uid)
            self._tell(known, None)
        self.claims.release(known)

    # attempts ---------------------------------------------------------------------------------------------------

    def step(self) -> Attempt | None:
        """One attempt for the first active pod; None if no pod can be tried."""
        with self._at_work():
            info = self.line.next()
            if info is None:
                return None
            start = perf_counter()
            placed = self.engine.place(info)
            took_us = 1e6 * (perf_counter() - start)
            self.attempted.add(info.uid)
            if placed.node is None:
                self._refused(info, placed)
            else:
                self._bound(info, placed.node)
        return Attempt(info.pod, placed.node, took_us, placed.status)

    def _bound(self, info: PodInfo, node: str) -> None:
        cycle = self.engine.last_cycle
        assert cycle is not None
        committing = self._framework.binding_points
        plan = committing.plan_pre_bind(cycle, node)
        status = plan.status
        if status.ok and plan.has_work:
            status = _finished(committing.pre_bind(cycle, node, plan, _one_by_one))
        if not status.ok:
            raise AttemptFailed(f"pod {info.key} cannot be bound to {node}: {status.message}")
        bound = info.pod.bound_to(node)
        self.pods[bound.key] = bound
        self.scheduled[bound.namespace] += 1
        self._tell(None, bound)

    def _refused(self, info: PodInfo, placed: ScheduleResult) -> None:
        decision, pod = placed.decision, info.pod
        self.last_refusal = f"{info.key}: {placed.status.message}"
        if decision.diagnosis is None:
            raise AttemptFailed(f"pod {self.last_refusal}")
        if decision.nominated_node_name is not None and decision.nominated_node_name != pod.status.nominated_node_name:
            pod = replace(pod, status=replace(pod.status, nominated_node_name=decision.nominated_node_name))
            self.pods[pod.key] = pod
            info = self.engine.prepare(pod)
            self.engine.nominator.nominate(info, decision.nominated_node_name)
        self.line.park(info, frozenset(decision.diagnosis.unschedulable_plugins))
        for intent in decision.writes:
            self._writes.submit(intent)

    def clear_nomination(self, pod: Pod) -> None:
        """The pod is no longer nominated for a node."""
        self.engine.nominator.delete_nomination(pod.uid)
        known = self.pods.get(pod.key)
        if known is not None and known.status.nominated_node_name:
            self._replace_pod(known, replace(known, status=replace(known.status, nominated_node_name="")))

    def _enqueue(self, info: PodInfo) -> None:
        if info.pod.terminating:
            return
        gate = self._framework.pre_enqueue(info.pod)
        if gate.ok:
            self.line.enter(info)
        else:
            self.attempted.add(info.uid)
            self.line.park(info, frozenset({gate.plugin}))

    def _tell(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """Requeue the pods that a change may make schedulable."""
        if self.line.parked:
            for event in cluster_events_of_change(old, new):
                for info in self.line.woken(event, old, new):
                    self._enqueue(info)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Count the time as busy, once if nested."""
        if self._busy:
            yield
            return
        self._busy = True
        start = perf_counter()
        try:
            yield
        finally:
            self.busy_s += perf_counter() - start
            self._busy = False


async def _one_by_one(calls: Sequence[Awaitable[Status]]) -> Sequence[Status]:
    return [await call for call in calls]


def _finished(work: Coroutine[Any, Any, Status]) -> Status:
    """Run a coroutine that never suspends to its end: the writes complete at once."""
    try:
        work.send(None)
    except StopIteration as done:
        status: Status = done.value
        return status
    raise AttemptFailed("a plugin waits for an event that does not happen in this benchmark")
