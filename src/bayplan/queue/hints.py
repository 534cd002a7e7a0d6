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
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    HintKeyFunction,
    KeyedHintFunction,
    QueueingHint,
)
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.queue.queued_pod import QueuedPodInfo
from bayplan.queue.recorder import QueueRecorder

log = logging.getLogger(__name__)

EventRegistrations = Mapping[str, Sequence[ClusterEventWithHint]]
"""What the plugins of a profile have registered, by plugin."""

_TIMING_SAMPLE_INTERVAL = 10


class QueueingStrategy(IntEnum):
    """What an event does to a parked pod; the stronger one counts."""

    SKIP = 0
    AFTER_BACKOFF = 1
    IMMEDIATELY = 2


@dataclass(frozen=True, slots=True)
class HintRegistration:
    """One plugin's interest in one kind of event."""

    plugin: str
    event_with_hint: ClusterEventWithHint


@dataclass(frozen=True, slots=True)
class ObservedEvent:
    """Something happened, and is held against pods."""

    event: ClusterEvent
    old: KubeObject | None
    new: KubeObject | None

    def is_about(self, pod: Pod) -> bool:
        return any(isinstance(each, Pod) and each.uid == pod.uid for each in (self.old, self.new))


class HintKey:
    """What a hint looks at in a pod. Equal parts of different pods are one object, so that comparing is cheap."""

    __slots__ = ("__weakref__", "value")

    def __init__(self, part: Hashable) -> None:
        self.value = part


class HintTable:
    """The registrations of all profiles. Which of them a kind of event means is found out once a kind."""

    def __init__(
        self, profiles: Mapping[str, EventRegistrations], recorder: QueueRecorder, now_s: Callable[[], float]
    ) -> None:
        self._recorder = recorder
        self._now_s = now_s
        self._asked = 0
        self._complained: set[tuple[str, str]] = set()
        self._registered = {
            profile: tuple(HintRegistration(plugin, cure) for plugin, cures in plugins.items() for cure in cures)
            for profile, plugins in profiles.items()
        }
        cures = [each.event_with_hint for registered in self._registered.values() for each in registered]
        self._readers = frozenset(
            each.hint_key for each in cures if each.hint is not None and each.hint_key is not None
        )
        self._matching: dict[tuple[str, str, ActionType], tuple[HintRegistration, ...]] = {}
        self._interesting: dict[tuple[str, ActionType], bool] = {}

    def matching(self, profile: str, event: ClusterEvent) -> tuple[HintRegistration, ...]:
        """Every registration of a profile that means the event."""
        key = (profile, event.resource, event.action)
        found = self._matching.get(key)
        if found is None:
            every = self._registered.get(profile, ())
            found = self._matching[key] = tuple(each for each in every if each.event_with_hint.matches(event))
        return found

    def has_registrations(self, event: ClusterEvent) -> bool:
        key = (event.resource, event.action)
        found = self._interesting.get(key)
        if found is None:
            anybody = any(self.matching(profile, event) for profile in self._registered)
            found = self._interesting[key] = event.is_wildcard or anybody
        return found

    def is_registered_by(self, plugin: str, event: ClusterEvent) -> bool:
        """Whether the plugin has registered for the event, in any profile."""
        return any(each.plugin == plugin for profile in self._registered for each in self.matching(profile, event))

    def registered_actions(self, resource: EventResource | str) -> ActionType:
        """Every action on a kind of object that anybody registered for."""
        actions = ActionType(0)
        for registered in self._registered.values():
            for each in registered:
                if each.event_with_hint.resource == resource:
                    actions |= each.event_with_hint.action
        return actions

    def hint_key_functions(self, profile: str, plugins: frozenset[str]) -> tuple[HintKeyFunction, ...]:
        """What the hints of these plugins look at, each once."""
        registered = self._registered.get(profile, ())
        found = (
            each.event_with_hint.hint_key
            for each in registered
            if each.plugin in plugins and each.event_with_hint.hint is not None
        )
        return tuple(dict.fromkeys(reads for reads in found if reads is not None))

    def all_hint_key_functions(self) -> frozenset[HintKeyFunction]:
        """What the hints of all plugins look at."""
        return self._readers

    def knows(self, profile: str) -> bool:
        return profile in self._registered

    def evaluate_for_pod(self, registration: HintRegistration, pod: Pod, occasion: ObservedEvent) -> bool:
        """Whether the plugin says that the pod is worth another try."""
        hint = registration.event_with_hint.hint
        return hint is None or self._call(hint, pod, registration.plugin, occasion)

    def evaluate_for_keys(
        self,
        registration: HintRegistration,
        readings: Iterable[HintKey | None],
        answers: dict[HintKey, bool],
        occasion: ObservedEvent,
    ) -> None:
        """Note what the plugin says of each part of which that is not known yet. One event may ask about ten thousand
        of them, so nothing is done for each but that."""
        judge, plugin = registration.event_with_hint.keyed_hint, registration.plugin
        assert judge is not None
        old, new, skip = occasion.old, occasion.new, QueueingHint.SKIP
        timed = False
        for part in readings:
            if part is None or part in answers:
                continue
            if timed:
                try:
                    answers[part] = judge(part.value, old, new) is not skip
                except PLUGIN_EXCEPTIONS as fault:
                    self._log_hint_error(plugin, occasion, fault)
                    answers[part] = True
            else:  # one of so many enters the statistics
                timed, answers[part] = True, self._call_timed(judge, part.value, plugin, occasion)

    def _call(self, hint: KeyedHintFunction, subject: Any, plugin: str, occasion: ObservedEvent) -> bool:
        self._asked += 1
        if self._asked % _TIMING_SAMPLE_INTERVAL == 1:
            return self._call_timed(hint, subject, plugin, occasion)
        try:
            return hint(subject, occasion.old, occasion.new) is not QueueingHint.SKIP
        except PLUGIN_EXCEPTIONS as fault:
            self._log_hint_error(plugin, occasion, fault)
            return True

    def _call_timed(self, hint: KeyedHintFunction, subject: Any, plugin: str, occasion: ObservedEvent) -> bool:
        """The same; one in so many enters the statistics."""
        start = self._now_s()
        try:
            answer = hint(subject, occasion.old, occasion.new)
            label = "QueueSkip" if answer is QueueingHint.SKIP else "Queue"
        except PLUGIN_EXCEPTIONS as fault:
            self._log_hint_error(plugin, occasion, fault)
            label = "Error"
        self._recorder.hint(plugin, occasion.event.name, label, self._now_s() - start)
        return label != "QueueSkip"

    def _log_hint_error(self, plugin: str, occasion: ObservedEvent, fault: BaseException) -> None:
        """Once a plugin and kind of event: thousands of pods may ask the same."""
        about = (plugin, occasion.event.name)
        if about not in self._complained:
            self._complained.add(about)
            log.warning("the hint of plugin %s on %s failed; its pods are tried again", *about, exc_info=fault)

    def strategy(self, queued: QueuedPodInfo, occasion: ObservedEvent) -> QueueingStrategy:
        """What the event does to one pod, every hint asked about this pod alone."""
        rejectors = queued.rejectors
        if not rejectors:
            return QueueingStrategy.AFTER_BACKOFF
        if occasion.event.is_wildcard:
            return self.wildcard_strategy(queued, occasion)
        profile = queued.pod.scheduler_name
        if not self.knows(profile):
            return QueueingStrategy.AFTER_BACKOFF
        strategy = QueueingStrategy.SKIP
        for registration in self.matching(profile, occasion.event):
            plugin = registration.plugin
            if plugin in rejectors and self.evaluate_for_pod(registration, queued.pod, occasion):
                if plugin in queued.pending_plugins:
                    return QueueingStrategy.IMMEDIATELY
                strategy = QueueingStrategy.AFTER_BACKOFF
                if not queued.pending_plugins:
                    break
        return strategy

    @staticmethod
    def wildcard_strategy(queued: QueuedPodInfo, occasion: ObservedEvent) -> QueueingStrategy:
        """A wildcard means everybody; with an object it means that pod."""
        new = occasion.new
        means = new is None or (isinstance(new, Pod) and new.uid == queued.uid)
        return QueueingStrategy.AFTER_BACKOFF if means else QueueingStrategy.SKIP
