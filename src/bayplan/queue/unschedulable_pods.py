"""Unschedulable pods, grouped by their rejectors and by the values that the hints of these plugins read.

An event is matched with the few distinct sets of rejectors. If a rejector registered for it, each hint runs once for
all pods with an equal key. Cost of an event: nothing for sets of plugins without a registration, one check for each
class of pods otherwise, and one hint call for every new key. The work is split into slices: `pods_to_requeue` yields
None where other work may run.
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
from bayplan.queue.hints import HintKey, HintRegistration, HintTable, ObservedEvent, QueueingStrategy
from bayplan.queue.queued_pod import QueuedPodInfo

log = logging.getLogger(__name__)

CLASSES_PER_SLICE = 256
"""Number of classes that are checked in one slice."""
REQUEUE_COST = 4
"""Cost of requeuing a pod, in class checks: PreEnqueue runs, and the pod enters another sub-queue."""

RequeueCandidate = tuple[QueuedPodInfo, QueueingStrategy] | None
"""A pod to requeue and its strategy. None: the slice is over."""


class RejectionKey(NamedTuple):
    """Everything that determines which hints count for a pod."""

    profile: str
    unschedulable: frozenset[str]
    pending: frozenset[str]
    gated_by: str


class HintClass:
    """Unschedulable pods that no hint of their rejectors can distinguish by the declared hint keys."""

    __slots__ = ("hint_keys", "needs_per_pod_hints", "pods", "rejector_group")

    def __init__(self, group: _RejectorGroup, keys: tuple[HintKey | None, ...]) -> None:
        self.rejector_group = group
        self.hint_keys = keys
        self.needs_per_pod_hints = None in keys  # some hint must run for each pod
        self.pods: dict[str, QueuedPodInfo] = {}


class _HintQuery(NamedTuple):
    """One registration, evaluated for the pods of a group for one event."""

    registration: HintRegistration
    number: int | None  # index of the hint key; None: the hint runs for each pod
    strategy: QueueingStrategy  # if the hint returns Queue
    results: dict[HintKey, bool]


@dataclass(slots=True)
class RequeuePlan:
    """The effect of an event on a whole group without hints, and the hints that may increase it."""

    minimum: QueueingStrategy
    queries: list[_HintQuery]


class _RejectorGroup:
    """Unschedulable pods with the same rejectors."""

    __slots__ = ("hint_classes", "hint_key_functions", "rejected")

    def __init__(self, rejected: RejectionKey, hint_key_functions: tuple[HintKeyFunction, ...]) -> None:
        self.rejected = rejected
        self.hint_key_functions = {hint_key: number for number, hint_key in enumerate(hint_key_functions)}
        self.hint_classes: dict[tuple[HintKey | None, ...], HintClass] = {}


class UnschedulablePods:
    """The unschedulable pods, including gated pods."""

    def __init__(self, table: HintTable) -> None:
        self._table = table
        self._groups: dict[RejectionKey, _RejectorGroup] = {}
        # grouped by outdated hint keys; their pods are being regrouped
        self._stale_groups: list[_RejectorGroup] = []
        self._sequence = count(1)
        self._last_sequence = 0
        self._count = 0
        self._gated = 0
        self._hint_keys: dict[HintKeyFunction, WeakValueDictionary[Hashable, HintKey]] = {}
        self._logged: set[HintKeyFunction] = set()

    def __len__(self) -> int:
        return self._count

    @property
    def gated(self) -> int:
        """Number of pods that a PreEnqueue plugin gates."""
        return self._gated

    def __iter__(self) -> Iterator[QueuedPodInfo]:
        for group in self._all_groups():
            for hint_class in group.hint_classes.values():
                yield from hint_class.pods.values()

    def _all_groups(self) -> list[_RejectorGroup]:
        return [*self._stale_groups, *self._groups.values()]

    def regroup(self, table: HintTable) -> Iterator[QueuedPodInfo]:
        """Use another hint table from this call on. Yields each unschedulable pod as soon as it is regrouped.

        All pods may take a second, so other work may run between two pods, and pods may be added and removed. For a pod
        that is not regrouped yet, hints without a key run separately.
        """
        self._table = table
        current = table.all_hint_key_functions()
        self._hint_keys = {
            hint_key: known_keys for hint_key, known_keys in self._hint_keys.items() if hint_key in current
        }
        self._stale_groups += self._groups.values()
        self._groups = {}
        return self._regroup_pods(list(self._stale_groups))

    def _regroup_pods(self, groups: list[_RejectorGroup]) -> Iterator[QueuedPodInfo]:
        for group in groups:
            for hint_class in list(group.hint_classes.values()):
                for queued in list(hint_class.pods.values()):
                    if queued.hint_class is hint_class:
                        self.remove(queued)
                        current = self._table.all_hint_key_functions()  # keys of other functions are obsolete
                        queued.hint_keys = {
                            hint_key: key for hint_key, key in queued.hint_keys.items() if hint_key in current
                        }
                        self._insert(queued)
                        yield queued
            self._stale_groups = [each for each in self._stale_groups if each is not group]

    def add(self, queued: QueuedPodInfo) -> None:
        self._insert(queued)
        queued.unschedulable_sequence = self._last_sequence = next(self._sequence)

    def _insert(self, queued: QueuedPodInfo) -> None:
        pod = queued.pod
        rejected = RejectionKey(
            pod.scheduler_name, queued.unschedulable_plugins, queued.pending_plugins, queued.gated_by
        )
        group = self._groups.get(rejected)
        if group is None:
            hint_key_functions = self._table.hint_key_functions(rejected.profile, queued.rejectors)
            group = self._groups[rejected] = _RejectorGroup(rejected, hint_key_functions)
        keys = tuple([self._hint_key(hint_key, queued) for hint_key in group.hint_key_functions])
        hint_class = group.hint_classes.get(keys)
        if hint_class is None:
            hint_class = group.hint_classes[keys] = HintClass(group, keys)
        hint_class.pods[queued.key] = queued
        queued.hint_class = hint_class
        self._count += 1
        self._gated += bool(rejected.gated_by)

    def remove(self, queued: QueuedPodInfo) -> None:
        hint_class = queued.hint_class
        assert hint_class is not None
        del hint_class.pods[queued.key]
        queued.hint_class = None
        group = hint_class.rejector_group
        self._count -= 1
        self._gated -= bool(group.rejected.gated_by)
        if not hint_class.pods:
            del group.hint_classes[hint_class.hint_keys]
            if not group.hint_classes and self._groups.get(group.rejected) is group:
                del self._groups[group.rejected]

    def _hint_key(self, hint_key: HintKeyFunction, queued: QueuedPodInfo) -> HintKey | None:
        """Return the key of the pod for a hint; None if the hint must run for this pod separately."""
        if hint_key in queued.hint_keys:
            return queued.hint_keys[hint_key]
        known_keys = self._hint_keys.setdefault(hint_key, WeakValueDictionary())
        key: HintKey | None = None
        try:
            value = hint_key(queued.pod)
            if value is not None:
                key = known_keys.get(value) or known_keys.setdefault(value, HintKey(value))
        except PLUGIN_EXCEPTIONS as fault:
            self._log_key_error(hint_key, fault)
        queued.hint_keys[hint_key] = key
        return key

    def _log_key_error(self, hint_key: HintKeyFunction, fault: BaseException) -> None:
        """Log a failure once. Sharing results only saves time, so a failure has no other effect."""
        if hint_key not in self._logged:
            self._logged.add(hint_key)
            log.warning("a hint key function failed; its hint runs for each pod separately", exc_info=fault)

    def pods_to_requeue(
        self,
        observed: ObservedEvent,
        *,
        at_most: int | None = None,
        own: QueuedPodInfo | None = None,
        skip_self: bool = False,
    ) -> Iterator[RequeueCandidate]:
        """Yield the pods that the event may make schedulable. The caller removes each of them.

        `at_most`: pods of higher priority stay. `own`: the unschedulable pod of the event itself, which `skip_self`
        excludes. Pods that become unschedulable after this call have seen the event already.
        """
        return self._pods_to_requeue(observed, at_most, own, skip_self, self._last_sequence)

    def _pods_to_requeue(
        self, observed: ObservedEvent, at_most: int | None, own: QueuedPodInfo | None, skip_self: bool, started: int
    ) -> Iterator[RequeueCandidate]:
        if own is not None and not skip_self:
            yield from self._requeue_own(own, observed, at_most)
        if observed.event.is_wildcard and observed.new is not None:
            return  # it applies to that pod only
        steps = 0
        for group in self._all_groups():
            plan = self._plan(group, observed)
            if plan is None:
                continue
            for class_strategy in self._class_strategies(group, plan, observed, own):
                if class_strategy is None:
                    yield None
                    continue
                hint_class, strategy = class_strategy
                for queued in self._members(hint_class, own, started, at_most):
                    found = self._pod_strategy(queued, hint_class, strategy, plan, observed)
                    steps += 1
                    if found:
                        yield queued, found
                        steps += REQUEUE_COST
                    if steps >= CLASSES_PER_SLICE:
                        steps = 0
                        yield None

    def _requeue_own(
        self, own: QueuedPodInfo, observed: ObservedEvent, at_most: int | None
    ) -> Iterator[RequeueCandidate]:
        if (at_most is None or own.info.priority <= at_most) and self._passes_gate(own.gated_by, observed):
            strategy = self._table.strategy(own, observed)
            if strategy:
                yield own, strategy

    def _passes_gate(self, gated_by: str, observed: ObservedEvent) -> bool:
        """Whether an event reaches a gated pod: a wildcard, or an event that the gating plugin registered for."""
        event = observed.event
        return not gated_by or event.is_wildcard or self._table.is_registered_by(gated_by, event)

    def _plan(self, group: _RejectorGroup, observed: ObservedEvent) -> RequeuePlan | None:
        """Return the effect of the event on a group, and the hints to run. None: no registration matches."""
        profile, unschedulable, pending, gated_by = group.rejected
        if not self._passes_gate(gated_by, observed):
            return None
        rejectors = unschedulable | pending
        if observed.event.is_wildcard or not rejectors or not self._table.has_profile(profile):
            return RequeuePlan(QueueingStrategy.AFTER_BACKOFF, [])
        plan = RequeuePlan(QueueingStrategy.SKIP, [])
        for registration in self._table.matching(profile, observed.event):
            if registration.plugin not in rejectors:
                continue
            strategy = (
                QueueingStrategy.IMMEDIATELY if registration.plugin in pending else QueueingStrategy.AFTER_BACKOFF
            )
            registered = registration.event_with_hint
            if registered.hint is None:
                plan.minimum = max(plan.minimum, strategy)
            else:
                number = None if registered.hint_key is None else group.hint_key_functions.get(registered.hint_key)
                plan.queries.append(_HintQuery(registration, number, strategy, {}))
        plan.queries = [each for each in plan.queries if each.strategy > plan.minimum]
        plan.queries.sort(key=lambda query: -query.strategy)
        return plan if plan.minimum or plan.queries else None

    def _class_strategies(
        self, group: _RejectorGroup, plan: RequeuePlan, observed: ObservedEvent, own: QueuedPodInfo | None
    ) -> Iterator[tuple[HintClass, QueueingStrategy] | None]:
        """Yield the classes that the event may requeue, with the strategy of their shared hints; None: a slice is over.

        Hints with the strongest strategy run first, and each only for the classes that are still undecided.
        """
        undecided = list(group.hint_classes.values())
        for query in plan.queries:
            if query.number is None:
                continue
            batch, undecided = undecided, []
            for start in range(0, len(batch), CLASSES_PER_SLICE):
                hint_classes = batch[start : start + CLASSES_PER_SLICE]
                queued_classes = self._classes_with_queue_hint(hint_classes, query, observed, own)
                for hint_class in queued_classes:
                    yield hint_class, query.strategy
                undecided += hint_classes if not queued_classes else _excluding(hint_classes, queued_classes)
                if start:
                    yield None
        applies_to_all = plan.minimum or any(query.number is None for query in plan.queries)
        for hint_class in undecided:
            if applies_to_all or hint_class.needs_per_pod_hints:
                yield hint_class, plan.minimum

    def _classes_with_queue_hint(
        self, hint_classes: list[HintClass], query: _HintQuery, observed: ObservedEvent, own: QueuedPodInfo | None
    ) -> list[HintClass]:
        """Return the classes for which the hint returns Queue. The hint runs once for each key."""
        registration, number, _, results = query
        assert number is not None
        if registration.event_with_hint.keyed_hint is not None:
            keys = [hint_class.hint_keys[number] for hint_class in hint_classes]
            self._table.evaluate_for_keys(registration, keys, results, observed)
            return [
                hint_class
                for hint_class, key in zip(hint_classes, keys, strict=True)
                if key is not None and results[key]
            ]
        queued_classes = []
        for hint_class in hint_classes:
            key = hint_class.hint_keys[number]
            if key is None:
                continue
            if key not in results:
                one = next((each for each in hint_class.pods.values() if each is not own), None)
                if one is None:
                    continue
                results[key] = self._table.evaluate_for_pod(registration, one.pod, observed)
            if results[key]:
                queued_classes.append(hint_class)
        return queued_classes

    @staticmethod
    def _members(
        hint_class: HintClass, own: QueuedPodInfo | None, started: int, at_most: int | None
    ) -> Iterator[QueuedPodInfo]:
        """Yield the pods of a class that the event applies to. Pods removed meanwhile are skipped."""
        for queued in list(hint_class.pods.values()):
            if queued.hint_class is not hint_class or queued is own or queued.unschedulable_sequence > started:
                continue
            if at_most is None or queued.info.priority <= at_most:
                yield queued

    def _pod_strategy(
        self,
        queued: QueuedPodInfo,
        hint_class: HintClass,
        strategy: QueueingStrategy,
        plan: RequeuePlan,
        observed: ObservedEvent,
    ) -> QueueingStrategy:
        """Return the strategy for one pod, including hints that run for each pod."""
        for registration, number, query_strategy, _ in plan.queries:
            shared = number is not None and hint_class.hint_keys[number] is not None
            if (
                not shared
                and query_strategy > strategy
                and self._table.evaluate_for_pod(registration, queued.pod, observed)
            ):
                strategy = query_strategy
        return strategy


def _excluding(hint_classes: list[HintClass], excluded: list[HintClass]) -> list[HintClass]:
    left = set(map(id, excluded))
    return [hint_class for hint_class in hint_classes if id(hint_class) not in left]
