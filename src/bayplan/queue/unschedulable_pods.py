"""Pods that wait for an event, kept by who rejected them and by what the hints of those look at.

An event is held against the few sets of plugins that rejected somebody; where one of them is interested, each hint is
asked once for all pods that it cannot tell apart. Cost of an event: nothing for sets of plugins that do not care, one
look a class of pods for those that do, and one hint for every value that it has not seen yet. The work is cut in
slices: `woken` says when it is a good moment to let others have a turn.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple
from weakref import WeakValueDictionary

from bayplan.framework.api.events import Reads
from bayplan.framework.runtime.plugin_call import FAULTS
from bayplan.queue.hints import (
    HintTable,
    Occasion,
    Reading,
    Registration,
    Strategy,
)
from bayplan.queue.queued_pod import QueuedPod

log = logging.getLogger(__name__)

SLICE = 256
"""How many classes are looked at before others have a turn."""
WAKING = 4
"""How many looks it is worth to wake a pod: gates are asked, and it enters another pool."""

Found = tuple[QueuedPod, Strategy] | None
"""A pod to be woken and how; None: a slice is over."""


class Rejected(NamedTuple):
    """Everything that decides which hints count for a pod."""

    profile: str
    unschedulable: frozenset[str]
    pending: frozenset[str]
    gated_by: str


class Kin:
    """Parked pods that no hint of their rejectors can tell apart, as far as it says what it looks at."""

    __slots__ = ("family", "has_loners", "pods", "readings")

    def __init__(self, family: _Family, readings: tuple[Reading | None, ...]) -> None:
        self.family = family
        self.readings = readings
        self.has_loners = None in readings  # some hint has to be asked about each of them
        self.pods: dict[str, QueuedPod] = {}


class _Question(NamedTuple):
    """One registration, put to the pods of a family on one occasion."""

    registration: Registration
    number: int | None  # which of a kin's readings it looks at; None: it is asked about each pod
    meaning: Strategy  # of a yes
    answers: dict[Reading, bool]


@dataclass(slots=True)
class Plan:
    """What an event does to a whole family whatever hints say, and the hints that may do more."""

    at_least: Strategy
    questions: list[_Question]


class _Family:
    """Parked pods with the same rejectors."""

    __slots__ = ("kins", "readers", "rejected")

    def __init__(self, rejected: Rejected, readers: tuple[Reads, ...]) -> None:
        self.rejected = rejected
        self.readers = {reads: number for number, reads in enumerate(readers)}
        self.kins: dict[tuple[Reading | None, ...], Kin] = {}


class ParkedPods:
    """The pods that wait for something to happen, gated ones among them."""

    def __init__(self, table: HintTable) -> None:
        self._table = table
        self._families: dict[Rejected, _Family] = {}
        self._former: list[_Family] = []  # told apart by hints that no longer hold; their pods are on their way out
        self._parkings = count(1)
        self._last = 0
        self._count = 0
        self._gated = 0
        self._readings: dict[Reads, WeakValueDictionary[Hashable, Reading]] = {}
        self._complained: set[Reads] = set()

    def __len__(self) -> int:
        return self._count

    @property
    def gated(self) -> int:
        """How many of them a PreEnqueue plugin holds back."""
        return self._gated

    def __iter__(self) -> Iterator[QueuedPod]:
        for family in self._everybody():
            for kin in family.kins.values():
                yield from kin.pods.values()

    def _everybody(self) -> list[_Family]:
        return [*self._former, *self._families.values()]

    def regrouping(self, table: HintTable) -> Iterator[QueuedPod]:
        """Other hints hold from this call on: the pods that are parked now, each as soon as it is told apart anew.

        To read them all may take a second, so between two of them the others may have a turn, and pods may come, go and
        be woken: one whose turn has not come yet is asked alone by hints that nobody has read it for.
        """
        self._table = table
        kept = table.all_readers()
        self._readings = {reads: known for reads, known in self._readings.items() if reads in kept}
        self._former += self._families.values()
        self._families = {}
        return self._regrouped(list(self._former))

    def _regrouped(self, families: list[_Family]) -> Iterator[QueuedPod]:
        for family in families:
            for kin in list(family.kins.values()):
                for queued in list(kin.pods.values()):
                    if queued.kin is kin:
                        self.remove(queued)
                        kept = self._table.all_readers()  # what was read off it for other hints is of use to nobody
                        queued.readings = {reads: part for reads, part in queued.readings.items() if reads in kept}
                        self._enter(queued)
                        yield queued
            self._former = [each for each in self._former if each is not family]

    def add(self, queued: QueuedPod) -> None:
        self._enter(queued)
        queued.parked = self._last = next(self._parkings)

    def _enter(self, queued: QueuedPod) -> None:
        pod = queued.pod
        rejected = Rejected(pod.scheduler_name, queued.unschedulable_plugins, queued.pending_plugins, queued.gated_by)
        family = self._families.get(rejected)
        if family is None:
            readers = self._table.readers(rejected.profile, queued.rejectors)
            family = self._families[rejected] = _Family(rejected, readers)
        readings = tuple([self._reading(reads, queued) for reads in family.readers])
        kin = family.kins.get(readings)
        if kin is None:
            kin = family.kins[readings] = Kin(family, readings)
        kin.pods[queued.key] = queued
        queued.kin = kin
        self._count += 1
        self._gated += bool(rejected.gated_by)

    def remove(self, queued: QueuedPod) -> None:
        kin = queued.kin
        assert kin is not None
        del kin.pods[queued.key]
        queued.kin = None
        family = kin.family
        self._count -= 1
        self._gated -= bool(family.rejected.gated_by)
        if not kin.pods:
            del family.kins[kin.readings]
            if not family.kins and self._families.get(family.rejected) is family:
                del self._families[family.rejected]

    def _reading(self, reads: Reads, queued: QueuedPod) -> Reading | None:
        """What the hint looks at in this pod; None where it has to be asked about the pod alone."""
        if reads in queued.readings:
            return queued.readings[reads]
        known = self._readings.setdefault(reads, WeakValueDictionary())
        reading: Reading | None = None
        try:
            value = reads(queued.pod)
            if value is not None:
                reading = known.get(value) or known.setdefault(value, Reading(value))
        except FAULTS as fault:
            self._complain(reads, fault)
        queued.readings[reads] = reading
        return reading

    def _complain(self, reads: Reads, fault: BaseException) -> None:
        """Sharing answers is no more than a shortcut: what stands in its way is told once and costs nothing else."""
        if reads not in self._complained:
            self._complained.add(reads)
            log.warning("what a hint reads could not be found out; its pods are asked one by one", exc_info=fault)

    # events -----------------------------------------------------------------------------------------------------

    def woken(
        self,
        occasion: Occasion,
        *,
        at_most: int | None = None,
        own: QueuedPod | None = None,
        spare_own: bool = False,
    ) -> Iterator[Found]:
        """The pods that the event makes worth another try, each to be taken out by the caller as it comes.

        `at_most`: pods of higher priority are left alone. `own`: the parked pod that the event is about, if any, which
        `spare_own` leaves alone. Pods that are parked after this call have seen the event already.
        """
        return self._woken(occasion, at_most, own, spare_own, self._last)

    def _woken(
        self, occasion: Occasion, at_most: int | None, own: QueuedPod | None, spare_own: bool, started: int
    ) -> Iterator[Found]:
        if own is not None and not spare_own:
            yield from self._woken_itself(own, occasion, at_most)
        if occasion.event.is_wildcard and occasion.new is not None:
            return  # it means that pod and no other
        steps = 0
        for family in self._everybody():
            plan = self._plan(family, occasion)
            if plan is None:
                continue
            for verdict in self._verdicts(family, plan, occasion, own):
                if verdict is None:
                    yield None
                    continue
                kin, strategy = verdict
                for queued in self._members(kin, own, started, at_most):
                    found = self._judged_alone(queued, kin, strategy, plan, occasion)
                    steps += 1
                    if found:
                        yield queued, found
                        steps += WAKING
                    if steps >= SLICE:
                        steps = 0
                        yield None

    def _woken_itself(self, own: QueuedPod, occasion: Occasion, at_most: int | None) -> Iterator[Found]:
        if (at_most is None or own.info.priority <= at_most) and self._hears(own.gated_by, occasion):
            strategy = self._table.strategy(own, occasion)
            if strategy:
                yield own, strategy

    def _hears(self, gated_by: str, occasion: Occasion) -> bool:
        """A pod behind a gate hears only what the gate's plugin waits for, and what is meant for everybody."""
        event = occasion.event
        return not gated_by or event.is_wildcard or self._table.is_awaited_by(gated_by, event)

    def _plan(self, family: _Family, occasion: Occasion) -> Plan | None:
        """What the event does to the whole family, and what has to be asked beyond; None: nobody is interested."""
        profile, unschedulable, pending, gated_by = family.rejected
        if not self._hears(gated_by, occasion):
            return None
        rejectors = unschedulable | pending
        if occasion.event.is_wildcard or not rejectors or not self._table.knows(profile):
            return Plan(Strategy.AFTER_BACKOFF, [])
        plan = Plan(Strategy.SKIP, [])
        for registration in self._table.matching(profile, occasion.event):
            if registration.plugin not in rejectors:
                continue
            meaning = Strategy.IMMEDIATELY if registration.plugin in pending else Strategy.AFTER_BACKOFF
            cure = registration.cure
            if cure.hint is None:
                plan.at_least = max(plan.at_least, meaning)
            else:
                number = None if cure.reads is None else family.readers.get(cure.reads)
                plan.questions.append(_Question(registration, number, meaning, {}))
        plan.questions = [each for each in plan.questions if each.meaning > plan.at_least]
        plan.questions.sort(key=lambda question: -question.meaning)
        return plan if plan.at_least or plan.questions else None

    def _verdicts(
        self, family: _Family, plan: Plan, occasion: Occasion, own: QueuedPod | None
    ) -> Iterator[tuple[Kin, Strategy] | None]:
        """The kins that the event may wake and what their shared hints make of them; None: a slice is over.

        Hints that mean most are asked first, and each only about those that no other has decided yet.
        """
        undecided = list(family.kins.values())
        for question in plan.questions:
            if question.number is None:
                continue
            asked, undecided = undecided, []
            for start in range(0, len(asked), SLICE):
                kins = asked[start : start + SLICE]
                agreed = self._agreed(kins, question, occasion, own)
                for kin in agreed:
                    yield kin, question.meaning
                undecided += kins if not agreed else _without(kins, agreed)
                if start:
                    yield None
        everybody = plan.at_least or any(question.number is None for question in plan.questions)
        for kin in undecided:
            if everybody or kin.has_loners:
                yield kin, plan.at_least

    def _agreed(self, kins: list[Kin], question: _Question, occasion: Occasion, own: QueuedPod | None) -> list[Kin]:
        """Those of which the answer to a question is yes. It is put to each part that they have once."""
        registration, number, _, answers = question
        assert number is not None
        if registration.cure.judge is not None:
            readings = [kin.readings[number] for kin in kins]
            self._table.judge(registration, readings, answers, occasion)
            return [kin for kin, part in zip(kins, readings, strict=True) if part is not None and answers[part]]
        agreed = []
        for kin in kins:
            reading = kin.readings[number]
            if reading is None:
                continue
            if reading not in answers:
                one = next((each for each in kin.pods.values() if each is not own), None)
                if one is None:
                    continue
                answers[reading] = self._table.ask(registration, one.pod, occasion)
            if answers[reading]:
                agreed.append(kin)
        return agreed

    @staticmethod
    def _members(kin: Kin, own: QueuedPod | None, started: int, at_most: int | None) -> Iterator[QueuedPod]:
        """The pods of a kin that the event is held against; those that are taken out meanwhile are left out."""
        for queued in list(kin.pods.values()):
            if queued.kin is not kin or queued is own or queued.parked > started:
                continue
            if at_most is None or queued.info.priority <= at_most:
                yield queued

    def _judged_alone(
        self, queued: QueuedPod, kin: Kin, strategy: Strategy, plan: Plan, occasion: Occasion
    ) -> Strategy:
        """What the event does to one pod, hints that have to be asked about each pod included."""
        for registration, number, meaning, _ in plan.questions:
            shared = number is not None and kin.readings[number] is not None
            if not shared and meaning > strategy and self._table.ask(registration, queued.pod, occasion):
                strategy = meaning
        return strategy


def _without(kins: list[Kin], gone: list[Kin]) -> list[Kin]:
    left = set(map(id, gone))
    return [kin for kin in kins if id(kin) not in left]
