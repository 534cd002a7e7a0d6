"""Events of `events.k8s.io/v1`, with the texts of kube-scheduler.

The engine calls it once an outcome, through one `EventRecorder` a profile. Pure: an event is built here and given to
the `post` function; nothing waits and nothing is sent. Costs about 6 µs an event.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from bayplan.clock import Clock
from bayplan.objects.core import Pod
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import Api, KubeObject, format_micro_time
from bayplan.objects.name_validation import dns_subdomain_problems

NOTE_BYTES = 1024
"""The longest note that the API server accepts."""

NORMAL = "Normal"
WARNING = "Warning"
_TRUNCATION_MARK = " ..."
_MAX_PLAIN_NAME = 253 - len(".0123456789abcdef")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ObjectReference(Api, frozen=True):
    """Reference to an object, in one of its versions."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""

    @property
    def identity(self) -> tuple[str, ...]:
        """The object, in any version."""
        return self.kind, self.namespace, self.name, self.uid, self.api_version


class EventMeta(Api, frozen=True):
    name: str
    namespace: str


class Series(Api, frozen=True, omit_defaults=False):
    """The number of occurrences of an event, and the time of the last one."""

    count: int
    last_observed_time: str


class Event(Api, frozen=True):
    """One `events.k8s.io/v1` Event, or a series of them."""

    metadata: EventMeta
    event_time: str
    reporting_controller: str
    reporting_instance: str
    action: str
    reason: str
    regarding: ObjectReference
    note: str
    type: str
    related: ObjectReference | None = None
    series: Series | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """Events with the same identity are one series. The note is part of it, the version of the object is not."""
        return (
            self.type,
            self.action,
            self.reason,
            self.note,
            self.reporting_controller,
            self.reporting_instance,
            self.regarding.identity,
            self.related.identity if self.related is not None else None,
        )


Post = Callable[[Event], None]
"""Takes an event and returns at once."""


class EventRecorder:
    """Builds and posts events in the name of one profile."""

    def __init__(self, controller: str, *, host: str, clock: Clock, chance: random.Random, post: Post) -> None:
        self._controller = controller
        self._instance = f"{controller}-{host}"
        self._clock = clock
        self._chance = chance
        self._post = post

    # Events of kube-scheduler.

    def record_scheduled(self, pod: Pod, node: str) -> None:
        note = f"Successfully assigned {pod.namespace}/{pod.name} to {node}"
        self.record(pod, type=NORMAL, reason="Scheduled", action="Binding", note=note)

    def record_failed_scheduling(self, pod: Pod, message: str) -> None:
        self.record(pod, type=WARNING, reason="FailedScheduling", action="Scheduling", note=message)

    def record_skipped_deleting(self, pod: Pod) -> None:
        self.record_failed_scheduling(pod, f"skip schedule deleting pod: {pod.namespace}/{pod.name}")

    def record_preempted(self, victim: Pod, preemptor: KubeObject, message: str) -> None:
        """Record a preemption. The caller words the message: the kind of the preemptor, its uid and the node."""
        # kube-scheduler 1.36 refers to a pod group that preempts but, because of a bug, never to a pod.
        related = None if isinstance(preemptor, Pod) else preemptor
        self.record(victim, related=related, type=NORMAL, reason="Preempted", action="Preempting", note=message)

    def record_binding_conditions_pending(self, pod: Pod, node: str) -> None:
        note = f"waiting for binding conditions for device on node {node}"
        self.record(pod, type=NORMAL, reason="BindingConditionsPending", action="Scheduling", note=note)

    # Any event.

    def record(
        self,
        regarding: KubeObject | ObjectReference,
        *,
        type: str,  # noqa: A002
        reason: str,
        action: str,
        note: str,
        related: KubeObject | ObjectReference | None = None,
    ) -> None:
        """Build an event and post it."""
        now = self._clock.now()
        about = object_reference(regarding)
        self._post(
            Event(
                metadata=EventMeta(self._name(about.name, now), about.namespace or "default"),
                event_time=format_micro_time(now),
                reporting_controller=self._controller,
                reporting_instance=self._instance,
                action=action,
                reason=reason,
                regarding=about,
                related=object_reference(related) if related is not None else None,
                note=truncate_note(note),
                type=type,
            )
        )

    def _name(self, about: str, now: datetime) -> str:
        """The object's name and the time; a random UUID if that is not a valid event name."""
        name = f"{about}.{_nanoseconds(now):x}"
        if len(about) <= _MAX_PLAIN_NAME and not dns_subdomain_problems(name):
            return name
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))


def object_reference(item: KubeObject | ObjectReference) -> ObjectReference:
    if isinstance(item, ObjectReference):
        return item
    meta, kind = item.metadata, kind_of(type(item))
    return ObjectReference(
        kind=kind.name,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        api_version=kind.api_versions[0],
        resource_version=meta.resource_version,
    )


def truncate_note(text: str) -> str:
    """The text, cut to the longest note of an event at a character boundary."""
    if len(text) * 4 <= NOTE_BYTES:
        return text
    data = text.encode()
    if len(data) <= NOTE_BYTES:
        return text
    return data[: NOTE_BYTES - len(_TRUNCATION_MARK)].decode(errors="ignore") + _TRUNCATION_MARK


def _nanoseconds(moment: datetime) -> int:
    """Nanoseconds since 1970, in steps of 1,000: the clock has microseconds."""
    since = moment - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
