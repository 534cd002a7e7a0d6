"""Handlers of BindRequest events: pods with a request are binding, pods that lost theirs are pending again."""

from __future__ import annotations

from bayplan.batch.live.binding import BatchBinder
from bayplan.batch.live.event_handlers import BatchEventHandlers
from bayplan.batch.live.write_interfaces import IntentWriter, ObjectEventRecorder
from bayplan.bind_requests.foreign_requests import ForeignBindRequests
from bayplan.bind_requests.lost_requests import LostRequests
from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.client import REQUEST_TIMEOUT_S
from bayplan.clock import LoopClock
from bayplan.framework.runtime.bind_request_factory import BindRequestFactory
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.telemetry.events import WARNING


class BatchBindRequests:
    """Implements `bind_requests.tracker.RequestOwner` for the batch engine."""

    def __init__(
        self, event_handlers: BatchEventHandlers, writes: IntentWriter, event_recorder: ObjectEventRecorder
    ) -> None:
        self._event_handlers = event_handlers
        self._writes = writes
        self._event_recorder = event_recorder

    def waiting_pod(self, request: BindRequest) -> Pod | None:
        waiting = self._event_handlers.waiting
        if uid := request.pod_uid:
            return waiting.get(uid)
        return next((pod for pod in waiting.values() if pod.key == request.pod_key), None)  # created by hand

    def on_assumed(self, pod: Pod) -> None:
        self._event_handlers.engine.handle_update(pod)

    def on_released(self, pod: Pod, was: Pod) -> None:
        self._event_handlers.engine.handle_update(pod)
        self._event_handlers.on_pod_released(was)

    def submit(self, intent: object) -> None:
        self._writes.submit(intent)

    def record_warning(self, pod: Pod, reason: str, note: str) -> None:
        self._event_recorder.record_core_event(pod, WARNING, reason, note)

    def wake(self, uid: str) -> None:
        """No effect: sessions process every job anyway."""


def track_bind_requests(
    event_handlers: BatchEventHandlers,
    binder: BatchBinder,
    writes: IntentWriter,
    event_recorder: ObjectEventRecorder,
    clock: LoopClock,
    *,
    attempts: int,
    stale_s: float,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
) -> BindRequestTracker:
    """Let the binder bind the pods of sessions, and track their requests."""
    factory = event_handlers.engine.handle.bind_request_factory = BindRequestFactory(clock, attempts=attempts)
    engine = BatchBindRequests(event_handlers, writes, event_recorder)
    cache = event_handlers.engine.cache
    requests = BindRequestTracker(cache, engine, factory.failures, clock, stale_s, request_timeout_s=request_timeout_s)
    requests.foreign_requests = ForeignBindRequests(
        cache, event_handlers.is_responsible_for, event_handlers.on_pod_released, LostRequests(clock, request_timeout_s)
    )
    factory.tracker = event_handlers.requests = binder.requests = requests
    return requests
