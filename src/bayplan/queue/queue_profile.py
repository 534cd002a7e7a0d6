"""What the queue knows of a profile: which events cure what its plugins reject, and who holds pods back."""

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
    """`pre_enqueue(pod, first)` asks the PreEnqueue plugins, the one called `first` before the others."""

    registered_events: EventRegistrations
    pre_enqueue: Callable[[Pod, str], Status]

    @classmethod
    def of(cls, framework: Framework, *, extenders: bool = False) -> QueueProfile:
        cures = framework.profile.registered_events
        return cls({**cures, EXTENDER_REJECTOR: ALL_EVENTS} if extenders else cures, framework.pre_enqueue)
