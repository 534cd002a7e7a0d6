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
from bayplan.config.model import Configuration, Profile
from bayplan.errors import BayplanError, ConfigError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import QUEUE_SORT
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.status import Code, Status
from bayplan.framework.equivalence.class_evaluation import Standing
from bayplan.framework.equivalence.equivalence_classes import Classes
from bayplan.framework.runtime.bind_request_factory import BindRequestDesk
from bayplan.framework.runtime.binding_points import PermitOutcome
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.nominator import NominationLedger
from bayplan.framework.runtime.profile import build_profile, close_all
from bayplan.framework.runtime.registry import Registry
from bayplan.framework.runtime.waiting_pods import WaitingPods
from bayplan.intents.writes import Writes
from bayplan.objects.core import Pod
from bayplan.objects.resources import asks_alike
from bayplan.scheduler.cycle.decision_records import record_of
from bayplan.scheduler.cycle.http_extender import Extender
from bayplan.scheduler.cycle.node_sampling import Sampler, Share, share_for
from bayplan.scheduler.cycle.scheduling_cycle import (
    Ask,
    Attempts,
    Decision,
    TieBreak,
)
from bayplan.scheduler.plugin_handle import EngineHandle, NoWrites, Post
from bayplan.snapshot import NodeColumns, PodInfo, RowVector, Snapshot
from bayplan.telemetry.decisions import DecisionRing
from bayplan.telemetry.plugin_timings import PluginTimings

_NO_WAITS: Mapping[str, float] = MappingProxyType({})


class Held:
    """A pod that is counted on its node, and what is needed to bind it or to take it back."""

    __slots__ = ("cycle", "framework", "pod")

    def __init__(self, framework: Framework, cycle: Cycle, pod: Pod) -> None:
        self.framework = framework
        self.cycle = cycle
        self.pod = pod  # on its node


class Placed:
    """A decision that was carried out as far as one process can.

    A pod that Permit holds back has a node and is counted there, but is not placed until `PodEngine.settle` says so.
    """

    __slots__ = ("decision", "held", "status", "waits_s")

    def __init__(
        self, decision: Decision, status: Status, waits_s: Mapping[str, float] = _NO_WAITS, held: Held | None = None
    ) -> None:
        self.decision = decision
        self.status = status
        self.waits_s = waits_s
        self.held = held  # what was assumed and reserved for it; None where nothing is

    @property
    def node(self) -> str | None:
        return self.decision.node if self.status.ok else None

    @property
    def waiting(self) -> bool:
        return bool(self.waits_s)

    @property
    def rejectors(self) -> tuple[frozenset[str], frozenset[str]]:
        """Who rejected the pod, and of those who waits for something outside: what the queue has to know."""
        if self.status is self.decision.status or not self.status.rejected:
            return self.decision.rejectors
        plugin = frozenset(filter(None, (self.status.plugin,)))
        return plugin, plugin if self.status.code is Code.PENDING else frozenset()


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Profiles that were built and are not in use yet. `changed`: plugins that are not what they were."""

    configuration: Configuration
    registry: Registry
    attempts: Mapping[str, Attempts]
    changed: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Entered:
    """A pod with the moment it entered the queue."""

    pod: Pod
    timestamp: datetime


def any_of(chance: random.Random) -> TieBreak:
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
        post: Post | None = None,
        timings: PluginTimings | None = None,
        groups_preempt: bool = False,
        groups_placed: bool = False,
    ) -> None:
        self.configuration = configuration = apply_extenders(configuration)
        self.cache = cache
        self.pending: dict[str, Pod] = {}
        self.nominations = NominationLedger()
        self.waiting = WaitingPods()
        self.activated: dict[str, Pod] = {}  # by key: pods that plugins want tried now
        self.desk = BindRequestDesk(clock)
        self._held: dict[str, Held] = {}
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
        self._tries_out = False
        self._snapshot = cache.snapshot()
        self._sampler = Sampler()
        self._latest: Decision | None = None  # what was decided last, and is still to be read
        self._tie_break: TieBreak = tie_break or any_of(chance)
        self._handles: dict[str, EngineHandle] = {}
        self._registry = Registry()
        self._attempts: dict[str, Attempts] = {}
        self.install(self.rebuilt(configuration, registry))

    @property
    def scheduler_names(self) -> Iterable[str]:
        return self._attempts.keys()

    def framework(self, scheduler_name: str) -> Framework:
        """The profile that serves a scheduler name."""
        return self._attempts_of(scheduler_name).framework

    def aside(self, scheduler_name: str) -> Framework:
        """The plugins of a profile once more, for questions that decide nothing and enter no statistics."""
        profile = self.framework(scheduler_name).profile
        return Framework(profile, self._handles[scheduler_name], PluginTimings())

    def _attempts_of(self, scheduler_name: str) -> Attempts:
        try:
            return self._attempts[scheduler_name]
        except KeyError:
            known = ", ".join(self._attempts)
            raise ConfigError(
                f'no profile serves scheduler name "{scheduler_name}"; the configuration has: {known}', stage="profile"
            ) from None

    def serves(self, pod: Pod) -> bool:
        return pod.scheduler_name in self._attempts

    def classes(self, scheduler_name: str) -> Classes | None:
        """What pods of a profile share; None where each is evaluated on its own."""
        return self._attempts[scheduler_name].classes

    def looks_at(self, scheduler_name: str) -> Share:
        """How many nodes are looked at for pods of a profile, and why."""
        return self._attempts[scheduler_name].share

    def snapshot(self) -> Snapshot:
        """The cluster of now."""
        self._let_go()
        self.cache.refresh(self._snapshot)
        return self._snapshot

    def looking(self) -> Iterator[None]:
        """Look at the whole cluster in slices, so that the first attempt need not do so at once."""
        self._let_go()
        return self.cache.refreshing(self._snapshot)

    def _let_go(self) -> None:
        """Nothing that was found out on the snapshot as it was is needed any more."""
        if self._latest is not None:
            self._latest.let_go()
            self._latest = None

    def prepare(self, pod: Pod) -> PodInfo:
        """The pod with what can be computed before its turn comes: a queue does so when the pod enters."""
        last = self._prepared
        info = last.like(pod) if last is not None and asks_alike(last.pod, pod) else PodInfo(pod)
        info.complete(self.cache.vocabulary)
        self._prepared = info
        attempts = self._attempts.get(pod.scheduler_name)
        if attempts is not None and attempts.classes is not None:
            attempts.classes.kind_of(info)
        return info

    def in_queue_order(self, pods: Sequence[Pod]) -> list[Pod]:
        """Pods that entered the queue in this order, as it would hand them out: one QueueSort serves all profiles."""
        framework = next(iter(self._attempts.values())).framework
        (sorter,) = framework.profile.at(QUEUE_SORT)
        start = self._clock.now()
        entered = [_Entered(pod, start + timedelta(microseconds=place)) for place, pod in enumerate(pods)]

        def is_less(first: _Entered, second: _Entered) -> bool:
            answer = sorter.less(first, second)
            if not isinstance(answer, bool | np.bool_):
                raise PluginFault(sorter.name, QUEUE_SORT.key, f"less answers True or False; got {answer!r}")
            return bool(answer)

        def order(first: _Entered, second: _Entered) -> int:
            return -1 if is_less(first, second) else int(is_less(second, first))

        ordered = framework.boundary.call(sorter, QUEUE_SORT, sorted, entered, key=cmp_to_key(order))
        return [each.pod for each in ordered]

    def begin(self, pod: Pod | PodInfo) -> Cycle:
        """A cycle for the pod on a snapshot of now."""
        return Cycle(pod if isinstance(pod, PodInfo) else PodInfo(pod), self.snapshot())

    def standing(self, cycle: Cycle) -> Standing | None:
        """What pods like this one know already; None where the pod is evaluated on its own."""
        return self._attempts[cycle.pod.scheduler_name].standing(cycle)

    def try_pod(self, pod: Pod) -> Decision:
        """Decide, and assume nothing. (A record is kept, and the next search starts elsewhere.)"""
        decision = self._attempts_of(pod.scheduler_name).decide(self.begin(pod))
        self._record(pod, decision)
        return decision.in_detail()

    def place(self, pod: Pod | PodInfo) -> Placed:
        """Decide, assume the pod where it goes, reserve what it needs and ask for permission."""
        cycle = self.begin(pod)
        attempts = self._attempts_of(cycle.pod.scheduler_name)
        return self._placed(attempts.framework, cycle, attempts.decide(cycle))

    async def place_asking(self, pod: Pod | PodInfo, ask: Ask) -> Placed:
        """The same for a profile with extenders, which `ask` reaches. Nobody else may decide meanwhile."""
        cycle = self.begin(pod)
        attempts = self._attempts_of(cycle.pod.scheduler_name)
        return self._placed(attempts.framework, cycle, await attempts.decide_with(cycle, ask))

    async def chosen(
        self, pod: PodInfo, ask: Ask | None, within: Set[str] | None = None
    ) -> tuple[Framework, Cycle, Decision]:
        """Decide, and carry nothing out yet: for who decides about several pods before any of them moves.

        `within`: names of the nodes that may be looked at, where these are not all.
        """
        cycle = self.begin(pod)
        if within is not None:
            cycle.within = cycle.snapshot.rows_named(within)
        attempts = self._attempts_of(cycle.pod.scheduler_name)
        found = attempts.decide(cycle) if ask is None else await attempts.decide_with(cycle, ask)
        decision = found.in_detail()
        self._record(cycle.pod, decision)
        return attempts.framework, cycle, decision

    @contextmanager
    def trying_out(self) -> Iterator[None]:
        """Decisions meanwhile are about what could be: no PostFilter acts on them, and they are not recorded."""
        attempts = list(self._attempts.values())
        self._tries_out = True
        for each in attempts:
            each.asks_post_filters = False
        try:
            yield
        finally:
            self._tries_out = False
            for each in attempts:
                each.asks_post_filters = True

    def hold(self, framework: Framework, cycle: Cycle, node_name: str) -> tuple[Status, Held | None, PermitOutcome]:
        """Assume, reserve and ask for permission, in trial: who is held is to be taken back, and waits nowhere."""
        info = cycle.info.bound_to(node_name)
        self.cache.assume(info)
        with self.cache.devices.trial(), self.cache.volumes.trial():
            status = framework.committing.reserve(cycle, node_name)
        if not status.ok:
            self.cache.forget(info.pod)
            return refusal(status), None, PermitOutcome()
        held = Held(framework, cycle, info.pod)
        permit = framework.committing.permit(cycle, node_name)
        if not permit.status.ok:
            self.end_trial(held)
            return refusal(permit.status), None, permit
        return status, held, permit

    def _placed(self, framework: Framework, cycle: Cycle, decision: Decision) -> Placed:
        self._latest = decision
        placed = self._carry_out(framework, cycle, decision)
        if placed.status is not decision.status:  # refused after the choice, and the record tells how it ended
            decision = replace(decision.in_detail(), node=placed.node, status=placed.status)
        self._record(cycle.pod, decision)
        return placed

    def _record(self, pod: Pod, decision: Decision) -> None:
        if self.records.keeps_any and not self._tries_out:
            self.records.add(record_of(pod, decision, self._clock.now(), self._snapshot.layout))

    def close(self) -> None:
        for attempts in self._attempts.values():
            attempts.framework.close()

    def _carry_out(self, framework: Framework, cycle: Cycle, decision: Decision) -> Placed:
        if decision.nominate is not None:
            self.nominations.nominate(cycle.info, decision.nominate)
        if decision.node is None:
            return Placed(decision, decision.status)
        return self.commit(framework, cycle, decision)

    def commit(self, framework: Framework, cycle: Cycle, decision: Decision) -> Placed:
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

    def _commit_assumed(self, framework: Framework, cycle: Cycle, decision: Decision, bound: Pod) -> Placed:
        assert decision.node is not None
        self.nominations.withdraw(bound.metadata.uid)
        status = framework.committing.reserve(cycle, decision.node)
        if not status.ok:
            self.cache.forget(bound)
            return Placed(decision, refusal(status))
        permit = framework.committing.permit(cycle, decision.node)
        if not permit.status.ok:
            self.end_trial(Held(framework, cycle, bound))
            return Placed(decision, refusal(permit.status))
        held = Held(framework, cycle, bound)
        if permit.waits:
            self.waiting.add(bound, permit.waits, self._clock.monotonic_s())
            self._held[bound.uid] = held
        return Placed(decision, status, permit.waits, held)

    def settle(self) -> list[tuple[Pod, Status]]:
        """Let pods go whose wait is over, and take those back that were refused or waited too long."""
        settled = []
        now_s = self._clock.monotonic_s()
        for waiting in self.waiting.all():
            waiting.expire(now_s)
            if waiting.outcome is None:
                continue
            self.waiting.remove(waiting.pod.uid)
            held = self._held.pop(waiting.pod.uid)
            if not waiting.outcome.ok:
                self.take_back(held)
            settled.append((held.pod, refusal(waiting.outcome)))
        return settled

    def stop_waiting(self, uid: str) -> None:
        """Permit has decided about a pod, whichever way."""
        self.waiting.remove(uid)
        self._held.pop(uid, None)

    def take_back(self, held: Held) -> bool:
        """Undo what was reserved and assumed. False: the API server shows the pod on a node, so there it stays."""
        held.framework.committing.unreserve(held.cycle, held.pod.spec.node_name)
        if self.cache.pod(held.pod.uid) is not None and not self.cache.is_assumed(held.pod.uid):
            return False
        self.cache.forget(held.pod)
        return True

    def end_trial(self, held: Held) -> None:
        """Take back what was held in this attempt alone: no other pod can wait for it, so none is woken."""
        with self.cache.devices.trial(), self.cache.volumes.trial():
            self.take_back(held)

    # profiles ---------------------------------------------------------------------------------------------------

    def rebuilt(self, configuration: Configuration, registry: Registry) -> Rebuilt:
        """The profiles of a configuration with the plugins of a registry. Nothing changes before they are installed.

        A plugin whose class and arguments are the same is kept, with what it knows; the others are made anew.
        """
        configuration = replace_struct(self.configuration, profiles=apply_extenders(configuration).profiles)
        changed = {entry.name for entry in registry if self._registry.get(entry.name) != entry}
        changed |= {entry.name for entry in self._registry if entry.name not in registry}
        attempts: dict[str, Attempts] = {}
        try:
            for profile in configuration.profiles:
                kept = self._kept(profile, changed)
                attempts[profile.scheduler_name] = self._build(profile, configuration, registry, kept)
        except BayplanError:
            self._close_new(attempts)
            raise
        return Rebuilt(configuration, registry, attempts, frozenset(changed))

    def discard(self, rebuilt: Rebuilt) -> None:
        """Let profiles go that are not to be installed after all."""
        self._close_new(rebuilt.attempts)

    def install(self, rebuilt: Rebuilt) -> list[Any]:
        """Go on with other profiles, between two attempts. Returns the plugins that nobody is going to ask again,
        except about pods that were placed before."""
        retired = [
            plugin
            for name, old in self._attempts.items()
            for plugin in old.framework.profile.instances.values()
            if name not in rebuilt.attempts or not _has(rebuilt.attempts[name], plugin)
        ]
        self.configuration, self._registry = rebuilt.configuration, rebuilt.registry
        self._attempts = dict(rebuilt.attempts)
        for name, attempts in self._attempts.items():
            self._handles[name].framework = attempts.framework
        return retired

    def _kept(self, profile: Profile, changed: Set[str]) -> dict[str, Any]:
        """Plugins of a profile that need not be made anew."""
        name = profile.scheduler_name
        if name not in self._attempts:
            return {}
        before = next(each for each in self.configuration.profiles if each.scheduler_name == name).plugin_config
        return {
            plugin.name: plugin
            for plugin in self._attempts[name].framework.profile.instances.values()
            if plugin.name not in changed and before.get(plugin.name) == profile.plugin_config.get(plugin.name)
        }

    def _close_new(self, built: Mapping[str, Attempts]) -> None:
        """Close the plugins that were made for profiles which are not used after all."""
        for name, attempts in built.items():
            old = self._attempts.get(name)
            instances = attempts.framework.profile.instances.values()
            close_all(plugin for plugin in instances if old is None or not _has(old, plugin))

    def _build(
        self, profile: Profile, configuration: Configuration, registry: Registry, kept: Mapping[str, Any]
    ) -> Attempts:
        handle = self._handles.setdefault(profile.scheduler_name, self._handle())
        completed = build_profile(profile, registry, handle, kept)
        framework = Framework(completed, handle, self.timings)
        return Attempts(
            framework=framework,
            tie_break=self._tie_break,
            sampler=self._sampler,
            share=share_for(configuration, completed.percentage_of_nodes_to_score, framework),
            extenders=tuple(map(Extender, configuration.extenders)),
            classes=Classes(completed, framework.boundary) if self._share else None,
            groups_preempt=self._groups_preempt,
            groups_placed=self._groups_placed,
        )

    def _handle(self) -> EngineHandle:
        return EngineHandle(
            self._clock,
            self._chance,
            self.cache,
            self.nominations,
            self.waiting,
            self._writes,
            self.pending,
            self.activated,
            self._post,
            self.desk,
        )


def _has(attempts: Attempts, plugin: Any) -> bool:
    return any(each is plugin for each in attempts.framework.profile.instances.values())


def refusal(status: Status) -> Status:
    """A refusal after the node was chosen, in the words of a pod that had one node to go to."""
    if not status.rejected:
        return status
    counts = ", ".join(sorted(f"1 {reason}" for reason in status.reasons))
    return Status(status.code, (f"0/1 nodes are available: {counts}.",), plugin=status.plugin)
