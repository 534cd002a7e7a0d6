"""Tracks the BindRequests of one engine's pods: which pods have one, and how each ends.

Fed by the watch, and by the engine's own writes before that. A pod without a node that has a live request counts on its
node, after a restart too. A pod whose request was given up is pending again, and that node is excluded for a while. The
creator of a request gets its result. Deletions are submitted as intents, and their results are handled like events.
Cost: a few lookups for each change.

A request that was deleted while it was live frees its pod only when a GET, made after the API server's request timeout,
shows the pod without a node: the binder may have sent the binding before.

A request that was given up and has no pending pod in this engine is an orphan, unless the pod belongs to another engine
or is on its node. The tracker asks the API server after a delay, so that the creator can read the reason first. The
garbage collector does not delete an orphan, because its owner never existed.

If the watch delivers only failures (`only_failures`), success is seen by the pod, which costs nothing more. A list then
shows which requests exist at the start, and what became of a request without news for long.
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
"""Longest delay of the binder between two attempts, with jitter: after it, no binder is retrying the request."""
_MAX_REMEMBERED = 4096
_MAX_ORPHANS_PER_CHECK = 50
_QUERY_AFTER_S, _QUERY_AFTER_WHEN_ACTIVE_S = 15.0, 60.0
"""With `only_failures`, a list is made this long after the last news of a request. The longer time applies while the
binder binds other pods: it is running, and the request only waits for its turn."""


ResultCallback = Callable[[Status], None]
"""Called once with the result of a request. The tracker is handling a change then: the callee must defer its work."""


class RequestOwner(Protocol):
    """The engine whose pods the requests bind."""

    def waiting_pod(self, request: BindRequest) -> Pod | None:
        """The pending pod that a request names, in its latest version; None if it is not this engine's or has a
        node."""
        ...

    def on_assumed(self, pod: Pod) -> None:
        """The pod counts on a node now and must not be scheduled."""
        ...

    def on_released(self, pod: Pod, assumed: Pod) -> None:
        """The pod does not count on its node any more (`assumed`) and has to be scheduled again."""
        ...

    def submit(self, intent: object) -> None: ...

    def record_warning(self, pod: Pod, reason: str, note: str) -> None: ...

    def wake(self, uid: str) -> None:
        """The pod may be tried again on nodes that were excluded."""
        ...


@dataclass(slots=True)
class BindRequestTracker:
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
    """Uids of requests that no binder has updated for too long."""
    foreign_requests: ForeignBindRequests | None = None
    """Counts pods of other schedulers; None if another tracker on the same cache does."""
    _submitted: set[str] = field(default_factory=set)  # uids of pods whose requests `track` was not called for yet
    _waiting: dict[str, ResultCallback] = field(default_factory=dict)  # by the uid of the pod
    _restored: set[str] = field(default_factory=set)  # uids of pods that are assumed only because of a request
    _devices: RequestedDevices = field(init=False)
    _lost: LostRequests = field(init=False)
    _gone: dict[str, bool] = field(default_factory=dict)  # by uid, newest last: whether a binding may be in flight
    _deleting: dict[str, str] = field(default_factory=dict)  # by the uid of the request: the reason of the deletion
    _excluded_until_s: dict[str, float] = field(default_factory=dict)  # by pod uid: end of the exclusion of a node
    _stopped: bool = False
    _needs_list: bool = False
    # by the key of the pod: when its request was last known to exist
    _last_confirmed_s: dict[str, float] = field(default_factory=dict)
    # by the key of the pod: when its request last failed
    _last_failure_s: dict[str, float] = field(default_factory=dict)
    _orphans: dict[str, tuple[BindRequest, float]] = field(default_factory=dict)  # by uid: possible orphans, since when
    _unread: frozenset[str] = frozenset()  # uids of possible orphans that cannot be decoded as a whole
    _last_bound_s: float = float("-inf")  # when the binder last bound a pod

    def __post_init__(self) -> None:
        self._devices = RequestedDevices(self.cache)
        self._lost = LostRequests(self.clock, self.request_timeout_s)

    # events

    def handle_event(self, old: BindRequest | None, new: BindRequest | None) -> None:
        if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
            if self.only_failures and not old.has_failed:
                # deleted, or retried with success: a watch of failures shows both as a deletion
                self._needs_list = self._needs_list or self._is_known(old)
            else:
                self._handle_request_delete(old)
        if new is not None and new.metadata.uid not in self._gone:  # the watch may be behind the result of a deletion
            self._handle_request(new)
        if self.foreign_requests is not None:
            self.foreign_requests.handle_event(old, new)

    def observe_created(self, request: BindRequest, pod: Pod) -> None:
        """The API server has created a request, or found it."""
        self._submitted.add(pod.metadata.uid)
        if request.metadata.uid not in self._gone:
            self._handle_request(request)
        elif self._gone[request.metadata.uid] and pod.uid not in self._lost:
            self._lose(request, pod, _REQUEST_DELETED)

    def handle_pod_add(self, pod: Pod) -> bool:
        """A pod without a node was added. True if it counts on a node because of a request."""
        request = self.requests.get(pod.key)
        if request is None or not request.is_for(pod) or not request.is_active:
            return pod.metadata.uid in self._lost
        self._devices.reserve(request, pod)
        return self._restore(request, pod)

    def handle_foreign_pod(self, pod: Pod) -> None:
        """A pod without a node that another scheduler places was added or has changed."""
        if self.foreign_requests is not None:
            self.foreign_requests.handle_pending_pod(pod)

    def handle_pod_assigned(self, pod: Pod) -> None:
        if self._forget(pod):
            self._last_bound_s = self.clock.monotonic_s()
        self._devices.handle_pod_assigned(pod)
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
        """Handle a list of all requests. Those of `known_before`, when the list was made, that are missing are
        deleted."""
        self._needs_list = False
        deleted = known_before - uids
        for request in [each for each in self.requests.values() if each.metadata.uid in deleted]:
            self._handle_request_delete(request)
        self._last_confirmed_s = dict.fromkeys(self.requests, self.clock.monotonic_s())

    def handle_unreadable(self, requests: Sequence[BindRequest]) -> None:
        """Handle the list of all requests that failed and cannot be decoded as a whole. No watch delivers these."""
        uids = frozenset(each.metadata.uid for each in requests)
        for uid in self._unread - uids:
            self._orphans.pop(uid, None)
        self._unread = uids
        for each in requests:
            self._assign_owner(each, self.engine.waiting_pod(each))

    def handle_orphan_check(self, orphan: BindRequest, uid: str) -> None:
        """The API server has a pod of that name with this uid; empty: no pod. The request is deleted if it is an
        orphan. If it stays, or the deletion fails, it is checked again after the same delay."""
        self.postpone_orphan_check(orphan)
        if not uid or orphan.pod_uid not in ("", uid):
            log.info("bind request %s was given up, and its pod does not exist: deleting it", orphan.key)
            self._delete(orphan)

    def read_pod(self, uid: str, found: Pod | None) -> None:
        """The API server has this pod under the name of a pod of `lost`. Its node is free unless it is there.

        If it is on a node, or deleted, the watch will show that and free the capacity."""
        if self.foreign_requests is not None:
            self.foreign_requests.read_pod(uid, found)
        lost = self._lost.get(uid)
        if lost is None or found is None or found.uid != uid or found.spec.node_name:
            return
        self._lost.pop(uid)
        self._devices.release(uid)
        self._release_pod(self.engine.waiting_pod(lost.request) or found, lost.why)

    def postpone_orphan_check(self, orphan: BindRequest) -> None:
        """The check failed, or the pod exists: check the request again after the same delay."""
        if orphan.metadata.uid in self._orphans:
            self._orphans[orphan.metadata.uid] = orphan, self.clock.monotonic_s()

    # queries

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(each.metadata.uid for each in self.requests.values())

    @property
    def waiting(self) -> int:
        """Number of pods whose result an engine waits for."""
        return len(self._waiting)

    @property
    def needs_list(self) -> bool:
        if not self.only_failures:
            return False
        now_s = self.clock.monotonic_s()
        oldest_s = now_s - (
            _QUERY_AFTER_WHEN_ACTIVE_S if now_s - self._last_bound_s <= _QUERY_AFTER_S else _QUERY_AFTER_S
        )
        return self._needs_list or any(confirmed_s < oldest_s for confirmed_s in self._last_confirmed_s.values())

    def orphans(self) -> list[BindRequest]:
        """Requests that were given up long enough ago, and whose pods have to be read; at most 50."""
        oldest_s = self.clock.monotonic_s() - self.stale_s
        return [request for request, since_s in self._orphans.values() if since_s <= oldest_s][:_MAX_ORPHANS_PER_CHECK]

    def lost(self) -> list[tuple[str, BindRequest]]:
        """Pods, by uid, whose live requests were deleted and which have to be read now: see `read_pod`."""
        return self._lost.due() + (self.foreign_requests.lost.due() if self.foreign_requests is not None else [])

    def request_of(self, pod: Pod) -> BindRequest | None:
        """The request that binds the pod to a node, or that may have done so before it was deleted."""
        request = self.requests.get(pod.key)
        if request is not None and request.is_for(pod) and request.is_active:
            return request
        if (lost := self._lost.get(pod.uid)) is not None:
            return lost.request
        return self.foreign_requests.request_of(pod) if self.foreign_requests is not None else None

    def retry_in_s(self, request: BindRequest) -> float | None:
        """Estimated time until the binder retries a request that failed; None if it has not failed."""
        failed_s = self._last_failure_s.get(request.pod_key)
        if failed_s is None or not request.status.failed_attempts:
            return None
        return failed_s + retry_delay_s(request.status.failed_attempts - 1) - self.clock.monotonic_s()

    def track(self, pod: Pod, on_result: ResultCallback) -> Status | None:
        """The result of a pod's request. Success if there was no request: another bind plugin or an extender bound the
        pod. None: no result yet; `on_result` gets it, unless tracking is stopped."""
        uid = pod.metadata.uid
        if uid not in self._submitted:
            return SUCCESS
        self._submitted.discard(uid)
        if self.cache.is_confirmed(uid):
            return SUCCESS  # the binder was faster than the API server's response to the create
        if uid in self._lost:
            if not self._stopped:
                self._waiting[uid] = on_result
            return None
        request = self.requests.get(pod.key)
        if request is None or not request.is_for(pod):
            return _REQUEST_DELETED
        verdict = self._request_status(request) if request.status.phase else None
        if verdict is None and self.engine.waiting_pod(request) is None:
            return error(f"pod {pod.key} is gone")  # deleted before the API server's response came
        if verdict is None and not self._stopped:
            self._waiting[uid] = on_result
        return verdict

    def stop_tracking(self) -> None:
        """Report no further results. The binder handles the requests without this engine."""
        self._stopped = True
        self._waiting.clear()

    def run_periodic_checks(self) -> None:
        """Delete requests that were given up or lost their node, warn about stale ones, and end exclusions of nodes."""
        self._deleting.clear()  # failed deletions are retried
        now, now_s = self.clock.now(), self.clock.monotonic_s()
        for uid in [uid for uid, until_s in self._excluded_until_s.items() if until_s <= now_s]:
            self._schedule_retry(uid)
            self.engine.wake(uid)
        for request in list(self.requests.values()):
            self._check_request(request, now)

    # internal

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
            return  # it is bound or deleted, and the watch would not show the deletion of its request
        self.requests[key] = request
        self._last_confirmed_s[key] = self.clock.monotonic_s()
        if not request.status.phase:  # as it was created
            self._handle_new_request(request, pod)
            return
        was_given_up = known is not None and known.has_failed
        if request.was_attempted and (known is None or known.status != request.status):  # other clients write, too
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
        uid, is_terminating = request.metadata.uid, request.metadata.deletion_timestamp is not None
        owned = pod is not None and request.is_for(pod)
        if owned or is_terminating or not request.has_failed or not request.is_handled_by_bayplan:
            self._orphans.pop(uid, None)
            return
        _, since_s = self._orphans.get(uid, (request, self.clock.monotonic_s()))
        self._orphans[uid] = request, since_s

    def _handle_new_request(self, request: BindRequest, pod: Pod | None) -> None:
        """Handle a request without a status. Most are seen only so: the next event is their pod on its node."""
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
        """A live request was deleted; the binder may have sent the binding of its pod before."""
        if pod.terminating or not self.cache.is_assumed(pod.uid):  # the API server binds no pod that is being deleted
            self._devices.release(pod.uid)
            self._release_pod(pod, why)
            return
        self._lost.add(pod.uid, request, why)
        node, keeps_s = request.spec.selected_node, self._lost.request_timeout_s
        self.engine.record_warning(
            pod,
            "BindRequestDeleted",
            f"{why.message}; the pod keeps its capacity on node {node} for {keeps_s:.0f} s, because the binder "
            "may have sent its binding, and is scheduled again after that",
        )

    def _replace_lost(self, request: BindRequest, pod: Pod) -> None:
        """The pod has another request, which determines its node from now on."""
        lost = self._lost.get(pod.uid)
        if lost is None or not request.is_for(pod) or not request.is_active:
            return
        self._lost.pop(pod.uid)
        if lost.request.spec.selected_node != request.spec.selected_node:
            self._devices.release(pod.uid)
            self._release_pod(pod, lost.why)

    def _forget(self, pod: Pod) -> bool:
        """The pod is no longer pending. True if there is a request of its name."""
        uid, key = pod.metadata.uid, pod.key
        self._restored.discard(uid)
        self._excluded_until_s.pop(uid, None)
        self._lost.pop(uid)
        self.failures.forget(uid)
        known = self.requests.get(key)
        if known is None:
            return False
        if self.only_failures and known.is_for(pod):
            self._remove(key)  # the watch would not show its deletion
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
        """Set when the pod may be tried on an excluded node again: the earliest of several."""
        retry_in_s = self.failures.retry_in_s(uid)
        if retry_in_s is None:
            self._excluded_until_s.pop(uid, None)
        else:
            self._excluded_until_s[uid] = self.clock.monotonic_s() + retry_in_s

    def _restore(self, request: BindRequest, pod: Pod) -> bool:
        if self.cache.pod(pod.metadata.uid) is None:
            self.cache.assume(PodInfo(pod).bound_to(request.spec.selected_node))
            self._restored.add(pod.uid)
            self.engine.on_assumed(pod)
        return True

    def _release_pod(self, pod: Pod, why: Status) -> None:
        """Report the result to the waiting engine, which unreserves the pod; without one, forget the pod here."""
        if self._report_result(pod.uid, why) or pod.uid not in self._restored:
            return
        self._restored.discard(pod.uid)
        assumed = self.cache.pod(pod.uid)
        if assumed is not None and self.cache.is_assumed(pod.uid):
            self.cache.forget(assumed)
            self.engine.on_released(pod, assumed)

    def _report_result(self, uid: str, status: Status) -> bool:
        on_result = self._waiting.pop(uid, None)
        if on_result is None:
            return False
        on_result(status)
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
        """Warn about a request that no binder has updated for too long, and delete it later.

        Without a binder, pods must not hold capacity unnoticed, before the first attempt or between two. A request does
        not say when it was last attempted; the tracker knows when it saw the failure, at worst its own start."""
        uid, node = request.metadata.uid, request.spec.selected_node
        age_s = self._silence_s(request, now)
        if age_s > self.stale_s and uid not in self.stale:
            self.stale.add(uid)
            due = ""
            if request.was_attempted:
                due = f", though it was to be retried after {request.status.failed_attempts} failures"
            # a binder may be working on it: it writes only at the end of an attempt
            self.engine.record_warning(
                pod,
                "BindRequestStale",
                f"no binder has updated the bind request to node {node} for {age_s:.0f} s{due}; "
                "see whether `bayplan binder` runs, and what it waits for",
            )
        if age_s > STALE_FACTOR * self.stale_s:
            self._delete(request, f"no binder has carried it out for {age_s:.0f} s", only_if_unchanged=True)

    def _silence_s(self, request: BindRequest, now: datetime) -> float:
        """How long a binder could have updated a request and has not."""
        if request.was_attempted:
            failed_s = self._last_failure_s.get(request.pod_key, float("inf"))
            return self.clock.monotonic_s() - failed_s - MAX_RETRY_DELAY_S
        created = request.metadata.creation_timestamp
        return (now - created).total_seconds() if created is not None else 0.0

    def _delete(self, request: BindRequest, why: str = "", **options: Any) -> None:
        if request.metadata.uid not in self._deleting:
            self._deleting[request.metadata.uid] = why
            options = {
                "on_deleted": partial(self._on_delete_result, request),
                "postponed": partial(self._on_delete_postponed, request),
                **options,
            }
            self.engine.submit(DeleteBindRequest(request, **options))

    def _on_delete_postponed(self, request: BindRequest, until_s: float) -> None:
        """A request cannot be deleted before then. If it was given up, its pod is not tried until then: the next
        request has the same name. Otherwise the pod stays on its node."""
        pod = self.engine.waiting_pod(request)
        if pod is None or not request.is_for(pod) or not request.has_failed:
            return
        node, reason = request.spec.selected_node, "an earlier create of it, whose outcome is unknown, may still land"
        why = f"the bind request to node {node} was given up and cannot be replaced yet: {reason}"
        self.failures.hold(pod.uid, until_s, why)
        self._schedule_retry(pod.uid)

    def _on_delete_result(self, request: BindRequest, existing: BindRequest | None) -> None:
        """Handle the result of a deletion. `existing`: the request that exists instead, because it was changed or
        replaced. A changed request is checked again at once, or another client could block its deletion with every
        change."""
        if existing is None or existing.metadata.uid != request.metadata.uid:
            self._handle_request_delete(request)
        if existing is None:
            return
        self._handle_request(existing)
        self._deleting.pop(existing.metadata.uid, None)
        if self.requests.get(existing.pod_key) is existing and existing.version > request.version:
            self._check_request(existing, self.clock.now())


_REQUEST_DELETED = error("the bind request was deleted before the pod was bound")
