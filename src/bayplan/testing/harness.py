"""What does my plugin do on a small cluster? A cluster in one expression, and every question that a test may ask.

    cluster = Harness(plugins=[RackAware], nodes=[make_node("a"), make_node("b")])
    assert cluster.filter(make_pod()) == {"a": "ok", "b": unschedulable("node(s) are full").by("RackAware")}

It is the real engine on a real cache, with a clock that moves when told to, chance that repeats, and writes that are
remembered instead of performed. Questions change nothing; `place` and `bind` do. Building one takes a few
milliseconds, so each test makes its own.
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
from bayplan.scheduler.cycle.scheduling_cycle import SchedulingDecision
from bayplan.scheduler.engine import PodEngine, ScheduleResult
from bayplan.snapshot import NodeTable
from bayplan.telemetry.decision_text import decision_sentence
from bayplan.testing.builders import CREATED, as_list
from bayplan.testing.profile_config import (
    ConfigInput,
    config_text,
    config_text_for,
    registry_with,
)
from bayplan.testing.recorded_writes import RecordedWrites, with_recorded_writes

OK: Literal["ok"] = "ok"


class Harness:
    """A small cluster with a scheduler that runs your plugins."""

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
        """A cluster of nodes, pods (running on their `node`, or pending) and other objects.

        The plugins are added to the default profile, with `args` and `weights` by plugin name; `only` leaves out every
        shipped plugin except a queue order and a binder. `config` (YAML text, or the same as a mapping) says it all
        itself instead: it names the plugins wherever they shall run. Without `share` every pod is evaluated in full,
        whatever the plugins' signatures say.
        """
        plugins = as_list("plugins", plugins, type, "classes, as in [RackAware]")
        nodes = as_list("nodes", nodes, Node, "what make_node makes")
        pods = as_list("pods", pods, Pod, "what make_pod makes")
        objects = as_list("objects", objects, KubeObject, "objects, as make_pvc and others make them")
        registry = registry_with(plugins)
        entries = [entry for entry in registry if entry.plugin in plugins]
        if config is None:
            text = config_text_for(entries, args=args or {}, weights=weights or {}, only=only)
        elif args or weights or only:
            raise UsageError("a configuration says everything itself; leave out args, weights and only")
        else:
            text = config_text(config)
        known = list(with_all_defaults([*nodes, *pods, *objects]))
        self.clock = ManualClock(now)
        self.writes = RecordedWrites()
        self.engine = _CycleKeepingEngine(
            configured(text, registry),
            with_recorded_writes(self.writes, registry),
            filled_cache(known),
            clock=self.clock,
            chance=random.Random(seed),
            share=share,
        )
        self._check_plugins_extend_points([entry.name for entry in entries])
        self._told: dict[str, str] = {}
        self._is_closed = False
        self.engine.pending.update({pod.uid: pod for pod in known if isinstance(pod, Pod) and not pod.spec.node_name})

    # questions --------------------------------------------------------------------------------------------------

    def profile(self, scheduler_name: str = "default-scheduler") -> Profile:
        """The completed profile: `.described()` lists its plugins by point, `.instances` has them by name."""
        return self.engine.framework(scheduler_name).profile

    def pre_enqueue(self, pod: Pod) -> Status:
        """May the pod be tried at all yet?"""
        known = self._stored_pod(pod)
        return self._framework(known).pre_enqueue(known)

    def order(self, pods: Iterable[Pod]) -> list[str]:
        """The names of pods that arrived in this order, as the queue would try them."""
        pods = as_list("order", pods, Pod, "what make_pod makes")
        return [pod.name for pod in self.engine.in_queue_order([self._stored_pod(pod) for pod in pods])]

    def filter(self, pod: Pod) -> dict[str, Literal["ok"] | Status]:
        """For each node "ok", or the status with which it is refused."""
        _, diagnosis = self._diagnose(pod)
        statuses = {name: diagnosis.status(row) for row, name in enumerate(diagnosis.names)}
        return {name: OK if status.ok else status for name, status in statuses.items()}

    def status(self, pod: Pod, node: str) -> Status:
        """What the filters say of one node."""
        _, diagnosis = self._diagnose(pod)
        if node not in diagnosis.names:
            raise UsageError(f'there is no node "{node}"; the cluster has: {", ".join(diagnosis.names)}')
        return diagnosis.status(diagnosis.names.index(node))

    def scores(self, pod: Pod) -> dict[str, dict[str, int]]:
        """For each node that fits what every plugin gives it, normalised and times its weight; who skips is left out.

        Unlike an attempt, which has nothing to choose then, this scores a single node too.
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
        """A whole attempt, with nothing changed: the node, or the status, the diagnosis and the victims."""
        return self.engine.try_pod(self._stored_pod(pod))

    def why(self, pod: Pod) -> str:
        """Why the pod went where it is, or why it cannot go anywhere; one that was never placed is tried first."""
        known = self._stored_pod(pod)
        self._settle()
        if known.key in self._told:
            return self._told[known.key]
        gate = self.pre_enqueue(known)
        if not gate.ok:
            return gate.message
        self.decide(known)
        return self._decision_text(known)

    def wakes(
        self, pod: Pod, event: ClusterEvent, *, old: KubeObject | None = None, new: KubeObject | None = None
    ) -> set[str]:
        """Of the plugins that refuse the pod now, those that want it tried again after such an event."""
        known = self._stored_pod(pod)
        cures = self._framework(pod).profile.registered_events
        return {
            name
            for name in self._refusing(known)
            for cure in cures.get(name, ())
            if cure.matches(event) and _evaluate_hint(name, cure, known, old, new)
        }

    def node_of(self, pod: Pod) -> str | None:
        """Where the pod is, if anywhere."""
        self._settle()
        found = self.engine.cache.pod(self._stored_pod(pod).uid)
        return None if found is None else found.spec.node_name

    @property
    def waiting(self) -> dict[str, list[str]]:
        """Pods that Permit holds back, by name, each with the plugins it waits for."""
        self._settle()
        return {each.pod.name: list(each.pending_plugins()) for each in self.engine.waiting_pods.all()}

    # changes ----------------------------------------------------------------------------------------------------

    def place(self, pod: Pod) -> str:
        """Place the pod, as far as Permit: the name of its node, or the reason why it has none yet."""
        known = self._stored_pod(pod)
        gate = self.pre_enqueue(known)
        if not gate.ok:
            return self._describe_result(known, gate.message)
        placed = self.engine.place(known)
        if placed.waiting:
            return self._describe_result(known, f"waiting on {placed.node} for {', '.join(placed.permit_timeouts_s)}")
        self._describe_result(known, self._decision_text(known))
        if placed.node is None:
            return placed.status.message
        self.engine.pending.pop(known.uid, None)
        return placed.node

    def place_all(self) -> dict[str, str]:
        """Place the pending pods in the order of the queue; what `place` said of each, by name."""
        return {pod.name: self.place(pod) for pod in self.engine.in_queue_order(list(self.engine.pending.values()))}

    def bind(self, pod: Pod) -> str:
        """Place the pod and run PreBind, Bind and PostBind; what they write is in `writes`."""
        known = self._stored_pod(pod)
        said = self.node_of(known) or self.place(known)
        node = self.node_of(known)
        if node is None or known.name in self.waiting:
            return said
        cycle = self.engine.cycles.get(known.uid)
        if cycle is None:
            raise UsageError(f"pod {known.key} runs on {node} already; only a pod that was placed here can be bound")
        status = asyncio.run(_run_binding_points(self._framework(known).binding_points, cycle, node))
        if not status.ok:
            self._unreserve_and_forget(known)
            return self._describe_result(known, status.message or "no plugin wants to bind the pod")
        del self.engine.cycles[known.uid]
        self.engine.cache.add_pod(known.bound_to(node))
        return node

    def advance(self, seconds: float) -> None:
        """Let time pass. A pod that Permit has held too long loses its node."""
        self.clock.advance(seconds)
        self._settle()

    def add(self, *objects: KubeObject) -> None:
        """Objects that are new, or that have changed."""
        self._told.clear()
        cache = self.engine.cache
        for item in map(with_identity, objects):
            if isinstance(item, Node):
                cache.add_node(item)
            elif isinstance(item, Pod):
                self._add_pod(self._stored_pod(item))
            else:
                cache.upsert(item)

    def remove(self, *objects: KubeObject) -> None:
        """Objects that are gone."""
        self._told.clear()
        for item in map(with_identity, objects):
            if isinstance(item, Node):
                self.engine.cache.remove_node(item.name)
            elif not isinstance(item, Pod):
                self.engine.cache.delete(item)
            elif self.engine.pending.pop(item.uid, None) is None:
                self.engine.cache.remove_pod(item)

    def close(self) -> None:
        """Let the plugins release what they hold; nothing can be asked or placed afterwards."""
        self._is_closed = True
        self.engine.close()

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # the rest ---------------------------------------------------------------------------------------------------

    def _stored_pod(self, pod: Pod) -> Pod:
        """The pod as an API server would have stored it."""
        if self._is_closed:
            raise UsageError("this cluster was closed, and its plugins have released what they held; make another one")
        if not isinstance(pod, Pod):
            raise UsageError(f"a pod is needed, as make_pod makes them; got {pod!r}")
        return with_priority(with_identity(pod), self.engine.cache.catalog.priority_classes)

    def _framework(self, pod: Pod) -> Framework:
        return self.engine.framework(pod.scheduler_name)

    def _add_pod(self, pod: Pod) -> None:
        cache = self.engine.cache
        if not pod.spec.node_name:
            self.engine.pending[pod.uid] = pod
        elif cache.pod(pod.uid) is None or cache.is_assumed(pod.uid):
            cache.add_pod(pod)
        else:
            cache.update_pod(pod)

    def _check_plugins_extend_points(self, names: Sequence[str]) -> None:
        profiles = [self.profile(name) for name in self.engine.scheduler_names]
        for name in names:
            if not any(name in profile.instances for profile in profiles):
                raise UsageError(f'the configuration runs "{name}" nowhere; name it, at multiPoint for example')

    def _diagnose(self, pod: Pod) -> tuple[Cycle, Diagnosis]:
        known = self._stored_pod(pod)
        filtering = self._framework(known).filter_points
        cycle = self.engine.begin(known)
        outcome = filtering.pre_filter(cycle)
        if outcome.status.ok or outcome.status.rejected:
            return cycle, filtering.run_filters(cycle, outcome)
        diagnosis = Diagnosis(cycle.snapshot.nodes.names)
        diagnosis.absent = outcome.status
        return cycle, diagnosis

    def _refusing(self, pod: Pod) -> set[str]:
        gate = self.pre_enqueue(pod)
        if not gate.ok:
            return {gate.plugin}
        diagnosis = self.decide(pod).diagnosis
        return set() if diagnosis is None else diagnosis.unschedulable_plugins

    def _decision_text(self, pod: Pod) -> str:
        record = self.engine.records.latest(pod.key)
        return "" if record is None else decision_sentence(record)

    def _describe_result(self, pod: Pod, text: str) -> str:
        self._told[pod.key] = text
        return text

    def _settle(self) -> None:
        """Notice what became of the pods that waited: somebody let them go, or turned them away, or time was up."""
        for pod, status in self.engine.settle_waiting_pods():
            if status.ok:
                self._describe_result(pod, self._decision_text(pod))
                self.engine.pending.pop(pod.uid, None)
            else:
                self._describe_result(pod, status.message)

    def _unreserve_and_forget(self, pod: Pod) -> None:
        """Undo Reserve and the assumption."""
        node = self.node_of(pod)
        assert node is not None
        self._framework(pod).binding_points.unreserve(self.engine.cycles.pop(pod.uid), node)
        self.engine.cache.forget(pod.bound_to(node))


def _evaluate_hint(
    plugin: str, cure: ClusterEventWithHint, pod: Pod, old: KubeObject | None, new: KubeObject | None
) -> bool:
    """What a hint says. The queue takes whatever is no SKIP for a yes; in a test it is a slip to be told of."""
    answer = QueueingHint.QUEUE if cure.hint is None else cure.hint(pod, old, new)
    if not isinstance(answer, QueueingHint):
        raise PluginError(f'a hint of plugin "{plugin}" answers Hint.QUEUE or Hint.SKIP; got {answer!r}')
    return answer is QueueingHint.QUEUE


class _CycleKeepingEngine(PodEngine):
    """An engine that keeps the cycles of the pods it has placed: whoever gives a node back needs them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cycles: dict[str, Cycle] = {}

    def commit(self, framework: Framework, cycle: Cycle, decision: SchedulingDecision) -> ScheduleResult:
        self.cycles[cycle.pod.uid] = cycle
        return super().commit(framework, cycle, decision)


async def _run_concurrently(calls: Sequence[Awaitable[Status]]) -> Sequence[Status]:
    return await asyncio.gather(*calls)


async def _run_binding_points(committing: BindingPoints, cycle: Cycle, node: str) -> Status:
    """The points of the binding cycle, one after the other, until one fails."""
    plan = committing.plan_pre_bind(cycle, node)
    status = plan.status
    if status.ok:
        status = await committing.pre_bind(cycle, node, plan, _run_concurrently)
    if status.ok:
        status = await committing.bind(cycle, node)
    if status.ok:
        await committing.post_bind(cycle, node)
    return status
