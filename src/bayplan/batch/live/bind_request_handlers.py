"""What do BindRequests mean for sessions? Pods that have one are binding; pods that lost it wait for the next one."""

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
    """Fits `cache.bind_requests.Engine`."""

    def __init__(self, following: BatchEventHandlers, writes: IntentWriter, speaker: ObjectEventRecorder) -> None:
        self._following = following
        self._writes = writes
        self._speaker = speaker

    def waiting_pod(self, request: BindRequest) -> Pod | None:
        waiting = self._following.waiting
        if uid := request.pod_uid:
            return waiting.get(uid)
        return next((pod for pod in waiting.values() if pod.key == request.pod_key), None)  # made by hand

    def on_assumed(self, pod: Pod) -> None:
        self._following.engine.handle_update(pod)

    def on_released(self, pod: Pod, was: Pod) -> None:
        self._following.engine.handle_update(pod)
        self._following.on_pod_released(was)

    def submit(self, intent: object) -> None:
        self._writes.submit(intent)

    def record_warning(self, pod: Pod, reason: str, note: str) -> None:
        self._speaker.record_core_event(pod, WARNING, reason, note)

    def wake(self, uid: str) -> None:
        """Sessions look at every job anyway."""


def track_bind_requests(
    following: BatchEventHandlers,
    binds: BatchBinder,
    writes: IntentWriter,
    speaker: ObjectEventRecorder,
    clock: LoopClock,
    *,
    attempts: int,
    stale_s: float,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
) -> BindRequestTracker:
    """Have sessions' pods bound by the binder, and count those that are on their way so."""
    desk = following.engine.handle.bind_request_desk = BindRequestFactory(clock, attempts=attempts)
    engine = BatchBindRequests(following, writes, speaker)
    cache = following.engine.cache
    requests = BindRequestTracker(cache, engine, desk.failures, clock, stale_s, request_timeout_s=request_timeout_s)
    requests.foreign_requests = ForeignBindRequests(
        cache, following.is_responsible_for, following.on_pod_released, LostRequests(clock, request_timeout_s)
    )
    desk.tracker = following.requests = binds.requests = requests
    return requests
