"""Pods that wait for an event, kept by who rejected them and by what the hints of those look at.

An event is held against the few sets of plugins that rejected somebody; where one of them is interested, each hint is
asked once for all pods that it cannot tell apart. Cost of an event: nothing for sets of plugins that do not care, one
look a class of pods for those that do, and one hint for every value that it has not seen yet. The work is cut in
slices: `pods_to_requeue` says when it is a good moment to let others have a turn.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple
from weakref import WeakValueDictionary

from bayplan.framework.api.events import HintKeyFunction
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.queue.hints import (
    HintKey,
    HintRegistration,
    HintTable,
    ObservedEvent,
    QueueingStrategy,
)
from bayplan.queue.queued_pod import QueuedPodInfo

log = logging.getLogger(__name__)

CLASSES_PER_SLICE = 256
"""How many classes are looked at before others have a turn."""
REQUEUE_COST = 4
"""How many looks it is worth to wake a pod: gates are asked, and it enters another pool."""

RequeueCandidate = tuple[QueuedPodInfo, QueueingStrategy] | None
"""A pod to be woken and how; None: a slice is over."""


class RejectionKey(NamedTuple):
    """Everything that decides which hints count for a pod."""

    profile: str
    unschedulable: frozenset[str]
    pending: frozenset[str]
    gated_by: str


class HintClass:
    """Parked pods that no hint of their rejectors can tell apart, as far as it says what it looks at."""

    __slots__ = ("hint_keys", "needs_per_pod_hints", "pods", "rejector_group")

    def __init__(self, family: _RejectorGroup, readings: tuple[HintKey | None, ...]) -> None:
        self.rejector_group = family
        self.hint_keys = readings
        self.needs_per_pod_hints = None in readings  # some hint has to be asked about each of them
        self.pods: dict[str, QueuedPodInfo] = {}


class _HintQuery(NamedTuple):
    """One registration, put to the pods of a family on one occasion."""

    registration: HintRegistration
    number: int | None  # which of a kin's readings it looks at; None: it is asked about each pod
    strategy: QueueingStrategy  # of a yes
    answers: dict[HintKey, bool]


@dataclass(slots=True)
class RequeuePlan:
    """What an event does to a whole family whatever hints say, and the hints that may do more."""

    minimum: QueueingStrategy
    queries: list[_HintQuery]


class _RejectorGroup:
    """Parked pods with the same rejectors."""

    __slots__ = ("hint_classes", "hint_key_functions", "rejected")

    def __init__(self, rejected: RejectionKey, readers: tuple[HintKeyFunction, ...]) -> None:
        self.rejected = rejected
        self.hint_key_functions = {reads: number for number, reads in enumerate(readers)}
        self.hint_classes: dict[tuple[HintKey | None, ...], HintClass] = {}


class UnschedulablePods:
    """The pods that wait for something to happen, gated ones among them."""

    def __init__(self, table: HintTable) -> None:
        self._table = table
        self._groups: dict[RejectionKey, _RejectorGroup] = {}
        self._stale_groups: list[
            _RejectorGroup
        ] = []  # told apart by hints that no longer hold; their pods are on their way out
        self._parkings = count(1)
        self._last = 0
        self._count = 0
        self._gated = 0
        self._hint_keys: dict[HintKeyFunction, WeakValueDictionary[Hashable, HintKey]] = {}
        self._complained: set[HintKeyFunction] = set()

    def __len__(self) -> int:
        return self._count

    @property
    def gated(self) -> int:
        """How many of them a PreEnqueue plugin holds back."""
        return self._gated

    def __iter__(self) -> Iterator[QueuedPodInfo]:
        for family in self._all_groups():
            for kin in family.hint_classes.values():
                yield from kin.pods.values()

    def _all_groups(self) -> list[_RejectorGroup]:
        return [*self._stale_groups, *self._groups.values()]

    def regroup(self, table: HintTable) -> Iterator[QueuedPodInfo]:
        """Other hints hold from this call on: the pods that are parked now, each as soon as it is told apart anew.

        To read them all may take a second, so between two of them the others may have a turn, and pods may come, go and
        be woken: one whose turn has not come yet is asked alone by hints that nobody has read it for.
        """
        self._table = table
        kept = table.all_hint_key_functions()
        self._hint_keys = {reads: known for reads, known in self._hint_keys.items() if reads in kept}
        self._stale_groups += self._groups.values()
        self._groups = {}
        return self._regroup_pods(list(self._stale_groups))

    def _regroup_pods(self, families: list[_RejectorGroup]) -> Iterator[QueuedPodInfo]:
        for family in families:
            for kin in list(family.hint_classes.values()):
                for queued in list(kin.pods.values()):
                    if queued.hint_class is kin:
                        self.remove(queued)
                        kept = (
                            self._table.all_hint_key_functions()
                        )  # what was read off it for other hints is of use to nobody
                        queued.hint_keys = {reads: part for reads, part in queued.hint_keys.items() if reads in kept}
                        self._enter(queued)
                        yield queued
            self._stale_groups = [each for each in self._stale_groups if each is not family]

    def add(self, queued: QueuedPodInfo) -> None:
        self._enter(queued)
        queued.unschedulable_sequence = self._last = next(self._parkings)

    def _enter(self, queued: QueuedPodInfo) -> None:
        pod = queued.pod
        rejected = RejectionKey(
            pod.scheduler_name, queued.unschedulable_plugins, queued.pending_plugins, queued.gated_by
        )
        family = self._groups.get(rejected)
        if family is None:
            readers = self._table.hint_key_functions(rejected.profile, queued.rejectors)
            family = self._groups[rejected] = _RejectorGroup(rejected, readers)
        readings = tuple([self._hint_key(reads, queued) for reads in family.hint_key_functions])
        kin = family.hint_classes.get(readings)
        if kin is None:
            kin = family.hint_classes[readings] = HintClass(family, readings)
        kin.pods[queued.key] = queued
        queued.hint_class = kin
        self._count += 1
        self._gated += bool(rejected.gated_by)

    def remove(self, queued: QueuedPodInfo) -> None:
        kin = queued.hint_class
        assert kin is not None
        del kin.pods[queued.key]
        queued.hint_class = None
        family = kin.rejector_group
        self._count -= 1
        self._gated -= bool(family.rejected.gated_by)
        if not kin.pods:
            del family.hint_classes[kin.hint_keys]
            if not family.hint_classes and self._groups.get(family.rejected) is family:
                del self._groups[family.rejected]

    def _hint_key(self, reads: HintKeyFunction, queued: QueuedPodInfo) -> HintKey | None:
        """What the hint looks at in this pod; None where it has to be asked about the pod alone."""
        if reads in queued.hint_keys:
            return queued.hint_keys[reads]
        known = self._hint_keys.setdefault(reads, WeakValueDictionary())
        reading: HintKey | None = None
        try:
            value = reads(queued.pod)
            if value is not None:
                reading = known.get(value) or known.setdefault(value, HintKey(value))
        except PLUGIN_EXCEPTIONS as fault:
            self._log_key_error(reads, fault)
        queued.hint_keys[reads] = reading
        return reading

    def _log_key_error(self, reads: HintKeyFunction, fault: BaseException) -> None:
        """Sharing answers is no more than a shortcut: what stands in its way is told once and costs nothing else."""
        if reads not in self._complained:
            self._complained.add(reads)
            log.warning("what a hint reads could not be found out; its pods are asked one by one", exc_info=fault)

    # events -----------------------------------------------------------------------------------------------------

    def pods_to_requeue(
        self,
        occasion: ObservedEvent,
        *,
        at_most: int | None = None,
        own: QueuedPodInfo | None = None,
        spare_own: bool = False,
    ) -> Iterator[RequeueCandidate]:
        """The pods that the event makes worth another try, each to be taken out by the caller as it comes.

        `at_most`: pods of higher priority are left alone. `own`: the parked pod that the event is about, if any, which
        `spare_own` leaves alone. Pods that are parked after this call have seen the event already.
        """
        return self._pods_to_requeue(occasion, at_most, own, spare_own, self._last)

    def _pods_to_requeue(
        self, occasion: ObservedEvent, at_most: int | None, own: QueuedPodInfo | None, spare_own: bool, started: int
    ) -> Iterator[RequeueCandidate]:
        if own is not None and not spare_own:
            yield from self._requeue_itself(own, occasion, at_most)
        if occasion.event.is_wildcard and occasion.new is not None:
            return  # it means that pod and no other
        steps = 0
        for family in self._all_groups():
            plan = self._plan(family, occasion)
            if plan is None:
                continue
            for verdict in self._class_strategies(family, plan, occasion, own):
                if verdict is None:
                    yield None
                    continue
                kin, strategy = verdict
                for queued in self._members(kin, own, started, at_most):
                    found = self._pod_strategy(queued, kin, strategy, plan, occasion)
                    steps += 1
                    if found:
                        yield queued, found
                        steps += REQUEUE_COST
                    if steps >= CLASSES_PER_SLICE:
                        steps = 0
                        yield None

    def _requeue_itself(
        self, own: QueuedPodInfo, occasion: ObservedEvent, at_most: int | None
    ) -> Iterator[RequeueCandidate]:
        if (at_most is None or own.info.priority <= at_most) and self._passes_gate(own.gated_by, occasion):
            strategy = self._table.strategy(own, occasion)
            if strategy:
                yield own, strategy

    def _passes_gate(self, gated_by: str, occasion: ObservedEvent) -> bool:
        """A pod behind a gate hears only what the gate's plugin waits for, and what is meant for everybody."""
        event = occasion.event
        return not gated_by or event.is_wildcard or self._table.is_registered_by(gated_by, event)

    def _plan(self, family: _RejectorGroup, occasion: ObservedEvent) -> RequeuePlan | None:
        """What the event does to the whole family, and what has to be asked beyond; None: nobody is interested."""
        profile, unschedulable, pending, gated_by = family.rejected
        if not self._passes_gate(gated_by, occasion):
            return None
        rejectors = unschedulable | pending
        if occasion.event.is_wildcard or not rejectors or not self._table.knows(profile):
            return RequeuePlan(QueueingStrategy.AFTER_BACKOFF, [])
        plan = RequeuePlan(QueueingStrategy.SKIP, [])
        for registration in self._table.matching(profile, occasion.event):
            if registration.plugin not in rejectors:
                continue
            meaning = QueueingStrategy.IMMEDIATELY if registration.plugin in pending else QueueingStrategy.AFTER_BACKOFF
            cure = registration.event_with_hint
            if cure.hint is None:
                plan.minimum = max(plan.minimum, meaning)
            else:
                number = None if cure.hint_key is None else family.hint_key_functions.get(cure.hint_key)
                plan.queries.append(_HintQuery(registration, number, meaning, {}))
        plan.queries = [each for each in plan.queries if each.strategy > plan.minimum]
        plan.queries.sort(key=lambda question: -question.strategy)
        return plan if plan.minimum or plan.queries else None

    def _class_strategies(
        self, family: _RejectorGroup, plan: RequeuePlan, occasion: ObservedEvent, own: QueuedPodInfo | None
    ) -> Iterator[tuple[HintClass, QueueingStrategy] | None]:
        """The kins that the event may wake and what their shared hints make of them; None: a slice is over.

        Hints that mean most are asked first, and each only about those that no other has decided yet.
        """
        undecided = list(family.hint_classes.values())
        for question in plan.queries:
            if question.number is None:
                continue
            asked, undecided = undecided, []
            for start in range(0, len(asked), CLASSES_PER_SLICE):
                kins = asked[start : start + CLASSES_PER_SLICE]
                agreed = self._classes_with_queue_hint(kins, question, occasion, own)
                for kin in agreed:
                    yield kin, question.strategy
                undecided += kins if not agreed else _excluding(kins, agreed)
                if start:
                    yield None
        everybody = plan.minimum or any(question.number is None for question in plan.queries)
        for kin in undecided:
            if everybody or kin.needs_per_pod_hints:
                yield kin, plan.minimum

    def _classes_with_queue_hint(
        self, kins: list[HintClass], question: _HintQuery, occasion: ObservedEvent, own: QueuedPodInfo | None
    ) -> list[HintClass]:
        """Those of which the answer to a question is yes. It is put to each part that they have once."""
        registration, number, _, answers = question
        assert number is not None
        if registration.event_with_hint.keyed_hint is not None:
            readings = [kin.hint_keys[number] for kin in kins]
            self._table.evaluate_for_keys(registration, readings, answers, occasion)
            return [kin for kin, part in zip(kins, readings, strict=True) if part is not None and answers[part]]
        agreed = []
        for kin in kins:
            reading = kin.hint_keys[number]
            if reading is None:
                continue
            if reading not in answers:
                one = next((each for each in kin.pods.values() if each is not own), None)
                if one is None:
                    continue
                answers[reading] = self._table.evaluate_for_pod(registration, one.pod, occasion)
            if answers[reading]:
                agreed.append(kin)
        return agreed

    @staticmethod
    def _members(
        kin: HintClass, own: QueuedPodInfo | None, started: int, at_most: int | None
    ) -> Iterator[QueuedPodInfo]:
        """The pods of a kin that the event is held against; those that are taken out meanwhile are left out."""
        for queued in list(kin.pods.values()):
            if queued.hint_class is not kin or queued is own or queued.unschedulable_sequence > started:
                continue
            if at_most is None or queued.info.priority <= at_most:
                yield queued

    def _pod_strategy(
        self,
        queued: QueuedPodInfo,
        kin: HintClass,
        strategy: QueueingStrategy,
        plan: RequeuePlan,
        occasion: ObservedEvent,
    ) -> QueueingStrategy:
        """What the event does to one pod, hints that have to be asked about each pod included."""
        for registration, number, meaning, _ in plan.queries:
            shared = number is not None and kin.hint_keys[number] is not None
            if not shared and meaning > strategy and self._table.evaluate_for_pod(registration, queued.pod, occasion):
                strategy = meaning
        return strategy


def _excluding(kins: list[HintClass], gone: list[HintClass]) -> list[HintClass]:
    left = set(map(id, gone))
    return [kin for kin in kins if id(kin) not in left]
