"""Is an event worth another try of a pod?

What the plugins of every profile have registered, and the rules by which their answers count: a pod is tried again when
one of those who rejected it says so; at once if that one waits for something outside, else when its backoff is over. A
hint that raises counts as a yes, since a pod tried in vain costs less than one forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from bayplan.framework.api.events import (
    Action,
    ClusterEvent,
    Cure,
    Hint,
    Judge,
    Reads,
    Resource,
)
from bayplan.framework.runtime.plugin_call import FAULTS
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.queue.queued_pod import QueuedPod
from bayplan.queue.recorder import QueueRecorder

log = logging.getLogger(__name__)

Cures = Mapping[str, Sequence[Cure]]
"""What the plugins of a profile have registered, by plugin."""

_TIMED_ONE_IN = 10


class Strategy(IntEnum):
    """What an event does to a parked pod; the stronger one counts."""

    SKIP = 0
    AFTER_BACKOFF = 1
    IMMEDIATELY = 2


@dataclass(frozen=True, slots=True)
class Registration:
    """One plugin's interest in one kind of event."""

    plugin: str
    cure: Cure


@dataclass(frozen=True, slots=True)
class Occasion:
    """Something happened, and is held against pods."""

    event: ClusterEvent
    old: KubeObject | None
    new: KubeObject | None

    def is_about(self, pod: Pod) -> bool:
        return any(isinstance(each, Pod) and each.uid == pod.uid for each in (self.old, self.new))


class Reading:
    """What a hint looks at in a pod. Equal parts of different pods are one object, so that comparing is cheap."""

    __slots__ = ("__weakref__", "part")

    def __init__(self, part: Hashable) -> None:
        self.part = part


class HintTable:
    """The registrations of all profiles. Which of them a kind of event means is found out once a kind."""

    def __init__(self, profiles: Mapping[str, Cures], recorder: QueueRecorder, now_s: Callable[[], float]) -> None:
        self._recorder = recorder
        self._now_s = now_s
        self._asked = 0
        self._complained: set[tuple[str, str]] = set()
        self._registered = {
            profile: tuple(Registration(plugin, cure) for plugin, cures in plugins.items() for cure in cures)
            for profile, plugins in profiles.items()
        }
        cures = [each.cure for registered in self._registered.values() for each in registered]
        self._readers = frozenset(each.reads for each in cures if each.hint is not None and each.reads is not None)
        self._matching: dict[tuple[str, str, Action], tuple[Registration, ...]] = {}
        self._interesting: dict[tuple[str, Action], bool] = {}

    def matching(self, profile: str, event: ClusterEvent) -> tuple[Registration, ...]:
        """Every registration of a profile that means the event."""
        key = (profile, event.resource, event.action)
        found = self._matching.get(key)
        if found is None:
            every = self._registered.get(profile, ())
            found = self._matching[key] = tuple(each for each in every if each.cure.matches(event))
        return found

    def interests_anybody(self, event: ClusterEvent) -> bool:
        key = (event.resource, event.action)
        found = self._interesting.get(key)
        if found is None:
            anybody = any(self.matching(profile, event) for profile in self._registered)
            found = self._interesting[key] = event.is_wildcard or anybody
        return found

    def is_awaited_by(self, plugin: str, event: ClusterEvent) -> bool:
        """Whether the plugin has registered for the event, in any profile."""
        return any(each.plugin == plugin for profile in self._registered for each in self.matching(profile, event))

    def actions_on(self, resource: Resource | str) -> Action:
        """Every action on a kind of object that anybody registered for."""
        actions = Action(0)
        for registered in self._registered.values():
            for each in registered:
                if each.cure.resource == resource:
                    actions |= each.cure.action
        return actions

    def readers(self, profile: str, plugins: frozenset[str]) -> tuple[Reads, ...]:
        """What the hints of these plugins look at, each once."""
        registered = self._registered.get(profile, ())
        found = (each.cure.reads for each in registered if each.plugin in plugins and each.cure.hint is not None)
        return tuple(dict.fromkeys(reads for reads in found if reads is not None))

    def all_readers(self) -> frozenset[Reads]:
        """What the hints of all plugins look at."""
        return self._readers

    def knows(self, profile: str) -> bool:
        return profile in self._registered

    def ask(self, registration: Registration, pod: Pod, occasion: Occasion) -> bool:
        """Whether the plugin says that the pod is worth another try."""
        hint = registration.cure.hint
        return hint is None or self._call(hint, pod, registration.plugin, occasion)

    def judge(
        self,
        registration: Registration,
        readings: Iterable[Reading | None],
        answers: dict[Reading, bool],
        occasion: Occasion,
    ) -> None:
        """Note what the plugin says of each part of which that is not known yet. One event may ask about ten thousand
        of them, so nothing is done for each but that."""
        judge, plugin = registration.cure.judge, registration.plugin
        assert judge is not None
        old, new, skip = occasion.old, occasion.new, Hint.SKIP
        timed = False
        for part in readings:
            if part is None or part in answers:
                continue
            if timed:
                try:
                    answers[part] = judge(part.part, old, new) is not skip
                except FAULTS as fault:
                    self._complain(plugin, occasion, fault)
                    answers[part] = True
            else:  # one of so many enters the statistics
                timed, answers[part] = True, self._call_timed(judge, part.part, plugin, occasion)

    def _call(self, hint: Judge, subject: Any, plugin: str, occasion: Occasion) -> bool:
        self._asked += 1
        if self._asked % _TIMED_ONE_IN == 1:
            return self._call_timed(hint, subject, plugin, occasion)
        try:
            return hint(subject, occasion.old, occasion.new) is not Hint.SKIP
        except FAULTS as fault:
            self._complain(plugin, occasion, fault)
            return True

    def _call_timed(self, hint: Judge, subject: Any, plugin: str, occasion: Occasion) -> bool:
        """The same; one in so many enters the statistics."""
        start = self._now_s()
        try:
            answer = hint(subject, occasion.old, occasion.new)
            label = "QueueSkip" if answer is Hint.SKIP else "Queue"
        except FAULTS as fault:
            self._complain(plugin, occasion, fault)
            label = "Error"
        self._recorder.hint(plugin, occasion.event.name, label, self._now_s() - start)
        return label != "QueueSkip"

    def _complain(self, plugin: str, occasion: Occasion, fault: BaseException) -> None:
        """Once a plugin and kind of event: thousands of pods may ask the same."""
        about = (plugin, occasion.event.name)
        if about not in self._complained:
            self._complained.add(about)
            log.warning("the hint of plugin %s on %s failed; its pods are tried again", *about, exc_info=fault)

    def strategy(self, queued: QueuedPod, occasion: Occasion) -> Strategy:
        """What the event does to one pod, every hint asked about this pod alone."""
        rejectors = queued.rejectors
        if not rejectors:
            return Strategy.AFTER_BACKOFF
        if occasion.event.is_wildcard:
            return self.wildcard_strategy(queued, occasion)
        profile = queued.pod.scheduler_name
        if not self.knows(profile):
            return Strategy.AFTER_BACKOFF
        strategy = Strategy.SKIP
        for registration in self.matching(profile, occasion.event):
            plugin = registration.plugin
            if plugin in rejectors and self.ask(registration, queued.pod, occasion):
                if plugin in queued.pending_plugins:
                    return Strategy.IMMEDIATELY
                strategy = Strategy.AFTER_BACKOFF
                if not queued.pending_plugins:
                    break
        return strategy

    @staticmethod
    def wildcard_strategy(queued: QueuedPod, occasion: Occasion) -> Strategy:
        """A wildcard means everybody; with an object it means that pod."""
        new = occasion.new
        means = new is None or (isinstance(new, Pod) and new.uid == queued.uid)
        return Strategy.AFTER_BACKOFF if means else Strategy.SKIP
