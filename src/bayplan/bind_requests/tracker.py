"""Which pods are on their way to a node by a BindRequest, and what became of each?

Told by the watch, and by our own writes before that. A pod without a node that has a live request counts on that node,
after a restart too; one whose request was given up is free again, and is kept from that node for a while. Whoever made
a request is told of its end. What has to be deleted is handed out as an intent, and the answer to that counts as told.
Cost: some lookups a change.

A request that was deleted while it was live frees its pod only when a GET, made after the API server's request timeout,
shows the pod without a node: the binder may have sent the binding before.

A request that was given up and whose pod nobody here waits for is an orphan, unless the pod is another engine's, or on
its node: that is asked of the server, when whoever made the request has had time to read why. Nobody else clears it
away: what owns it never was.

Where the watch tells of failures alone (`only_failures`), success is seen by the pod, which costs nothing more; what is
there at the start, and what became of a request of which nobody has heard for long, is then asked for by a list.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from bayplan.bind_requests.devices import RequestedDevices
from bayplan.bind_requests.foreign_requests import ForeignBindRequests
from bayplan.bind_requests.lost_requests import REQUEST_TIMEOUT_S, LostRequests
from bayplan.cache.cache import Cache
from bayplan.clock import Clock
from bayplan.framework.api.status import SUCCESS, Status, error
from bayplan.framework.runtime.bind_failures import BindFailures
from bayplan.intents.pod_intents import DeleteBindRequest
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import STALE_FACTOR, BindRequest, retry_delay_s
from bayplan.snapshot import PodInfo

log = logging.getLogger(__name__)

STALE_AFTER_S = 600.0
MAX_RETRY_DELAY_S = 66.0
"""The binder's between two attempts, with its chance: only after that nobody is there to try again."""
_MAX_REMEMBERED = 4096
_MAX_ORPHANS_PER_CHECK = 50
_QUERY_AFTER_S, _QUERY_AFTER_WHEN_ACTIVE_S = 15.0, 60.0
"""After so long without a word about a request somebody asks, where the watch tells of failures alone; and while there
is word of others: then the binder is at work, and its turn is merely still to come."""


ResultCallback = Callable[[Status], None]
"""Told how a request ended, once. Whoever is told is in the midst of a change: what follows from it is for later."""


class RequestOwner(Protocol):
    """Whose pods these are."""

    def waiting_pod(self, request: BindRequest) -> Pod | None:
        """The pod that a request is about as last told, if it is ours and has no node."""
        ...

    def on_assumed(self, pod: Pod) -> None:
        """The pod counts on a node now: it is not to be placed."""
        ...

    def on_released(self, pod: Pod, was: Pod) -> None:
        """The pod does not count on its node any more (`was`): it is to be placed anew."""
        ...

    def submit(self, intent: object) -> None: ...

    def record_warning(self, pod: Pod, reason: str, note: str) -> None: ...

    def wake(self, uid: str) -> None:
        """A pod may be tried on nodes that it was kept from."""
        ...


@dataclass(slots=True)
class BindRequestTracker:
    """The requests of one engine's pods."""

    cache: Cache
    engine: RequestOwner
    failures: BindFailures
    clock: Clock
    stale_s: float = STALE_AFTER_S
    only_failures: bool = False
    request_timeout_s: float = REQUEST_TIMEOUT_S
    requests: dict[str, BindRequest] = field(default_factory=dict)
    """By the key of the pod."""
    stale: set[str] = field(default_factory=set)
    """Uids of requests that nobody has touched for too long."""
    foreign_requests: ForeignBindRequests | None = None
    """Who counts pods of other schedulers; None where somebody else on the same cache does."""
    _submitted: set[str] = field(default_factory=set)  # uids of pods whose requests nobody has asked about yet
    _waiting: dict[str, ResultCallback] = field(default_factory=dict)  # by the uid of the pod
    _restored: set[str] = field(default_factory=set)  # uids of pods that count on nodes because of a request alone
    _devices: RequestedDevices = field(init=False)
    _lost: LostRequests = field(init=False)
    _gone: dict[str, bool] = field(default_factory=dict)  # by uid, the latest last: whether a binding may be on its way
    _deleting: dict[str, str] = field(default_factory=dict)  # by the uids of requests: why we delete them
    _kept_until_s: dict[str, float] = field(default_factory=dict)  # uids of pods that are kept from a node
    _stopped: bool = False
    _needs_list: bool = False
    _last_confirmed_s: dict[str, float] = field(
        default_factory=dict
    )  # by the key of the pod: when we last knew of its request
    _last_failure_s: dict[str, float] = field(
        default_factory=dict
    )  # by the key of the pod: when its request last failed
    _orphans: dict[str, tuple[BindRequest, float]] = field(default_factory=dict)  # by uid: may be, and since when
    _unread: frozenset[str] = frozenset()  # uids of those among them that cannot be read as a whole
    _last_bound_s: float = float("-inf")  # when the binder last brought a pod to its node

    def __post_init__(self) -> None:
        self._devices = RequestedDevices(self.cache)
        self._lost = LostRequests(self.clock, self.request_timeout_s)

    # what is told -----------------------------------------------------------------------------------------------

    def handle_event(self, old: BindRequest | None, new: BindRequest | None) -> None:
        """The watch told of a request."""
        if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
            if self.only_failures and not old.has_failed:
                # deleted, or tried again with success: such a watch tells both alike
                self._needs_list = self._needs_list or self._is_known(old)
            else:
                self._handle_request_delete(old)
        if new is not None and new.metadata.uid not in self._gone:  # the watch may be later than the answer to us
            self._handle_request(new)
        if self.foreign_requests is not None:
            self.foreign_requests.handle_event(old, new)

    def observe_created(self, request: BindRequest, pod: Pod) -> None:
        """The API server has answered that there is such a request."""
        self._submitted.add(pod.metadata.uid)
        if request.metadata.uid not in self._gone:
            self._handle_request(request)
        elif self._gone[request.metadata.uid] and pod.uid not in self._lost:
            self._lose(request, pod, _REQUEST_DELETED)

    def handle_pod_add(self, pod: Pod) -> bool:
        """A pod without a node was told; whether it counts on one, by a request."""
        request = self.requests.get(pod.key)
        if request is None or not request.is_for(pod) or not request.is_active:
            return pod.metadata.uid in self._lost
        self._devices.reserve(request, pod)
        return self._restore(request, pod)

    def handle_foreign_pod(self, pod: Pod) -> None:
        """A pod without a node was told, or its change, that somebody else is to place."""
        if self.foreign_requests is not None:
            self.foreign_requests.handle_pending_pod(pod)

    def handle_pod_assigned(self, pod: Pod) -> None:
        """The API server shows the pod on a node."""
        if self._forget(pod):
            self._last_bound_s = self.clock.monotonic_s()
        self._devices.placed(pod)
        self._report_result(pod.metadata.uid, SUCCESS)
        if self.foreign_requests is not None:
            self.foreign_requests.handle_pod_assigned(pod)

    def handle_pod_delete(self, pod: Pod) -> None:
        self._forget(pod)
        self._devices.release(pod.uid)
        self._report_result(pod.uid, error(f"pod {pod.key} is gone"))
        if self.foreign_requests is not None:
            self.foreign_requests.handle_pod_delete(pod)

    def reconcile_with_list(self, uids: frozenset[str], known_before: frozenset[str]) -> None:
        """These requests are there, and no others: of those that were known when that was asked, the rest is gone."""
        self._needs_list = False
        gone = known_before - uids
        for request in [each for each in self.requests.values() if each.metadata.uid in gone]:
            self._handle_request_delete(request)
        self._last_confirmed_s = dict.fromkeys(self.requests, self.clock.monotonic_s())

    def handle_unreadable(self, requests: Sequence[BindRequest]) -> None:
        """These have failed and cannot be read as a whole, and no others. No watch tells of them, nor when they go."""
        uids = frozenset(each.metadata.uid for each in requests)
        for uid in self._unread - uids:
            self._orphans.pop(uid, None)
        self._unread = uids
        for each in requests:
            self._assign_owner(each, self.engine.waiting_pod(each))

    def handle_orphan_check(self, orphan: BindRequest, uid: str) -> None:
        """The server has a pod of that name with this uid; none where it is empty. Whether the request goes follows
        from that; if it stays, or cannot be deleted, it is asked about again after as long as before."""
        self.postpone_orphan_check(orphan)
        if not uid or orphan.pod_uid not in ("", uid):
            log.info("bind request %s was given up, and its pod is not there: it goes", orphan.key)
            self._delete(orphan)

    def read_pod(self, uid: str, found: Pod | None) -> None:
        """The API server has this pod under the name of a pod of `lost`. Its node is free unless it is there.

        If it is on a node, or gone, the watch is about to tell so and takes care of its room."""
        if self.foreign_requests is not None:
            self.foreign_requests.read_pod(uid, found)
        lost = self._lost.get(uid)
        if lost is None or found is None or found.uid != uid or found.spec.node_name:
            return
        self._lost.pop(uid)
        self._devices.release(uid)
        self._release_pod(self.engine.waiting_pod(lost.request) or found, lost.why)

    def postpone_orphan_check(self, orphan: BindRequest) -> None:
        """Nobody could say whether its pod is there, or it is."""
        if orphan.metadata.uid in self._orphans:
            self._orphans[orphan.metadata.uid] = orphan, self.clock.monotonic_s()

    # what is asked ----------------------------------------------------------------------------------------------

    @property
    def uids(self) -> frozenset[str]:
        """Of the requests that are known."""
        return frozenset(each.metadata.uid for each in self.requests.values())

    @property
    def waiting(self) -> int:
        """How many pods somebody waits for until they are bound."""
        return len(self._waiting)

    @property
    def needs_list(self) -> bool:
        """Whether somebody has to ask which requests are still there."""
        if not self.only_failures:
            return False
        now_s = self.clock.monotonic_s()
        long_ago_s = now_s - (
            _QUERY_AFTER_WHEN_ACTIVE_S if now_s - self._last_bound_s <= _QUERY_AFTER_S else _QUERY_AFTER_S
        )
        return self._needs_list or any(asked_s < long_ago_s for asked_s in self._last_confirmed_s.values())

    def orphans(self) -> list[BindRequest]:
        """Requests that were given up long enough ago, and whose pods somebody has to look for; some of them."""
        long_ago_s = self.clock.monotonic_s() - self.stale_s
        return [request for request, since_s in self._orphans.values() if since_s <= long_ago_s][
            :_MAX_ORPHANS_PER_CHECK
        ]

    def lost(self) -> list[tuple[str, BindRequest]]:
        """Pods, by uid, whose requests were deleted while they were live. They have to be read now: see `read_pod`."""
        return self._lost.due() + (self.foreign_requests.lost.due() if self.foreign_requests is not None else [])

    def request_of(self, pod: Pod) -> BindRequest | None:
        """The request that is to bring the pod to a node, or that may have done so before it was deleted."""
        request = self.requests.get(pod.key)
        if request is not None and request.is_for(pod) and request.is_active:
            return request
        if (lost := self._lost.get(pod.uid)) is not None:
            return lost.request
        return self.foreign_requests.request_of(pod) if self.foreign_requests is not None else None

    def retry_in_s(self, request: BindRequest) -> float | None:
        """In how long the binder tries a request again that failed, about; None where it has not failed."""
        tried_s = self._last_failure_s.get(request.pod_key)
        if tried_s is None or not request.status.failed_attempts:
            return None
        return tried_s + retry_delay_s(request.status.failed_attempts - 1) - self.clock.monotonic_s()

    def track(self, pod: Pod, ended: ResultCallback) -> Status | None:
        """What became of the request of a pod; success where nobody has made one: another profile, or an extender, has
        bound the pod by itself. None: nothing yet; `ended` will be told, unless we let go of it."""
        uid = pod.metadata.uid
        if uid not in self._submitted:
            return SUCCESS
        self._submitted.discard(uid)
        if self.cache.is_confirmed(uid):
            return SUCCESS  # the binder was quicker than the answer to us
        if uid in self._lost:
            if not self._stopped:
                self._waiting[uid] = ended
            return None
        request = self.requests.get(pod.key)
        if request is None or not request.is_for(pod):
            return _REQUEST_DELETED
        verdict = self._request_status(request) if request.status.phase else None
        if verdict is None and self.engine.waiting_pod(request) is None:
            return error(f"pod {pod.key} is gone")  # before the answer to us came
        if verdict is None and not self._stopped:
            self._waiting[uid] = ended
        return verdict

    def stop_tracking(self) -> None:
        """Nobody is told any more, who comes later neither: what was handed over is carried out without us."""
        self._stopped = True
        self._waiting.clear()

    def run_periodic_checks(self) -> None:
        """What time asks for: requests that were given up or lost their node go; stale ones are complained about."""
        self._deleting.clear()  # what could not be deleted is tried again
        now, now_s = self.clock.now(), self.clock.monotonic_s()
        for uid in [uid for uid, until_s in self._kept_until_s.items() if until_s <= now_s]:
            self._schedule_retry(uid)
            self.engine.wake(uid)
        for request in list(self.requests.values()):
            self._check_request(request, now)

    # inside -----------------------------------------------------------------------------------------------------

    def _check_request(self, request: BindRequest, now: datetime) -> None:
        pod = self.engine.waiting_pod(request)
        if pod is None and self.only_failures:
            self._remove(request.pod_key)
        if pod is None or not request.is_for(pod) or not request.is_handled_by_bayplan or request.has_succeeded:
            self.stale.discard(request.metadata.uid)
        elif request.has_failed:
            self._delete(request)
        elif self.cache.node(request.spec.selected_node) is None:
            log.warning("node %s of the bind request of pod %s is gone", request.spec.selected_node, pod.key)
            self._delete(request, f"its node {request.spec.selected_node} is gone")
        else:
            self._check_staleness(request, pod, now)

    def _handle_request(self, request: BindRequest) -> None:
        key = request.pod_key
        known = self.requests.get(key)
        if known is not None and known.metadata.uid != request.metadata.uid:
            known = None
        if known is not None and request.version < known.version:
            return
        pod = self.engine.waiting_pod(request)
        if pod is not None and pod.uid in self._lost:
            self._replace_lost(request, pod)
        if request.status.phase:
            self._assign_owner(request, pod)
        if pod is None and self.only_failures:
            return  # it is bound, or gone, and nobody would tell when its request goes
        self.requests[key] = request
        self._last_confirmed_s[key] = self.clock.monotonic_s()
        if not request.status.phase:  # as it was made: nobody has said anything of it yet
            self._handle_new_request(request, pod)
            return
        was_given_up = known is not None and known.has_failed
        if request.was_attempted and (known is None or known.status != request.status):  # others may write as well
            self._last_failure_s[key] = self._last_confirmed_s[key]
            self.stale.discard(request.metadata.uid)
        if pod is None or not request.is_for(pod):
            return
        if request.is_active and not request.has_succeeded:
            self._devices.reserve(request, pod)
        if request.has_failed and not was_given_up:
            self._handle_failed_request(request, pod)
        elif request.is_active and self.cache.pod(pod.uid) is None:
            self._restore(request, pod)
        elif request.has_succeeded:
            self._report_result(pod.uid, SUCCESS)

    def _assign_owner(self, request: BindRequest, pod: Pod | None) -> None:
        uid, is_going = request.metadata.uid, request.metadata.deletion_timestamp is not None
        owned = pod is not None and request.is_for(pod)
        if owned or is_going or not request.has_failed or not request.is_handled_by_bayplan:
            self._orphans.pop(uid, None)
            return
        _, since_s = self._orphans.get(uid, (request, self.clock.monotonic_s()))
        self._orphans[uid] = request, since_s

    def _handle_new_request(self, request: BindRequest, pod: Pod | None) -> None:
        """Most requests are known only so: their pods are on their nodes before anybody tells more of them."""
        if pod is None or request.metadata.deletion_timestamp is not None or not request.is_for(pod):
            return
        self._devices.reserve(request, pod)
        self._restore(request, pod)

    def _is_known(self, request: BindRequest) -> bool:
        known = self.requests.get(request.pod_key)
        return known is not None and known.metadata.uid == request.metadata.uid

    def _handle_request_delete(self, request: BindRequest) -> None:
        known = self.requests[request.pod_key] if self._is_known(request) else request
        self._gone[request.metadata.uid] = not known.has_failed
        if len(self._gone) > _MAX_REMEMBERED:
            del self._gone[next(iter(self._gone))]
        self.stale.discard(request.metadata.uid)
        why = self._deleting.pop(request.metadata.uid, "")
        self._orphans.pop(request.metadata.uid, None)
        if not self._is_known(request):
            return
        self._remove(request.pod_key)
        pod = self.engine.waiting_pod(request)
        if pod is None or not request.is_for(pod) or known.has_succeeded:
            return
        status = error(f"{_REQUEST_DELETED.message}: {why}") if why else _REQUEST_DELETED
        if known.has_failed:
            self._devices.release(pod.uid)
            self._release_pod(pod, status)
        else:
            self._lose(known, pod, status)

    def _lose(self, request: BindRequest, pod: Pod, why: Status) -> None:
        """A request was deleted, and the binder may have sent the binding of its pod before."""
        if pod.terminating or not self.cache.is_assumed(pod.uid):  # the API server binds no pod that is being deleted
            self._devices.release(pod.uid)
            self._release_pod(pod, why)
            return
        self._lost.add(pod.uid, request, why)
        node, keeps_s = request.spec.selected_node, self._lost.request_timeout_s
        self.engine.record_warning(
            pod,
            "BindRequestDeleted",
            f"{why.message}; the pod keeps its room on node {node} for {keeps_s:.0f} s, because the binder may have "
            "sent its binding, and is placed anew after that",
        )

    def _replace_lost(self, request: BindRequest, pod: Pod) -> None:
        """The pod has another request: that one says where it counts."""
        lost = self._lost.get(pod.uid)
        if lost is None or not request.is_for(pod) or not request.is_active:
            return
        self._lost.pop(pod.uid)
        if lost.request.spec.selected_node != request.spec.selected_node:
            self._devices.release(pod.uid)
            self._release_pod(pod, lost.why)

    def _forget(self, pod: Pod) -> bool:
        """The pod waits no more; whether there is a request of its name."""
        uid, key = pod.metadata.uid, pod.key
        self._restored.discard(uid)
        self._kept_until_s.pop(uid, None)
        self._lost.pop(uid)
        self.failures.forget(uid)
        known = self.requests.get(key)
        if known is None:
            return False
        if self.only_failures and known.is_for(pod):
            self._remove(key)  # nobody tells when it goes
        return True

    def _remove(self, key: str) -> None:
        del self.requests[key]
        self._last_confirmed_s.pop(key, None)
        self._last_failure_s.pop(key, None)

    def _handle_failed_request(self, request: BindRequest, pod: Pod) -> None:
        node, reason = request.spec.selected_node, request.status.reason
        self.failures.record_failure(pod.uid, node, reason)
        self._devices.release(pod.uid)
        self._release_pod(pod, error(f"the binder could not bind the pod to node {node}: {reason}"))
        self._schedule_retry(pod.uid)
        if request.is_handled_by_bayplan:
            self._delete(request)

    def _schedule_retry(self, uid: str) -> None:
        """When a pod may next be tried where it may not be now: of several nodes the first counts, then the next."""
        opens_in_s = self.failures.retry_in_s(uid)
        if opens_in_s is None:
            self._kept_until_s.pop(uid, None)
        else:
            self._kept_until_s[uid] = self.clock.monotonic_s() + opens_in_s

    def _restore(self, request: BindRequest, pod: Pod) -> bool:
        if self.cache.pod(pod.metadata.uid) is None:
            self.cache.assume(PodInfo(pod).bound_to(request.spec.selected_node))
            self._restored.add(pod.uid)
            self.engine.on_assumed(pod)
        return True

    def _release_pod(self, pod: Pod, why: Status) -> None:
        """Whoever waits takes back what it holds; what nobody waits for is taken back here."""
        if self._report_result(pod.uid, why) or pod.uid not in self._restored:
            return
        self._restored.discard(pod.uid)
        was = self.cache.pod(pod.uid)
        if was is not None and self.cache.is_assumed(pod.uid):
            self.cache.forget(was)
            self.engine.on_released(pod, was)

    def _report_result(self, uid: str, status: Status) -> bool:
        ended = self._waiting.pop(uid, None)
        if ended is None:
            return False
        ended(status)
        return True

    def _request_status(self, request: BindRequest) -> Status | None:
        if request.has_succeeded:
            return SUCCESS
        if request.has_failed:
            return error(
                f"the binder could not bind the pod to node {request.spec.selected_node}: {request.status.reason}"
            )
        return None

    def _check_staleness(self, request: BindRequest, pod: Pod, now: datetime) -> None:
        """Where the binder is gone, pods that hold room must not pile up unseen: whether it went before the first
        attempt or between two makes no difference to them. When a request was last tried it does not say; we know when
        we heard of it, which is at worst when we started."""
        uid, node = request.metadata.uid, request.spec.selected_node
        age_s = self._silence_s(request, now)
        if age_s > self.stale_s and uid not in self.stale:
            self.stale.add(uid)
            due = ""
            if request.was_attempted:
                due = f", though it was to be tried again after {request.status.failed_attempts} failures"
            # it may be at work on it: a binder speaks when an attempt is over
            self.engine.record_warning(
                pod,
                "BindRequestStale",
                f"no binder has said anything of the bind request to node {node} for {age_s:.0f} s{due}; "
                "see whether `bayplan binder` runs, and what it waits for",
            )
        if age_s > STALE_FACTOR * self.stale_s:
            self._delete(request, f"nobody has carried it out for {age_s:.0f} s", only_if_unchanged=True)

    def _silence_s(self, request: BindRequest, now: datetime) -> float:
        """For how long a binder could have said something of a request, and none has."""
        if request.was_attempted:
            tried_s = self._last_failure_s.get(request.pod_key, float("inf"))
            return self.clock.monotonic_s() - tried_s - MAX_RETRY_DELAY_S
        made = request.metadata.creation_timestamp
        return (now - made).total_seconds() if made is not None else 0.0

    def _delete(self, request: BindRequest, why: str = "", **how: Any) -> None:
        if request.metadata.uid not in self._deleting:
            self._deleting[request.metadata.uid] = why
            how = {
                "on_deleted": partial(self._on_delete_result, request),
                "postponed": partial(self._stays, request),
                **how,
            }
            self.engine.submit(DeleteBindRequest(request, **how))

    def _stays(self, request: BindRequest, until_s: float) -> None:
        """A request cannot be deleted before then. One that was given up keeps its pod from being tried until then:
        the next request has the same name. Others keep their pods on their nodes, as before."""
        pod = self.engine.waiting_pod(request)
        if pod is None or not request.is_for(pod) or not request.has_failed:
            return
        node, late = request.spec.selected_node, "an earlier create of it, whose outcome is unknown, may still land"
        why = f"the bind request to node {node} was given up and cannot be replaced yet: {late}"
        self.failures.hold(pod.uid, until_s, why)
        self._schedule_retry(pod.uid)

    def _on_delete_result(self, was: BindRequest, there: BindRequest | None) -> None:
        """Or it was not, for this is there instead: somebody has changed it, and what is to be done follows from what
        it says now. One that is merely annotated is deleted at once, or it could be changed again and again."""
        if there is None or there.metadata.uid != was.metadata.uid:
            self._handle_request_delete(was)
        if there is None:
            return
        self._handle_request(there)
        self._deleting.pop(there.metadata.uid, None)
        if self.requests.get(there.pod_key) is there and there.version > was.version:
            self._check_request(there, self.clock.now())


_REQUEST_DELETED = error("the bind request was deleted before the pod was bound")
