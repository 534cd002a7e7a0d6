"""What the queue needs of a profile: the registered events of its plugins, and its PreEnqueue plugins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bayplan.framework.api.status import Status
from bayplan.framework.runtime.event_registrations import ALL_EVENTS, EXTENDER_REJECTOR
from bayplan.framework.runtime.framework import Framework
from bayplan.objects.core import Pod
from bayplan.queue.hints import EventRegistrations


@dataclass(frozen=True, slots=True)
class QueueProfile:
    """`pre_enqueue(pod, first)` calls the PreEnqueue plugins, the one with the name `first` before all other ones."""

    registered_events: EventRegistrations
    pre_enqueue: Callable[[Pod, str], Status]

    @classmethod
    def of(cls, framework: Framework, *, extenders: bool = False) -> QueueProfile:
        registrations = framework.profile.registered_events
        return cls(
            {**registrations, EXTENDER_REJECTOR: ALL_EVENTS} if extenders else registrations, framework.pre_enqueue
        )
