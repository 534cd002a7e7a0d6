"""Counts pods of other schedulers on the nodes that their BindRequests name.

Without a BindRequest, the API server shows a placement at once. With one, the pod has no node until the binder has
bound it, which may take as long as a volume does; the node's capacity would be given out twice. The pods are only
counted here: the engine of the pod handles the request itself. A pod whose request was deleted while it was live counts
until its binding can no longer take effect (`lost_requests`). Cost: one lookup for each pod that is added, changed or
deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bayplan.bind_requests.devices import RequestedDevices
from bayplan.bind_requests.lost_requests import LostRequests
from bayplan.cache.cache import Cache
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.snapshot import PodInfo


@dataclass(slots=True)
class ForeignBindRequests:
    """Counts pods of other schedulers on the nodes that requests name."""

    cache: Cache
    is_own_pod: Callable[[Pod], bool]
    """Whether a pod belongs to this engine, which then counts it itself."""
    on_released: Callable[[Pod], None]
    """Called with a pod that no longer counts on a node."""
    lost: LostRequests
    _waiting: dict[str, Pod] = field(default_factory=dict)  # by key: the latest version, without a node
    _requests: dict[str, BindRequest] = field(default_factory=dict)  # by the key of the pod
    _counted: dict[str, str] = field(default_factory=dict)  # by uid of the pod: the node
    _devices: RequestedDevices = field(init=False)

    def __post_init__(self) -> None:
        self._devices = RequestedDevices(self.cache)

    # events

    def handle_event(self, old: BindRequest | None, new: BindRequest | None) -> None:
        if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
            known = self._requests.get(old.pod_key)
            if known is not None and known.metadata.uid == old.metadata.uid:
                del self._requests[old.pod_key]
                self._note_lost(known)
                self._update_pod(old.pod_key)
        if new is not None:
            self._handle_request(new)

    def handle_pending_pod(self, pod: Pod) -> None:
        """A pod without a node was added or has changed."""
        if not self.is_own_pod(pod):
            self._waiting[pod.key] = pod
            if self._requests:
                self._update_pod(pod.key)

    def handle_pod_assigned(self, pod: Pod) -> None:
        """The API server shows the pod on a node: the cache counts it there."""
        if self._waiting or self._requests:
            self._forget(pod)
            self.lost.pop(pod.uid)
            if self._counted.pop(pod.uid, None) is not None:
                self._devices.handle_pod_assigned(pod)

    def handle_pod_delete(self, pod: Pod) -> None:
        if self._waiting or self._requests:
            self._forget(pod)
            self.lost.pop(pod.uid)
            self._forget_assumed(pod.uid)

    def read_pod(self, uid: str, found: Pod | None) -> None:
        """The API server has this pod under the name of a pod of `lost`. Its capacity is free unless it is on a node.

        If it is on a node, or deleted, the watch will show that."""
        if uid in self.lost and found is not None and found.uid == uid and not found.spec.node_name:
            self.lost.pop(uid)
            self._update_pod(found.key)

    # queries

    def request_of(self, pod: Pod) -> BindRequest | None:
        """The request because of which this object counts a pod on a node."""
        if (lost := self.lost.get(pod.uid)) is not None:
            return lost.request
        return self._live_request(pod) if pod.uid in self._counted else None

    # internal

    def _forget(self, pod: Pod) -> None:
        """The pod is no longer pending. A later pod of its name may already be known and stays."""
        waiting, request = self._waiting.get(pod.key), self._requests.get(pod.key)
        if waiting is not None and waiting.uid == pod.uid:
            del self._waiting[pod.key]
        if request is not None and request.is_for(pod):
            del self._requests[pod.key]

    def _handle_request(self, request: BindRequest) -> None:
        key = request.pod_key
        known = self._requests.get(key)
        if known is not None and known.metadata.uid == request.metadata.uid and known.version > request.version:
            return  # an older version: a list may be behind the watch
        if request.has_succeeded and key not in self._waiting:
            self._requests.pop(key, None)  # its pod is known to be on its node
            return
        self._requests[key] = request
        self._update_pod(key)

    def _update_pod(self, key: str) -> None:
        """Count a pod where its request says, or nowhere."""
        pod = self._waiting.get(key)
        if pod is None:
            return
        request = self._live_request(pod)
        if pod.uid in self.lost:
            if request is None:
                return
            self.lost.pop(pod.uid)
            self._devices.release(pod.uid)  # the new request may have other devices
        node_name = request.spec.selected_node if request is not None else ""
        if self._counted.get(pod.uid, node_name) != node_name:
            self._forget_assumed(pod.uid)
        if request is not None and node_name and self.cache.pod(pod.uid) is None:
            self.cache.assume(PodInfo(pod).bound_to(node_name))
            self._counted[pod.uid] = node_name
        if request is not None and pod.uid in self._counted:
            self._devices.reserve(request, pod)

    def _note_lost(self, request: BindRequest) -> None:
        """A request was deleted. If its pod counts because of it, the binder may have sent the binding before."""
        pod = self._waiting.get(request.pod_key)
        if pod is None or pod.uid not in self._counted or not request.is_active or not request.is_for(pod):
            return
        if not pod.terminating:  # the API server binds no pod that is being deleted
            self.lost.add(pod.uid, request)

    def _live_request(self, pod: Pod) -> BindRequest | None:
        request = self._requests.get(pod.key)
        return request if request is not None and request.is_active and request.is_for(pod) else None

    def _forget_assumed(self, uid: str) -> None:
        if self._counted.pop(uid, None) is None:
            return
        self._devices.release(uid)
        assumed = self.cache.pod(uid)
        if assumed is not None and self.cache.is_assumed(uid):
            self.cache.forget(assumed)
            self.on_released(assumed)
