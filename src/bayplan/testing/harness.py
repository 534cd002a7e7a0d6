"""Test harness for plugins of the pod engine: a small cluster, and queries about scheduling on it.

    cluster = Harness(plugins=[RackAware], nodes=[make_node("a"), make_node("b")])
    assert cluster.filter(make_pod()) == {"a": "ok", "b": unschedulable("node(s) are full").by("RackAware")}

It runs the real engine on a real cache, with a manual clock, seeded randomness, and writes that are recorded instead of
performed. Queries change nothing; `place` and `bind` do. Building a harness takes a few milliseconds, so each test
builds its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal

import numpy as np

from bayplan.app.configuration import configured, filled_cache
from bayplan.clock import ManualClock
from bayplan.errors import PluginError, UsageError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.events import ClusterEvent, ClusterEventWithHint, QueueingHint
from bayplan.framework.api.status import Code, Status
from bayplan.framework.runtime.binding_points import BindingPoints
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.profile import Profile
from bayplan.objects.core import Node, Pod
from bayplan.objects.defaults import with_all_defaults, with_identity, with_priority
from bayplan.objects.meta import KubeObject
from bayplan.scheduler.cycle.schedule_result import ScheduleResult, SchedulingDecision
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import NodeTable, PodInfo
from bayplan.telemetry.decision_text import decision_sentence
from bayplan.testing.builders import CREATED, as_list
from bayplan.testing.profile_config import ConfigInput, config_text, config_text_for, registry_with
from bayplan.testing.recorded_writes import RecordedWrites, with_recorded_writes

OK: Literal["ok"] = "ok"


class Harness:
    """A small cluster with a scheduler that runs the given plugins."""

    def __init__(
        self,
        plugins: Sequence[type[Any]] = (),
        *,
        nodes: Iterable[Node] = (),
        pods: Iterable[Pod] = (),
        objects: Iterable[KubeObject] = (),
        args: Mapping[str, Any] | None = None,
        weights: Mapping[str, int] | None = None,
        only: bool = False,
        config: ConfigInput | None = None,
        seed: int = 0,
        now: datetime = CREATED,
        share: bool = True,
    ) -> None:
        """Build a cluster of nodes, pods (running on their `node`, or pending) and other objects.

        The plugins are added to the default profile, with `args` and `weights` by plugin name. `only` leaves out every
        built-in plugin except a queue sort and a bind plugin. `config` (YAML text or a mapping) replaces all of this
        and names the plugins itself. With `share=False` every pod is evaluated in full, whatever the signatures are.
        """
        plugins = as_list("plugins", plugins, type, "classes, as in [RackAware]")
        nodes = as_list("nodes", nodes, Node, "what make_node makes")
        pods = as_list("pods", pods, Pod, "what make_pod makes")
        objects = as_list("objects", objects, KubeObject, "objects, such as those of make_pvc")
        registry = registry_with(plugins)
        entries = [entry for entry in registry if entry.plugin in plugins]
        if config is None:
            text = config_text_for(entries, args=args or {}, weights=weights or {}, only=only)
        elif args or weights or only:
            raise UsageError("config excludes args, weights and only; leave them out")
        else:
            text = config_text(config)
        stored = list(with_all_defaults([*nodes, *pods, *objects]))
        self.clock = ManualClock(now)
        self.writes = RecordedWrites()
        self.engine = _CycleKeepingEngine(
            configured(text, registry),
            with_recorded_writes(self.writes, registry),
            filled_cache(stored),
            clock=self.clock,
            chance=random.Random(seed),
            share=share,
        )
        self._check_plugins_extend_points([entry.name for entry in entries])
        self._results_by_pod: dict[str, str] = {}
        self._is_closed = False
        self.engine.pending.update({pod.uid: pod for pod in stored if isinstance(pod, Pod) and not pod.spec.node_name})

    # Queries

    def profile(self, scheduler_name: str = "default-scheduler") -> Profile:
        """The completed profile: `.describe()` lists its plugins by point, `.instances` has them by name."""
        return self.engine.framework(scheduler_name).profile

    def pre_enqueue(self, pod: Pod) -> Status:
        """The status of the PreEnqueue plugins."""
        stored = self._stored_pod(pod)
        return self._framework(stored).pre_enqueue(stored)

    def order(self, pods: Iterable[Pod]) -> list[str]:
        """The names of the pods in queue order, if they arrived in the given order."""
        pods = as_list("order", pods, Pod, "what make_pod makes")
        return [pod.name for pod in self.engine.in_queue_order([self._stored_pod(pod) for pod in pods])]

    def filter(self, pod: Pod) -> dict[str, Literal["ok"] | Status]:
        """For each node "ok", or the status of the rejection."""
        _, diagnosis = self._diagnose(pod)
        statuses = {name: diagnosis.status(row) for row, name in enumerate(diagnosis.names)}
        return {name: OK if status.ok else status for name, status in statuses.items()}

    def status(self, pod: Pod, node: str) -> Status:
        """The status of the filters for one node."""
        _, diagnosis = self._diagnose(pod)
        if node not in diagnosis.names:
            raise UsageError(f'there is no node "{node}"; the nodes are: {", ".join(diagnosis.names)}')
        return diagnosis.status(diagnosis.names.index(node))

    def scores(self, pod: Pod) -> dict[str, dict[str, int]]:
        """For each feasible node the weighted score of every plugin; plugins that skip scoring are left out.

        Unlike a scheduling cycle, this also scores a single feasible node.
        """
        cycle, diagnosis = self._diagnose(pod)
        nodes = NodeTable(cycle.snapshot.nodes, np.flatnonzero(diagnosis.rows_with(Code.SUCCESS)))
        if not len(nodes):
            return {}
        scores = self._framework(pod).score_points.score(cycle, nodes)
        if not scores.status.ok:
            raise PluginError(scores.status.message)
        return {
            name: {plugin: int(vector[place]) for plugin, vector in scores.by_plugin.items()}
            for place, name in enumerate(nodes.names)
        }

    def decide(self, pod: Pod) -> SchedulingDecision:
        """Run a scheduling cycle without changes; return the node, or the status, the diagnosis and the victims."""
        return self.engine.try_pod(self._stored_pod(pod))

    def why(self, pod: Pod) -> str:
        """Why the pod is on its node, or why it has none; a pod that was never placed is tried first."""
        stored = self._stored_pod(pod)
        self._settle()
        if stored.key in self._results_by_pod:
            return self._results_by_pod[stored.key]
        gate = self.pre_enqueue(stored)
        if not gate.ok:
            return gate.message
        self.decide(stored)
        return self._decision_text(stored)

    def wakes(
        self, pod: Pod, event: ClusterEvent, *, old: KubeObject | None = None, new: KubeObject | None = None
    ) -> set[str]:
        """The plugins that reject the pod now and whose hints requeue it after the event."""
        stored = self._stored_pod(pod)
        registrations = self._framework(pod).profile.registered_events
        return {
            name
            for name in self._rejecting_plugins(stored)
            for registration in registrations.get(name, ())
            if registration.matches(event) and _evaluate_hint(name, registration, stored, old, new)
        }

    def node_of(self, pod: Pod) -> str | None:
        """The node of the pod, or None."""
        self._settle()
        found = self.engine.cache.pod(self._stored_pod(pod).uid)
        return None if found is None else found.spec.node_name

    @property
    def waiting(self) -> dict[str, list[str]]:
        """Pods that Permit holds, by name, each with the plugins for which it waits."""
        self._settle()
        return {each.pod.name: list(each.pending_plugins()) for each in self.engine.waiting_pods.all()}

    # Commands

    def place(self, pod: Pod) -> str:
        """Place the pod, up to Permit; return the name of its node, or the reason why it has none."""
        stored = self._stored_pod(pod)
        gate = self.pre_enqueue(stored)
        if not gate.ok:
            return self._describe_result(stored, gate.message)
        placed = self.engine.place(stored)
        if placed.waiting:
            return self._describe_result(stored, f"waiting on {placed.node} for {', '.join(placed.permit_timeouts_s)}")
        self._describe_result(stored, self._decision_text(stored))
        if placed.node is None:
            return placed.status.message
        self.engine.pending.pop(stored.uid, None)
        return placed.node

    def place_all(self) -> dict[str, str]:
        """Place the pending pods in queue order; return the result of `place` by name."""
        return {pod.name: self.place(pod) for pod in self.engine.in_queue_order(list(self.engine.pending.values()))}

    def bind(self, pod: Pod) -> str:
        """Place the pod and run PreBind, Bind and PostBind; their writes are in `writes`."""
        stored = self._stored_pod(pod)
        result = self.node_of(stored) or self.place(stored)
        node = self.node_of(stored)
        if node is None or stored.name in self.waiting:
            return result
        cycle = self.engine.cycles.get(stored.uid)
        if cycle is None:
            raise UsageError(f"pod {stored.key} already runs on {node}; only a pod that was placed here can be bound")
        status = asyncio.run(_run_binding_points(self._framework(stored).binding_points, cycle, node))
        if not status.ok:
            self._unreserve_and_forget(stored)
            return self._describe_result(stored, status.message or "no plugin binds the pod")
        del self.engine.cycles[stored.uid]
        self.engine.cache.add_pod(stored.bound_to(node))
        return node

    def advance(self, seconds: float) -> None:
        """Advance the clock. A pod whose Permit timeout is over loses its node."""
        self.clock.advance(seconds)
        self._settle()

    def add(self, *objects: KubeObject) -> None:
        """Add new objects, or update existing ones."""
        self._results_by_pod.clear()
        for item in map(with_identity, objects):
            stored = self._stored_pod(item) if isinstance(item, Pod) else item
            self.engine.cache.upsert(stored)
            if isinstance(stored, Pod) and not stored.spec.node_name:
                self.engine.pending[stored.uid] = stored

    def remove(self, *objects: KubeObject) -> None:
        self._results_by_pod.clear()
        for item in map(with_identity, objects):
            if isinstance(item, Node):
                self.engine.cache.remove_node(item.name)
            elif not isinstance(item, Pod):
                self.engine.cache.delete(item)
            elif self.engine.pending.pop(item.uid, None) is None:
                self.engine.cache.remove_pod(item)

    def close(self) -> None:
        """Close the plugins, which release their resources; the harness cannot be used afterwards."""
        self._is_closed = True
        self.engine.close()

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Helpers

    def _stored_pod(self, pod: Pod) -> Pod:
        """The pod as the API server would store it."""
        if self._is_closed:
            raise UsageError("this cluster is closed and its plugins are released; make another one")
        if not isinstance(pod, Pod):
            raise UsageError(f"expected a pod, such as one of make_pod; got {pod!r}")
        return with_priority(with_identity(pod), self.engine.cache.catalog.priority_classes)

    def _framework(self, pod: Pod) -> Framework:
        return self.engine.framework(pod.scheduler_name)

    def _check_plugins_extend_points(self, names: Sequence[str]) -> None:
        profiles = [self.profile(name) for name in self.engine.scheduler_names]
        for name in names:
            if not any(name in profile.instances for profile in profiles):
                raise UsageError(f'the configuration does not enable "{name}"; add it, for example at multiPoint')

    def _diagnose(self, pod: Pod) -> tuple[Cycle, Diagnosis]:
        stored = self._stored_pod(pod)
        filtering = self._framework(stored).filter_points
        cycle = self.engine.begin(stored)
        outcome = filtering.pre_filter(cycle)
        if outcome.status.ok or outcome.status.rejected:
            return cycle, filtering.run_filters(cycle, outcome)
        diagnosis = Diagnosis(cycle.snapshot.nodes.names)
        diagnosis.absent = outcome.status
        return cycle, diagnosis

    def _rejecting_plugins(self, pod: Pod) -> set[str]:
        gate = self.pre_enqueue(pod)
        if not gate.ok:
            return {gate.plugin}
        diagnosis = self.decide(pod).diagnosis
        return set() if diagnosis is None else diagnosis.unschedulable_plugins

    def _decision_text(self, pod: Pod) -> str:
        record = self.engine.records.latest(pod.key)
        return "" if record is None else decision_sentence(record)

    def _describe_result(self, pod: Pod, text: str) -> str:
        self._results_by_pod[pod.key] = text
        return text

    def _settle(self) -> None:
        """Process pods that waited at Permit: they were allowed, rejected, or timed out."""
        for pod, status in self.engine.settle_waiting_pods():
            if status.ok:
                self._describe_result(pod, self._decision_text(pod))
                self.engine.pending.pop(pod.uid, None)
            else:
                self._describe_result(pod, status.message)

    def _unreserve_and_forget(self, pod: Pod) -> None:
        node = self.node_of(pod)
        assert node is not None
        self._framework(pod).binding_points.unreserve(self.engine.cycles.pop(pod.uid), node)
        self.engine.cache.forget(pod.bound_to(node))


def _evaluate_hint(
    plugin: str, registration: ClusterEventWithHint, pod: Pod, old: KubeObject | None, new: KubeObject | None
) -> bool:
    """The result of a hint. The queue treats every result but SKIP as QUEUE; in a test another type is an error."""
    result = QueueingHint.QUEUE if registration.hint is None else registration.hint(pod, old, new)
    if not isinstance(result, QueueingHint):
        raise PluginError(f'a hint of plugin "{plugin}" must return Hint.QUEUE or Hint.SKIP; got {result!r}')
    return result is QueueingHint.QUEUE


class _CycleKeepingEngine(PodEngine):
    """An engine that stores the cycles of placed pods, which Unreserve needs."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cycles: dict[str, Cycle] = {}

    def place(self, pod: Pod | PodInfo) -> ScheduleResult:
        placed = super().place(pod)
        if placed.assumed is not None:
            self.cycles[placed.assumed.pod.uid] = placed.assumed.cycle
        return placed


async def _run_concurrently(calls: Sequence[Awaitable[Status]]) -> Sequence[Status]:
    return await asyncio.gather(*calls)


async def _run_binding_points(binding_points: BindingPoints, cycle: Cycle, node: str) -> Status:
    """Run the points of the binding cycle one after another, until one fails."""
    plan = binding_points.plan_pre_bind(cycle, node)
    status = plan.status
    if status.ok:
        status = await binding_points.pre_bind(cycle, node, plan, _run_concurrently)
    if status.ok:
        status = await binding_points.bind(cycle, node)
    if status.ok:
        await binding_points.post_bind(cycle, node)
    return status
