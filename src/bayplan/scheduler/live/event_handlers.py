"""What does a change that the API server tells mean for the cache and for the queue?

Asked once a watch event, with the object before and after. The order of steps is kube-scheduler's and matters: the
cache is told before pods are woken, save for a node that goes. Waking many pods takes a while, so every method is an
iterator that does a slice of the work at each turn; whoever has nothing else to do runs it to its end with `follow`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

from bayplan.bind_requests.tracker import BindRequests
from bayplan.cache import Cache
from bayplan.framework.api.events import Action, ClusterEvent
from bayplan.framework.runtime.nominator import NominationLedger
from bayplan.framework.runtime.object_changes import (
    ASSIGNED_POD_ADD,
    ASSIGNED_POD_DELETE,
    ASSIGNED_POD_UPDATE,
    NODE_ADD,
    NODE_DELETE,
    RESOURCES,
    UNSCHEDULED_POD_ADD,
    UNSCHEDULED_POD_DELETE,
    UNSCHEDULED_POD_UPDATE,
    node_changes,
    pod_changes,
)
from bayplan.framework.runtime.waiting_pods import WaitingPods
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.queue import SchedulingQueue

log = logging.getLogger(__name__)

Slices = Iterator[int]
"""How many pods each slice of the work has woken."""

_OVER = ("Succeeded", "Failed")
REMOVED = "removed"
"""What a pod at Permit is told that was deleted."""


class Served(Protocol):
    """Which pods are ours, and those of them that wait: `PodEngine` is one."""

    @property
    def cache(self) -> Cache: ...
    @property
    def waiting(self) -> WaitingPods: ...
    @property
    def nominations(self) -> NominationLedger: ...
    @property
    def pending(self) -> dict[str, Pod]: ...
    def serves(self, pod: Pod) -> bool: ...


class Routing:
    """Keeps cache and queue true to what the API server tells.

    `gangs`: the feature gate GangScheduling, with which a pod that appears may be what others wait for.
    """

    def __init__(self, engine: Served, queue: SchedulingQueue, *, gangs: bool = False) -> None:
        self._engine = engine
        self._cache = engine.cache
        self._queue = queue
        self._gangs = gangs
        self.requests: BindRequests | None = None
        """Where pods may be on their way by a BindRequest; None: they are bound by us."""
        self.followed: list[str] = []
        """What the change that was followed last is called: its events, whether they interest anybody or not."""

    def follow(self, old: KubeObject | None, new: KubeObject | None) -> int:
        """One change, all of it; None stands for "was not there" and "is gone". Returns how many pods it woke."""
        return sum(self.following(old, new))

    def following(self, old: KubeObject | None, new: KubeObject | None) -> Slices:
        """The same in slices."""
        self.followed = []
        item = new if new is not None else old
        if isinstance(item, Pod):
            return self._pod(_alive(old), _alive(new))
        if isinstance(item, Node):
            return self._node(_node(old), _node(new))
        if isinstance(item, BindRequest):
            return self._request(old, new)
        return self._other(old, new)

    # nodes and others -------------------------------------------------------------------------------------------

    def _node(self, old: Node | None, new: Node | None) -> Slices:
        if new is None:
            assert old is not None
            self._note(NODE_DELETE)
            yield from self._queue.moving(NODE_DELETE, old, None)
            if self._cache.node(old.name) is not None:
                self._cache.remove_node(old.name)
        elif old is None:
            self._note(NODE_ADD)
            self._cache.add_node(new)
            yield from self._queue.moving(NODE_ADD, None, new)
        else:
            self._cache.update_node(new)
            for event in node_changes(old, new):
                self._note(event)
                yield from self._queue.moving(event, old, new)

    def _other(self, old: KubeObject | None, new: KubeObject | None) -> Slices:
        """Any other object. Of these, only actions that some plugin has registered for make an event at all."""
        item = new if new is not None else old
        assert item is not None
        known = self._cache.devices.claims.get(item.key) if isinstance(item, ResourceClaim) else None
        if new is not None:
            self._cache.put(new)
        else:
            self._cache.drop(item)
        if isinstance(item, ResourceClaim):
            old, new = known, self._cache.devices.claims.get(item.key)
            if new is old:
                return  # we know it already, or know better: that was an event when we wrote it
        yield from self._happened(old, new)

    def _request(self, old: KubeObject | None, new: KubeObject | None) -> Slices:
        assert old is None or isinstance(old, BindRequest)
        assert new is None or isinstance(new, BindRequest)
        if self.requests is not None:
            self.requests.hear(old, new)
        yield 0

    def assumed(self, old: KubeObject | None, new: KubeObject | None) -> Slices:
        """We know of a change before the API server tells: to those who wait it is one."""
        self.followed = []
        return self._happened(old, new)

    def _happened(self, old: KubeObject | None, new: KubeObject | None) -> Slices:
        item = new if new is not None else old
        assert item is not None
        action = Action.ADD if old is None else Action.DELETE if new is None else Action.UPDATE
        resource = RESOURCES.get(type(item))
        if resource is not None and self._queue.hints.actions_on(resource) & action:
            event = ClusterEvent(resource, action)
            self._note(event)
            yield from self._queue.moving(event, old, new)

    def _note(self, event: ClusterEvent) -> None:
        if event.name not in self.followed:
            self.followed.append(event.name)

    # pods -------------------------------------------------------------------------------------------------------

    def _pod(self, old: Pod | None, new: Pod | None) -> Slices:
        if new is None:
            return self._pod_gone(old) if old is not None else iter(())
        if old is None:
            return self._pod_came(new)
        if old.metadata.uid != new.metadata.uid:  # deleted and made anew while nobody watched
            return _both(self._pod_gone(old), self._pod_came(new))
        return self._pod_changed(old, new)

    def _pod_came(self, pod: Pod) -> Slices:
        if pod.spec.node_name:
            yield from self._placed(pod)
        elif self._engine.serves(pod):
            self._note(UNSCHEDULED_POD_ADD)
            self._engine.pending[pod.uid] = pod
            if self.requests is None or not self.requests.pod_came(pod):
                self._queue.add(pod)
            if self._gangs:
                yield from self._queue.moving(UNSCHEDULED_POD_ADD, None, pod)
        elif self.requests is not None:
            self.requests.pod_of_others(pod)

    def _pod_changed(self, old: Pod, new: Pod) -> Slices:
        if old.spec.node_name:
            self._note(ASSIGNED_POD_UPDATE)
            uid = new.metadata.uid
            alike = False
            if self._cache.is_confirmed(uid):
                alike = self._cache.update_pod(new) is old
            else:
                log.warning("pod %s on node %s changed and was not in the cache", new.key, new.spec.node_name)
                self._cache.add_pod(new)
            for event in pod_changes(old, new, alike=alike):
                self._note(event)
                yield from self._queue.moving(event, old, new)
        elif new.spec.node_name:
            yield from self._placed(new)
            if self._engine.serves(old):
                self._note(UNSCHEDULED_POD_DELETE)
                self._engine.pending.pop(old.uid, None)
                self._queue.delete(old)
        elif self._engine.serves(old):
            yield from self._waiting_pod_changed(old, new)
        elif self.requests is not None:
            self.requests.pod_of_others(new)

    def _waiting_pod_changed(self, old: Pod, new: Pod) -> Slices:
        if old.metadata.resource_version == new.metadata.resource_version:
            return
        self._note(UNSCHEDULED_POD_UPDATE)
        self._engine.pending[new.uid] = new
        if self._cache.is_assumed(new.uid):  # it is on its way to a node: nothing but its end is of interest
            if new.terminating and not old.terminating:
                yield from self._assumed_pod_gone(new)
            return
        self._queue.update(old, new)
        nominated = old.status.nominated_node_name
        if nominated and nominated != new.status.nominated_node_name:
            # Pods of its priority or less counted it as being there.
            yield from self._queue.moving(ASSIGNED_POD_DELETE, old, None, at_most=old.priority)

    def _pod_gone(self, pod: Pod) -> Slices:
        self._engine.nominations.stays(pod.uid)
        if self.requests is not None:
            self.requests.pod_gone(pod)
        if pod.spec.node_name:
            self._note(ASSIGNED_POD_DELETE)
            if self._cache.pod(pod.uid) is not None:
                self._cache.remove_pod(pod)
            yield from self._queue.moving(ASSIGNED_POD_DELETE, pod, None)
        elif self._engine.serves(pod):
            self._note(UNSCHEDULED_POD_DELETE)
            self._engine.pending.pop(pod.uid, None)
            self._queue.delete(pod)
            if self._cache.is_assumed(pod.uid):
                yield from self._assumed_pod_gone(pod)
            elif pod.status.nominated_node_name:
                yield from self._queue.moving(ASSIGNED_POD_DELETE, pod, None, at_most=pod.priority)

    def _placed(self, pod: Pod) -> Slices:
        """A pod is on a node, whoever put it there."""
        self._note(ASSIGNED_POD_ADD)
        uid = pod.metadata.uid
        if self._cache.is_confirmed(uid):
            self._cache.update_pod(pod)
        else:
            self._cache.add_pod(pod)
        if self.requests is not None:
            self.requests.pod_placed(pod)
        yield from self._queue.moving(ASSIGNED_POD_ADD, None, pod)

    def _assumed_pod_gone(self, pod: Pod) -> Slices:
        """A pod went while it was on its way to a node: what it held there is free."""
        assumed = self._cache.pod(pod.uid)
        if assumed is None:
            return
        waiting = self._engine.waiting.get(pod.uid)
        if waiting is not None:
            waiting.reject("", REMOVED)  # whoever waits for the outcome takes the assumption back
        else:
            self._cache.forget(assumed)
        yield from self._queue.moving(ASSIGNED_POD_DELETE, assumed, None)


def _alive(item: KubeObject | None) -> Pod | None:
    """A pod that has ended counts as gone: its room is free."""
    assert item is None or isinstance(item, Pod)
    return None if item is None or item.status.phase in _OVER else item


def _node(item: KubeObject | None) -> Node | None:
    assert item is None or isinstance(item, Node)
    return item


def _both(first: Slices, second: Slices) -> Slices:
    yield from first
    yield from second
