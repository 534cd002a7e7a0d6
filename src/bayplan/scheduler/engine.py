"""Pod engine: profiles, one cache and one snapshot. Takes pods and returns scheduling decisions.

`try_pod` decides and changes nothing. `place` decides, assumes the pod on its node and runs Reserve and Permit, so
that the next pod is scheduled against it. Every decision writes one record. Without an API server nothing is bound:
examples, tests, conformance and simulation use the engine alone. The live scheduler adds the binding cycle.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cmp_to_key
from typing import Any

import numpy as np
from msgspec.structs import replace as replace_struct

from bayplan.cache import Cache
from bayplan.clock import Clock
from bayplan.config.extenders import apply_extenders
from bayplan.config.model import Configuration, ProfileConfig
from bayplan.errors import BayplanError, ConfigError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import QUEUE_SORT
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.status import Status
from bayplan.framework.equivalence.class_evaluation import ClassEvaluation
from bayplan.framework.equivalence.equivalence_classes import EquivalenceClasses
from bayplan.framework.runtime.bind_request_factory import BindRequestFactory
from bayplan.framework.runtime.binding_points import PermitResult
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.nominator import Nominator
from bayplan.framework.runtime.profile import build_profile, close_all
from bayplan.framework.runtime.registry import Registry
from bayplan.framework.runtime.waiting_pods import WaitingPodsMap
from bayplan.intents.writes import Writes
from bayplan.objects.core import Pod
from bayplan.objects.resources import has_same_request_inputs
from bayplan.scheduler.cycle.decision_records import decision_record
from bayplan.scheduler.cycle.http_extender import HttpExtender
from bayplan.scheduler.cycle.node_sampling import NodeSampler, SampleSize, sample_size_for
from bayplan.scheduler.cycle.schedule_result import AssumedPod, ScheduleResult, SchedulingDecision, single_node_status
from bayplan.scheduler.cycle.scheduling_cycle import CallExtender, SchedulingCycle, TieBreak
from bayplan.scheduler.plugin_handle import EngineHandle, NoWrites, PostFunction
from bayplan.snapshot import NodeColumns, PodInfo, RowVector, Snapshot
from bayplan.telemetry.decisions import DecisionRing
from bayplan.telemetry.plugin_timings import PluginTimings


@dataclass(frozen=True, slots=True)
class NewProfiles:
    """Profiles that are built and not installed yet. `changed`: plugins that differ from the installed ones."""

    configuration: Configuration
    registry: Registry
    attempts: Mapping[str, SchedulingCycle]
    changed: frozenset[str]


@dataclass(frozen=True, slots=True)
class _SortedPod:
    """A pod with the time at which it entered the queue."""

    pod: Pod
    timestamp: datetime


def random_row(chance: random.Random) -> TieBreak:
    """Returns a tie break that picks each row with equal probability: `randrange` without its argument checks."""
    bits = chance.getrandbits

    def pick(_: NodeColumns, rows: RowVector | Sequence[int]) -> int:
        count = len(rows)
        width = count.bit_length()
        place = bits(width)
        while place >= count:
            place = bits(width)
        return place

    return pick


class PodEngine:
    """Scheduling decisions of kube-scheduler, without API server and network."""

    def __init__(
        self,
        configuration: Configuration,
        registry: Registry,
        cache: Cache,
        *,
        clock: Clock,
        chance: random.Random,
        tie_break: TieBreak | None = None,
        share: bool = True,
        writes: Writes | None = None,
        records: DecisionRing | None = None,
        post: PostFunction | None = None,
        timings: PluginTimings | None = None,
        groups_preempt: bool = False,
        groups_placed: bool = False,
    ) -> None:
        self.configuration = configuration = apply_extenders(configuration)
        self.cache = cache
        self.pending: dict[str, Pod] = {}
        self.nominator = Nominator()
        self.waiting_pods = WaitingPodsMap()
        self.pods_to_activate: dict[str, Pod] = {}  # by key: pods that plugins want scheduled now
        self.bind_request_factory = BindRequestFactory(clock)
        self._waiting_assumed: dict[str, AssumedPod] = {}
        self._prepared: PodInfo | None = None  # the last one: pods of one template often follow each other
        self.timings = timings or PluginTimings()
        self.records = DecisionRing() if records is None else records  # an empty ring is false, but is still used
        self._clock = clock
        self._chance = chance
        self._writes: Writes = writes or NoWrites()
        self._post = post
        self._share = share  # pods of one equivalence class share their evaluation; False: each is evaluated in full
        self._groups_preempt = groups_preempt  # preemption for a group as a whole; False: for each of its pods
        self._groups_placed = groups_placed  # groups are tried placement by placement
        self._in_dry_run = False
        self._snapshot = cache.snapshot()
        self._sampler = NodeSampler()
        self._latest: SchedulingDecision | None = None  # the last decision, whose details may still be read
        self._tie_break: TieBreak = tie_break or random_row(chance)
        self._handles: dict[str, EngineHandle] = {}
        self._registry = Registry()
        self._cycles: dict[str, SchedulingCycle] = {}
        self.install_profiles(self.build_profiles(configuration, registry))

    @property
    def scheduler_names(self) -> Iterable[str]:
        return self._cycles.keys()

    def framework(self, scheduler_name: str) -> Framework:
        """The profile that serves a scheduler name."""
        return self._cycle_of(scheduler_name).framework

    def unrecorded_framework(self, scheduler_name: str) -> Framework:
        """A second framework for the plugins of a profile. Its calls decide nothing and enter no statistics."""
        profile = self.framework(scheduler_name).profile
        return Framework(profile, self._handles[scheduler_name], PluginTimings())

    def _cycle_of(self, scheduler_name: str) -> SchedulingCycle:
        try:
            return self._cycles[scheduler_name]
        except KeyError:
            known = ", ".join(self._cycles)
            raise ConfigError(
                f'no profile serves scheduler name "{scheduler_name}"; the configuration has: {known}', stage="profile"
            ) from None

    def serves(self, pod: Pod) -> bool:
        return pod.scheduler_name in self._cycles

    def equivalence_classes(self, scheduler_name: str) -> EquivalenceClasses | None:
        """The equivalence classes of a profile; None if each pod is evaluated on its own."""
        return self._cycles[scheduler_name].classes

    def sample_size(self, scheduler_name: str) -> SampleSize:
        """How many nodes are evaluated for pods of a profile, with the reason."""
        return self._cycles[scheduler_name].sample_size

    def snapshot(self) -> Snapshot:
        self._release_latest()
        self.cache.refresh(self._snapshot)
        return self._snapshot

    def refresh_in_slices(self) -> Iterator[None]:
        """Refresh the snapshot in slices, so that the first attempt need not read the whole cluster at once."""
        self._release_latest()
        return self.cache.refresh_in_slices(self._snapshot)

    def _release_latest(self) -> None:
        """Drop the details of the last decision: the snapshot that they refer to is about to change."""
        if self._latest is not None:
            self._latest.release()
            self._latest = None

    def prepare(self, pod: Pod) -> PodInfo:
        """The pod with what can be computed before its attempt. The queue calls this when the pod enters."""
        last = self._prepared
        info = (
            last.from_same_template(pod)
            if last is not None and has_same_request_inputs(last.pod, pod)
            else PodInfo(pod)
        )
        info.precompute(self.cache.vocabulary)
        self._prepared = info
        attempts = self._cycles.get(pod.scheduler_name)
        if attempts is not None and attempts.classes is not None:
            attempts.classes.class_of(info)
        return info

    def in_queue_order(self, pods: Sequence[Pod]) -> list[Pod]:
        """Sort pods that arrive in this order as the queue pops them. All profiles share one QueueSort."""
        framework = next(iter(self._cycles.values())).framework
        (sorter,) = framework.profile.at(QUEUE_SORT)
        start = self._clock.now()
        entered = [_SortedPod(pod, start + timedelta(microseconds=place)) for place, pod in enumerate(pods)]

        def is_less(first: _SortedPod, second: _SortedPod) -> bool:
            answer = sorter.less(first, second)
            if not isinstance(answer, bool | np.bool_):
                raise PluginFault(sorter.name, QUEUE_SORT.key, f"less answers True or False; got {answer!r}")
            return bool(answer)

        def order(first: _SortedPod, second: _SortedPod) -> int:
            return -1 if is_less(first, second) else int(is_less(second, first))

        ordered = framework.plugin_caller.call(sorter, QUEUE_SORT, sorted, entered, key=cmp_to_key(order))
        return [each.pod for each in ordered]

    def begin(self, pod: Pod | PodInfo) -> Cycle:
        """Return a cycle for the pod on a current snapshot."""
        return Cycle(pod if isinstance(pod, PodInfo) else PodInfo(pod), self.snapshot())

    def class_evaluation(self, cycle: Cycle) -> ClassEvaluation | None:
        """The shared evaluation of the pod's equivalence class; None if the pod is evaluated on its own."""
        return self._cycles[cycle.pod.scheduler_name].class_evaluation(cycle)

    def try_pod(self, pod: Pod) -> SchedulingDecision:
        """Decide, and assume nothing. The decision is recorded, and node sampling starts further on the next time."""
        decision = self._cycle_of(pod.scheduler_name).schedule_pod(self.begin(pod))
        self._record(pod, decision)
        return decision.with_details()

    def place(self, pod: Pod | PodInfo) -> ScheduleResult:
        """Decide, assume the pod on its node, and run Reserve and Permit."""
        cycle = self.begin(pod)
        return self._record_placement(cycle, self._cycle_of(cycle.pod.scheduler_name).run(cycle))

    async def place_with_extenders(self, pod: Pod | PodInfo, call_extender: CallExtender) -> ScheduleResult:
        """The same for a profile with extenders, which `call_extender` calls. No other decision may be made
        meanwhile."""
        cycle = self.begin(pod)
        scheduling_cycle = self._cycle_of(cycle.pod.scheduler_name)
        return self._record_placement(cycle, await scheduling_cycle.run_with_extenders(cycle, call_extender))

    async def decide_only(
        self, pod: PodInfo, call_extender: CallExtender | None, within: Set[str] | None = None
    ) -> tuple[Framework, Cycle, SchedulingDecision]:
        """Decide, and apply nothing: for callers that decide about several pods before they assume any of them.

        `within`: names of the nodes that may be evaluated; None means all.
        """
        cycle = self.begin(pod)
        if within is not None:
            cycle.allowed_rows = cycle.snapshot.rows_named(within)
        scheduling_cycle = self._cycle_of(cycle.pod.scheduler_name)
        found = (
            scheduling_cycle.schedule_pod(cycle)
            if call_extender is None
            else await scheduling_cycle.schedule_pod_with_extenders(cycle, call_extender)
        )
        decision = found.with_details()
        self._record(cycle.pod, decision)
        return scheduling_cycle.framework, cycle, decision

    @contextmanager
    def dry_run(self) -> Iterator[None]:
        """While active, no PostFilter plugin runs and no decision is recorded."""
        attempts = list(self._cycles.values())
        self._in_dry_run = True
        for each in attempts:
            each.runs_post_filters = False
        try:
            yield
        finally:
            self._in_dry_run = False
            for each in attempts:
                each.runs_post_filters = True

    def assume_in_trial(
        self, framework: Framework, cycle: Cycle, node_name: str
    ) -> tuple[Status, AssumedPod | None, PermitResult]:
        """Assume, reserve and run Permit as a trial. The caller unreserves the assumed pod with its `end_trial`."""
        info = cycle.info.bound_to(node_name)
        self.cache.assume(info)
        with self.cache.devices.trial(), self.cache.volumes.trial():
            status = framework.binding_points.reserve(cycle, node_name)
        if not status.ok:
            self.cache.forget(info.pod)
            return single_node_status(status), None, PermitResult()
        assumed = AssumedPod(framework, cycle, info.pod)
        permit = framework.binding_points.permit(cycle, node_name)
        if not permit.status.ok:
            assumed.end_trial(self.cache)
            return single_node_status(permit.status), None, permit
        return status, assumed, permit

    def _record_placement(self, cycle: Cycle, placed: ScheduleResult) -> ScheduleResult:
        self._latest = decision = placed.decision
        if placed.status is not decision.status:  # refused by Reserve or Permit; the record has the final status
            decision = replace(decision.with_details(), node=placed.node, status=placed.status)
        self._record(cycle.pod, decision)
        return placed

    def _record(self, pod: Pod, decision: SchedulingDecision) -> None:
        if self.records.keeps_any and not self._in_dry_run:
            self.records.add(decision_record(pod, decision, self._clock.now(), self._snapshot.layout))

    def close(self) -> None:
        for attempts in self._cycles.values():
            attempts.framework.close()

    def commit(self, cycle: Cycle, decision: SchedulingDecision) -> ScheduleResult:
        """Assume the pod of a decision that was made earlier, and run Reserve and Permit."""
        return self._cycle_of(cycle.pod.scheduler_name).prepare_for_binding(cycle, decision)

    def settle_waiting_pods(self) -> list[tuple[Pod, Status]]:
        """Return pods whose wait at Permit is over. Refused and timed out pods are unreserved and forgotten."""
        settled = []
        now_s = self._clock.monotonic_s()
        for waiting in self.waiting_pods.all():
            waiting.expire(now_s)
            if waiting.outcome is None:
                continue
            self.waiting_pods.remove(waiting.pod.uid)
            assumed = self._waiting_assumed.pop(waiting.pod.uid)
            if not waiting.outcome.ok:
                assumed.unreserve_and_forget(self.cache)
            settled.append((assumed.pod, single_node_status(waiting.outcome)))
        return settled

    def stop_waiting(self, uid: str) -> None:
        """Forget a waiting pod: Permit has allowed or refused it."""
        self.waiting_pods.remove(uid)
        self._waiting_assumed.pop(uid, None)

    # profiles

    def build_profiles(self, configuration: Configuration, registry: Registry) -> NewProfiles:
        """Build the profiles of a configuration with the plugins of a registry. `install_profiles` puts them to use.

        A plugin whose class and arguments did not change keeps its instance and its state. The rest is built again.
        """
        configuration = replace_struct(self.configuration, profiles=apply_extenders(configuration).profiles)
        changed = {entry.name for entry in registry if self._registry.get(entry.name) != entry}
        changed |= {entry.name for entry in self._registry if entry.name not in registry}
        attempts: dict[str, SchedulingCycle] = {}
        try:
            for profile in configuration.profiles:
                reused = self._reusable_plugins(profile, changed)
                attempts[profile.scheduler_name] = self._build(profile, configuration, registry, reused)
        except BayplanError:
            self._close_new(attempts)
            raise
        return NewProfiles(configuration, registry, attempts, frozenset(changed))

    def discard_profiles(self, rebuilt: NewProfiles) -> None:
        """Close profiles that will not be installed."""
        self._close_new(rebuilt.attempts)

    def install_profiles(self, rebuilt: NewProfiles) -> list[Any]:
        """Replace the profiles between two attempts. Returns plugins that only pods placed before still need."""
        retired = [
            plugin
            for name, old in self._cycles.items()
            for plugin in old.framework.profile.instances.values()
            if name not in rebuilt.attempts or not _uses_plugin(rebuilt.attempts[name], plugin)
        ]
        self.configuration, self._registry = rebuilt.configuration, rebuilt.registry
        self._cycles = dict(rebuilt.attempts)
        for name, attempts in self._cycles.items():
            self._handles[name].framework = attempts.framework
        return retired

    def _reusable_plugins(self, profile: ProfileConfig, changed: Set[str]) -> dict[str, Any]:
        name = profile.scheduler_name
        if name not in self._cycles:
            return {}
        before = next(each for each in self.configuration.profiles if each.scheduler_name == name).plugin_config
        return {
            plugin.name: plugin
            for plugin in self._cycles[name].framework.profile.instances.values()
            if plugin.name not in changed and before.get(plugin.name) == profile.plugin_config.get(plugin.name)
        }

    def _close_new(self, built: Mapping[str, SchedulingCycle]) -> None:
        for name, attempts in built.items():
            old = self._cycles.get(name)
            instances = attempts.framework.profile.instances.values()
            close_all(plugin for plugin in instances if old is None or not _uses_plugin(old, plugin))

    def _build(
        self, profile: ProfileConfig, configuration: Configuration, registry: Registry, reused: Mapping[str, Any]
    ) -> SchedulingCycle:
        handle = self._handles.setdefault(profile.scheduler_name, self._handle())
        completed = build_profile(profile, registry, handle, reused)
        framework = Framework(completed, handle, self.timings)
        return SchedulingCycle(
            framework=framework,
            tie_break=self._tie_break,
            sampler=self._sampler,
            share=sample_size_for(configuration, completed.percentage_of_nodes_to_score, framework),
            extenders=tuple(map(HttpExtender, configuration.extenders)),
            classes=EquivalenceClasses(completed, framework.plugin_caller) if self._share else None,
            groups_preempt=self._groups_preempt,
            groups_placed=self._groups_placed,
            handle=handle,
            waiting_assumed=self._waiting_assumed,
        )

    def _handle(self) -> EngineHandle:
        return EngineHandle(
            self._clock,
            self._chance,
            self.cache,
            self.nominator,
            self.waiting_pods,
            self._writes,
            self.pending,
            self.pods_to_activate,
            self._post,
            self.bind_request_factory,
        )


def _uses_plugin(attempts: SchedulingCycle, plugin: Any) -> bool:
    return any(each is plugin for each in attempts.framework.profile.instances.values())
