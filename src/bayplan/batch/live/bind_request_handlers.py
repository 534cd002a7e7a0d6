"""What do BindRequests mean for sessions? Pods that have one are binding; pods that lost it wait for the next one."""

from __future__ import annotations

from bayplan.batch.live.binding import Binds
from bayplan.batch.live.event_handlers import Following
from bayplan.batch.live.write_interfaces import Speaker, Writer
from bayplan.bind_requests.foreign_requests import RequestsOfOthers
from bayplan.bind_requests.lost_requests import LostRequests
from bayplan.bind_requests.tracker import BindRequests
from bayplan.client import REQUEST_TIMEOUT_S
from bayplan.clock import LoopClock
from bayplan.framework.runtime.bind_request_factory import BindRequestDesk
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.telemetry.events import WARNING


class BatchRequests:
    """Fits `cache.bind_requests.Engine`."""

    def __init__(self, following: Following, writes: Writer, speaker: Speaker) -> None:
        self._following = following
        self._writes = writes
        self._speaker = speaker

    def waiting_pod(self, request: BindRequest) -> Pod | None:
        waiting = self._following.waiting
        if uid := request.pod_uid:
            return waiting.get(uid)
        return next((pod for pod in waiting.values() if pod.key == request.pod_key), None)  # made by hand

    def taken(self, pod: Pod) -> None:
        self._following.engine.observe(pod)

    def released(self, pod: Pod, was: Pod) -> None:
        self._following.engine.observe(pod)
        self._following.freed(was)

    def submit(self, intent: object) -> None:
        self._writes.submit(intent)

    def complain(self, pod: Pod, reason: str, note: str) -> None:
        self._speaker.tell(pod, WARNING, reason, note)

    def wake(self, uid: str) -> None:
        """Sessions look at every job anyway."""


def follow_requests(
    following: Following,
    binds: Binds,
    writes: Writer,
    speaker: Speaker,
    clock: LoopClock,
    *,
    attempts: int,
    stale_s: float,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
) -> BindRequests:
    """Have sessions' pods bound by the binder, and count those that are on their way so."""
    desk = following.engine.handle.desk = BindRequestDesk(clock, attempts=attempts)
    engine = BatchRequests(following, writes, speaker)
    cache = following.engine.cache
    requests = BindRequests(cache, engine, desk.failures, clock, stale_s, request_timeout_s=request_timeout_s)
    requests.others = RequestsOfOthers(cache, following.serves, following.freed, LostRequests(clock, request_timeout_s))
    desk.following = following.requests = binds.requests = requests
    return requests
