"""The pod engine in one process: profiles, one cache, one snapshot; pods in, decisions out.

`try_pod` decides and changes nothing. `place` decides, assumes the pod on its node and runs Reserve and Permit, so
that the next pod sees it there. Every decision leaves one record. Without an API server nothing is bound: examples,
tests, conformance and simulation stop here, and a live scheduler goes on from here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cmp_to_key
from types import MappingProxyType
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
from bayplan.framework.api.status import Code, Status
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
from bayplan.scheduler.cycle.scheduling_cycle import (
    CallExtender,
    SchedulingCycle,
    SchedulingDecision,
    TieBreak,
)
from bayplan.scheduler.plugin_handle import EngineHandle, NoWrites, PostFunction
from bayplan.snapshot import NodeColumns, PodInfo, RowVector, Snapshot
from bayplan.telemetry.decisions import DecisionRing
from bayplan.telemetry.plugin_timings import PluginTimings

_NO_WAITS: Mapping[str, float] = MappingProxyType({})


class AssumedPod:
    """A pod that is counted on its node, and what is needed to bind it or to take it back."""

    __slots__ = ("cycle", "framework", "pod")

    def __init__(self, framework: Framework, cycle: Cycle, pod: Pod) -> None:
        self.framework = framework
        self.cycle = cycle
        self.pod = pod  # on its node


class ScheduleResult:
    """A decision that was carried out as far as one process can.

    A pod that Permit holds back has a node and is counted there, but is not placed until
    `PodEngine.settle_waiting_pods` says so."""

    __slots__ = ("assumed", "decision", "permit_timeouts_s", "status")

    def __init__(
        self,
        decision: SchedulingDecision,
        status: Status,
        waits_s: Mapping[str, float] = _NO_WAITS,
        held: AssumedPod | None = None,
    ) -> None:
        self.decision = decision
        self.status = status
        self.permit_timeouts_s = waits_s
        self.assumed = held  # what was assumed and reserved for it; None where nothing is

    @property
    def node(self) -> str | None:
        return self.decision.node if self.status.ok else None

    @property
    def waiting(self) -> bool:
        return bool(self.permit_timeouts_s)

    @property
    def rejectors(self) -> tuple[frozenset[str], frozenset[str]]:
        """Who rejected the pod, and of those who waits for something outside: what the queue has to know."""
        if self.status is self.decision.status or not self.status.rejected:
            return self.decision.rejectors
        plugin = frozenset(filter(None, (self.status.plugin,)))
        return plugin, plugin if self.status.code is Code.PENDING else frozenset()


@dataclass(frozen=True, slots=True)
class NewProfiles:
    """Profiles that were built and are not in use yet. `changed`: plugins that are not what they were."""

    configuration: Configuration
    registry: Registry
    attempts: Mapping[str, SchedulingCycle]
    changed: frozenset[str]


@dataclass(frozen=True, slots=True)
class _SortedPod:
    """A pod with the moment it entered the queue."""

    pod: Pod
    timestamp: datetime


def random_row(chance: random.Random) -> TieBreak:
    """Any of them, each as likely as the others: `randrange` without what it checks first."""
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
    """kube-scheduler's brain, without its wires."""

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
        self.pods_to_activate: dict[str, Pod] = {}  # by key: pods that plugins want tried now
        self.bind_request_factory = BindRequestFactory(clock)
        self._waiting_assumed: dict[str, AssumedPod] = {}
        self._prepared: PodInfo | None = None  # the last one: pods of one template come one after another
        self.timings = timings or PluginTimings()
        self.records = DecisionRing() if records is None else records  # an empty one is false, and meant all the same
        self._clock = clock
        self._chance = chance
        self._writes: Writes = writes or NoWrites()
        self._post = post
        self._share = share  # pods that are alike share their evaluation; off: each is evaluated in full
        self._groups_preempt = groups_preempt  # a group as a whole; off: each of its pods
        self._groups_placed = groups_placed  # placement by placement
        self._in_dry_run = False
        self._snapshot = cache.snapshot()
        self._sampler = NodeSampler()
        self._latest: SchedulingDecision | None = None  # what was decided last, and is still to be read
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
        """The plugins of a profile once more, for questions that decide nothing and enter no statistics."""
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
        """What pods of a profile share; None where each is evaluated on its own."""
        return self._cycles[scheduler_name].classes

    def sample_size(self, scheduler_name: str) -> SampleSize:
        """How many nodes are looked at for pods of a profile, and why."""
        return self._cycles[scheduler_name].sample_size

    def snapshot(self) -> Snapshot:
        """The cluster of now."""
        self._release_latest()
        self.cache.refresh(self._snapshot)
        return self._snapshot

    def refresh_in_slices(self) -> Iterator[None]:
        """Look at the whole cluster in slices, so that the first attempt need not do so at once."""
        self._release_latest()
        return self.cache.refresh_in_slices(self._snapshot)

    def _release_latest(self) -> None:
        """Nothing that was found out on the snapshot as it was is needed any more."""
        if self._latest is not None:
            self._latest.release()
            self._latest = None

    def prepare(self, pod: Pod) -> PodInfo:
        """The pod with what can be computed before its turn comes: a queue does so when the pod enters."""
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
        """Pods that entered the queue in this order, as it would hand them out: one QueueSort serves all profiles."""
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
        """A cycle for the pod on a snapshot of now."""
        return Cycle(pod if isinstance(pod, PodInfo) else PodInfo(pod), self.snapshot())

    def class_evaluation(self, cycle: Cycle) -> ClassEvaluation | None:
        """What pods like this one know already; None where the pod is evaluated on its own."""
        return self._cycles[cycle.pod.scheduler_name].class_evaluation(cycle)

    def try_pod(self, pod: Pod) -> SchedulingDecision:
        """Decide, and assume nothing. (A record is kept, and the next search starts elsewhere.)"""
        decision = self._cycle_of(pod.scheduler_name).schedule_pod(self.begin(pod))
        self._record(pod, decision)
        return decision.with_details()

    def place(self, pod: Pod | PodInfo) -> ScheduleResult:
        """Decide, assume the pod where it goes, reserve what it needs and ask for permission."""
        cycle = self.begin(pod)
        attempts = self._cycle_of(cycle.pod.scheduler_name)
        return self._finish_placement(attempts.framework, cycle, attempts.schedule_pod(cycle))

    async def place_with_extenders(self, pod: Pod | PodInfo, ask: CallExtender) -> ScheduleResult:
        """The same for a profile with extenders, which `ask` reaches. Nobody else may decide meanwhile."""
        cycle = self.begin(pod)
        attempts = self._cycle_of(cycle.pod.scheduler_name)
        return self._finish_placement(attempts.framework, cycle, await attempts.schedule_pod_with_extenders(cycle, ask))

    async def decide_only(
        self, pod: PodInfo, ask: CallExtender | None, within: Set[str] | None = None
    ) -> tuple[Framework, Cycle, SchedulingDecision]:
        """Decide, and carry nothing out yet: for who decides about several pods before any of them moves.

        `within`: names of the nodes that may be looked at, where these are not all.
        """
        cycle = self.begin(pod)
        if within is not None:
            cycle.allowed_rows = cycle.snapshot.rows_named(within)
        attempts = self._cycle_of(cycle.pod.scheduler_name)
        found = attempts.schedule_pod(cycle) if ask is None else await attempts.schedule_pod_with_extenders(cycle, ask)
        decision = found.with_details()
        self._record(cycle.pod, decision)
        return attempts.framework, cycle, decision

    @contextmanager
    def dry_run(self) -> Iterator[None]:
        """Decisions meanwhile are about what could be: no PostFilter acts on them, and they are not recorded."""
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
        """Assume, reserve and ask for permission, in trial: who is held is to be taken back, and waits nowhere."""
        info = cycle.info.bound_to(node_name)
        self.cache.assume(info)
        with self.cache.devices.trial(), self.cache.volumes.trial():
            status = framework.binding_points.reserve(cycle, node_name)
        if not status.ok:
            self.cache.forget(info.pod)
            return single_node_status(status), None, PermitResult()
        held = AssumedPod(framework, cycle, info.pod)
        permit = framework.binding_points.permit(cycle, node_name)
        if not permit.status.ok:
            self.end_trial(held)
            return single_node_status(permit.status), None, permit
        return status, held, permit

    def _finish_placement(self, framework: Framework, cycle: Cycle, decision: SchedulingDecision) -> ScheduleResult:
        self._latest = decision
        placed = self._apply_decision(framework, cycle, decision)
        if placed.status is not decision.status:  # refused after the choice, and the record tells how it ended
            decision = replace(decision.with_details(), node=placed.node, status=placed.status)
        self._record(cycle.pod, decision)
        return placed

    def _record(self, pod: Pod, decision: SchedulingDecision) -> None:
        if self.records.keeps_any and not self._in_dry_run:
            self.records.add(decision_record(pod, decision, self._clock.now(), self._snapshot.layout))

    def close(self) -> None:
        for attempts in self._cycles.values():
            attempts.framework.close()

    def _apply_decision(self, framework: Framework, cycle: Cycle, decision: SchedulingDecision) -> ScheduleResult:
        if decision.nominated_node_name is not None:
            self.nominator.nominate(cycle.info, decision.nominated_node_name)
        if decision.node is None:
            return ScheduleResult(decision, decision.status)
        return self.commit(framework, cycle, decision)

    def commit(self, framework: Framework, cycle: Cycle, decision: SchedulingDecision) -> ScheduleResult:
        """Assume, reserve, permit; a refusal undoes all of it."""
        assert decision.node is not None
        info = cycle.info.bound_to(decision.node)
        bound = info.pod
        self.cache.assume(info)
        try:
            return self._commit_assumed(framework, cycle, decision, bound)
        except BaseException:  # an interrupt, or a bug of ours: whatever it is, the node is not to look taken
            self.cache.forget(bound)
            raise

    def _commit_assumed(
        self, framework: Framework, cycle: Cycle, decision: SchedulingDecision, bound: Pod
    ) -> ScheduleResult:
        assert decision.node is not None
        self.nominator.delete_nomination(bound.metadata.uid)
        status = framework.binding_points.reserve(cycle, decision.node)
        if not status.ok:
            self.cache.forget(bound)
            return ScheduleResult(decision, single_node_status(status))
        permit = framework.binding_points.permit(cycle, decision.node)
        if not permit.status.ok:
            self.end_trial(AssumedPod(framework, cycle, bound))
            return ScheduleResult(decision, single_node_status(permit.status))
        held = AssumedPod(framework, cycle, bound)
        if permit.waits:
            self.waiting_pods.add(bound, permit.waits, self._clock.monotonic_s())
            self._waiting_assumed[bound.uid] = held
        return ScheduleResult(decision, status, permit.waits, held)

    def settle_waiting_pods(self) -> list[tuple[Pod, Status]]:
        """Let pods go whose wait is over, and take those back that were refused or waited too long."""
        settled = []
        now_s = self._clock.monotonic_s()
        for waiting in self.waiting_pods.all():
            waiting.expire(now_s)
            if waiting.outcome is None:
                continue
            self.waiting_pods.remove(waiting.pod.uid)
            held = self._waiting_assumed.pop(waiting.pod.uid)
            if not waiting.outcome.ok:
                self.unreserve_and_forget(held)
            settled.append((held.pod, single_node_status(waiting.outcome)))
        return settled

    def stop_waiting(self, uid: str) -> None:
        """Permit has decided about a pod, whichever way."""
        self.waiting_pods.remove(uid)
        self._waiting_assumed.pop(uid, None)

    def unreserve_and_forget(self, held: AssumedPod) -> bool:
        """Undo what was reserved and assumed. False: the API server shows the pod on a node, so there it stays."""
        held.framework.binding_points.unreserve(held.cycle, held.pod.spec.node_name)
        if self.cache.pod(held.pod.uid) is not None and not self.cache.is_assumed(held.pod.uid):
            return False
        self.cache.forget(held.pod)
        return True

    def end_trial(self, held: AssumedPod) -> None:
        """Take back what was held in this attempt alone: no other pod can wait for it, so none is woken."""
        with self.cache.devices.trial(), self.cache.volumes.trial():
            self.unreserve_and_forget(held)

    # profiles ---------------------------------------------------------------------------------------------------

    def build_profiles(self, configuration: Configuration, registry: Registry) -> NewProfiles:
        """The profiles of a configuration with the plugins of a registry. Nothing changes before they are installed.

        A plugin whose class and arguments are the same is kept, with what it knows; the others are made anew.
        """
        configuration = replace_struct(self.configuration, profiles=apply_extenders(configuration).profiles)
        changed = {entry.name for entry in registry if self._registry.get(entry.name) != entry}
        changed |= {entry.name for entry in self._registry if entry.name not in registry}
        attempts: dict[str, SchedulingCycle] = {}
        try:
            for profile in configuration.profiles:
                kept = self._kept(profile, changed)
                attempts[profile.scheduler_name] = self._build(profile, configuration, registry, kept)
        except BayplanError:
            self._close_new(attempts)
            raise
        return NewProfiles(configuration, registry, attempts, frozenset(changed))

    def discard_profiles(self, rebuilt: NewProfiles) -> None:
        """Let profiles go that are not to be installed after all."""
        self._close_new(rebuilt.attempts)

    def install_profiles(self, rebuilt: NewProfiles) -> list[Any]:
        """Go on with other profiles, between two attempts. Returns the plugins that nobody is going to ask again,
        except about pods that were placed before."""
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

    def _kept(self, profile: ProfileConfig, changed: Set[str]) -> dict[str, Any]:
        """Plugins of a profile that need not be made anew."""
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
        """Close the plugins that were made for profiles which are not used after all."""
        for name, attempts in built.items():
            old = self._cycles.get(name)
            instances = attempts.framework.profile.instances.values()
            close_all(plugin for plugin in instances if old is None or not _uses_plugin(old, plugin))

    def _build(
        self, profile: ProfileConfig, configuration: Configuration, registry: Registry, kept: Mapping[str, Any]
    ) -> SchedulingCycle:
        handle = self._handles.setdefault(profile.scheduler_name, self._handle())
        completed = build_profile(profile, registry, handle, kept)
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


def single_node_status(status: Status) -> Status:
    """A refusal after the node was chosen, in the words of a pod that had one node to go to."""
    if not status.rejected:
        return status
    counts = ", ".join(sorted(f"1 {reason}" for reason in status.reasons))
    return Status(status.code, (f"0/1 nodes are available: {counts}.",), plugin=status.plugin)
