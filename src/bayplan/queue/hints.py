"""Queueing hints: whether an event may make a rejected pod schedulable.

Holds the registrations of the plugins of every profile, and kube-scheduler's rules for their results. A pod is requeued
if one of its rejectors returns Queue: at once if that plugin returned Pending, otherwise after the backoff. A hint that
raises counts as Queue, because a useless attempt costs less than a forgotten pod.
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
"""The event registrations of a profile, by plugin."""

_TIMING_SAMPLE_INTERVAL = 10


class QueueingStrategy(IntEnum):
    """The effect of an event on an unschedulable pod. The strongest one counts."""

    SKIP = 0
    AFTER_BACKOFF = 1
    IMMEDIATELY = 2


@dataclass(frozen=True, slots=True)
class HintRegistration:
    """One registration of a plugin for one kind of event."""

    plugin: str
    event_with_hint: ClusterEventWithHint


@dataclass(frozen=True, slots=True)
class ObservedEvent:
    """An event with its objects, as the hints get it."""

    event: ClusterEvent
    old: KubeObject | None
    new: KubeObject | None

    def is_about(self, pod: Pod) -> bool:
        return any(isinstance(each, Pod) and each.uid == pod.uid for each in (self.old, self.new))


class HintKey:
    """A value that a hint reads from a pod. Equal values of different pods are one object, so comparing is cheap."""

    __slots__ = ("__weakref__", "value")

    def __init__(self, key: Hashable) -> None:
        self.value = key


class HintTable:
    """The registrations of all profiles. The matches of a kind of event are computed once."""

    def __init__(
        self, profiles: Mapping[str, EventRegistrations], recorder: QueueRecorder, now_s: Callable[[], float]
    ) -> None:
        self._recorder = recorder
        self._now_s = now_s
        self._call_count = 0
        self._logged: set[tuple[str, str]] = set()
        self._registered = {
            profile: tuple(
                HintRegistration(plugin, registration)
                for plugin, event_registrations in plugins.items()
                for registration in event_registrations
            )
            for profile, plugins in profiles.items()
        }
        event_registrations = [each.event_with_hint for registered in self._registered.values() for each in registered]
        self._hint_key_functions = frozenset(
            each.hint_key for each in event_registrations if each.hint is not None and each.hint_key is not None
        )
        self._matching: dict[tuple[str, str, ActionType], tuple[HintRegistration, ...]] = {}
        self._has_registrations: dict[tuple[str, ActionType], bool] = {}

    def matching(self, profile: str, event: ClusterEvent) -> tuple[HintRegistration, ...]:
        key = (profile, event.resource, event.action)
        found = self._matching.get(key)
        if found is None:
            every = self._registered.get(profile, ())
            found = self._matching[key] = tuple(each for each in every if each.event_with_hint.matches(event))
        return found

    def has_registrations(self, event: ClusterEvent) -> bool:
        key = (event.resource, event.action)
        found = self._has_registrations.get(key)
        if found is None:
            is_registered = any(self.matching(profile, event) for profile in self._registered)
            found = self._has_registrations[key] = event.is_wildcard or is_registered
        return found

    def is_registered_by(self, plugin: str, event: ClusterEvent) -> bool:
        """Whether the plugin has registered for the event, in any profile."""
        return any(each.plugin == plugin for profile in self._registered for each in self.matching(profile, event))

    def registered_actions(self, resource: EventResource | str) -> ActionType:
        actions = ActionType(0)
        for registered in self._registered.values():
            for each in registered:
                if each.event_with_hint.resource == resource:
                    actions |= each.event_with_hint.action
        return actions

    def hint_key_functions(self, profile: str, plugins: frozenset[str]) -> tuple[HintKeyFunction, ...]:
        """Return the hint key functions of these plugins, each once."""
        registered = self._registered.get(profile, ())
        found = (
            each.event_with_hint.hint_key
            for each in registered
            if each.plugin in plugins and each.event_with_hint.hint is not None
        )
        return tuple(dict.fromkeys(hint_key for hint_key in found if hint_key is not None))

    def all_hint_key_functions(self) -> frozenset[HintKeyFunction]:
        return self._hint_key_functions

    def has_profile(self, profile: str) -> bool:
        return profile in self._registered

    def evaluate_for_pod(self, registration: HintRegistration, pod: Pod, observed: ObservedEvent) -> bool:
        """Whether the plugin's hint returns Queue for the pod."""
        hint = registration.event_with_hint.hint
        return hint is None or self._call(hint, pod, registration.plugin, observed)

    def evaluate_for_keys(
        self,
        registration: HintRegistration,
        keys: Iterable[HintKey | None],
        results: dict[HintKey, bool],
        observed: ObservedEvent,
    ) -> None:
        """Evaluate a hint for each key without an answer.

        One event may have ten thousand keys, so the loop does nothing else.
        """
        keyed_hint, plugin = registration.event_with_hint.keyed_hint, registration.plugin
        assert keyed_hint is not None
        old, new, skip = observed.old, observed.new, QueueingHint.SKIP
        timed = False
        for key in keys:
            if key is None or key in results:
                continue
            if timed:
                try:
                    results[key] = keyed_hint(key.value, old, new) is not skip
                except PLUGIN_EXCEPTIONS as fault:
                    self._log_hint_error(plugin, observed, fault)
                    results[key] = True
            else:  # only the first call is timed
                timed, results[key] = True, self._call_timed(keyed_hint, key.value, plugin, observed)

    def _call(self, hint: KeyedHintFunction, value: Any, plugin: str, observed: ObservedEvent) -> bool:
        self._call_count += 1
        if self._call_count % _TIMING_SAMPLE_INTERVAL == 1:
            return self._call_timed(hint, value, plugin, observed)
        try:
            return hint(value, observed.old, observed.new) is not QueueingHint.SKIP
        except PLUGIN_EXCEPTIONS as fault:
            self._log_hint_error(plugin, observed, fault)
            return True

    def _call_timed(self, hint: KeyedHintFunction, value: Any, plugin: str, observed: ObservedEvent) -> bool:
        """Call a hint and record its duration. One call in ten is recorded."""
        start = self._now_s()
        try:
            result = hint(value, observed.old, observed.new)
            label = "QueueSkip" if result is QueueingHint.SKIP else "Queue"
        except PLUGIN_EXCEPTIONS as fault:
            self._log_hint_error(plugin, observed, fault)
            label = "Error"
        self._recorder.hint(plugin, observed.event.name, label, self._now_s() - start)
        return label != "QueueSkip"

    def _log_hint_error(self, plugin: str, observed: ObservedEvent, fault: BaseException) -> None:
        """Log a failing hint once for each plugin and kind of event: thousands of pods may run the same hint."""
        about = (plugin, observed.event.name)
        if about not in self._logged:
            self._logged.add(about)
            log.warning("the hint of plugin %s on %s failed; its pods are retried", *about, exc_info=fault)

    def strategy(self, queued: QueuedPodInfo, observed: ObservedEvent) -> QueueingStrategy:
        """Return the effect of the event on one pod, with every hint evaluated for this pod."""
        rejectors = queued.rejectors
        if not rejectors:
            return QueueingStrategy.AFTER_BACKOFF
        if observed.event.is_wildcard:
            return self.wildcard_strategy(queued, observed)
        profile = queued.pod.scheduler_name
        if not self.has_profile(profile):
            return QueueingStrategy.AFTER_BACKOFF
        strategy = QueueingStrategy.SKIP
        for registration in self.matching(profile, observed.event):
            plugin = registration.plugin
            if plugin in rejectors and self.evaluate_for_pod(registration, queued.pod, observed):
                if plugin in queued.pending_plugins:
                    return QueueingStrategy.IMMEDIATELY
                strategy = QueueingStrategy.AFTER_BACKOFF
                if not queued.pending_plugins:
                    break
        return strategy

    @staticmethod
    def wildcard_strategy(queued: QueuedPodInfo, observed: ObservedEvent) -> QueueingStrategy:
        """Return the effect of a wildcard event. It applies to all pods, or to the pod of the event if there is one."""
        new = observed.new
        applies = new is None or (isinstance(new, Pod) and new.uid == queued.uid)
        return QueueingStrategy.AFTER_BACKOFF if applies else QueueingStrategy.SKIP
