"""Event handlers: apply watch events to the cache and the queue.

Called once for each watch event, with the old and the new object. The order of steps is kube-scheduler's: the cache is
updated before pods are moved, except when a node is deleted. Moving many pods takes time, so a handler yields the moves
and goes on when its caller has finished them; `handle` does this at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.framework.api.events import ActionType, ClusterEvent
from bayplan.framework.runtime.object_changes import (
    ASSIGNED_POD_ADD,
    ASSIGNED_POD_DELETE,
    ASSIGNED_POD_UPDATE,
    EVENT_RESOURCES,
    NODE_ADD,
    NODE_DELETE,
    UNSCHEDULED_POD_ADD,
    UNSCHEDULED_POD_DELETE,
    UNSCHEDULED_POD_UPDATE,
    node_update_events,
    pod_update_events,
)
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import ResourceClaim
from bayplan.queue import SchedulingQueue
from bayplan.scheduler.engine import PodEngine

log = logging.getLogger(__name__)

_TERMINAL_PHASES = ("Succeeded", "Failed")
POD_REMOVED = "removed"
"""Message for a pod at Permit that was deleted."""


class PodMove(NamedTuple):
    """A cluster event for which the queue moves the pods that it may help."""

    event: ClusterEvent
    old: KubeObject | None
    new: KubeObject | None
    at_most: int | None = None
    """Only pods of this priority or less move."""

    def start(self, queue: SchedulingQueue) -> Iterator[int]:
        """Move the pods in slices, which yield the number of moved pods. The event counts from this call on."""
        return queue.move_in_slices(self.event, self.old, self.new, at_most=self.at_most)


class EventHandlers:
    """Keeps cache and queue in step with the API server.

    `gangs`: the feature gate GangScheduling, with which a new pod may complete a gang that waits.
    """

    def __init__(self, engine: PodEngine, queue: SchedulingQueue, *, gangs: bool = False) -> None:
        self._engine = engine
        self._cache = engine.cache
        self._queue = queue
        self._gangs = gangs
        self.bind_requests: BindRequestTracker | None = None
        """Tracker of bind requests; None if the scheduler binds pods itself."""
        self.last_events: list[str] = []
        """Names of the cluster events of the last change, whether or not a plugin registered for them."""

    def handle(self, old: KubeObject | None, new: KubeObject | None) -> int:
        """Handle one change; None means that the object does not exist. Returns how many pods moved."""
        return sum(sum(move.start(self._queue)) for move in self.moves(old, new))

    def moves(self, old: KubeObject | None, new: KubeObject | None) -> Iterator[PodMove]:
        """Handle one change. The caller has to finish each move before it takes the next."""
        self.last_events = []
        item = new if new is not None else old
        if isinstance(item, Pod):
            return self._handle_pod(_unless_terminated(old), _unless_terminated(new))
        if isinstance(item, Node):
            return self._handle_node(_as_node(old), _as_node(new))
        if isinstance(item, BindRequest):
            return self._handle_bind_request(old, new)
        return self._handle_object(old, new)

    def own_write_moves(self, old: KubeObject | None, new: KubeObject | None) -> Iterator[PodMove]:
        """Handle a change that this process wrote, before the watch delivers it."""
        self.last_events = []
        return self._handle_change(old, new)

    # nodes and other objects

    def _handle_node(self, old: Node | None, new: Node | None) -> Iterator[PodMove]:
        if new is None:
            assert old is not None
            self._note_event(NODE_DELETE)
            yield PodMove(NODE_DELETE, old, None)
            self._cache.delete(old)
        elif old is None:
            self._note_event(NODE_ADD)
            self._cache.upsert(new)
            yield PodMove(NODE_ADD, None, new)
        else:
            self._cache.upsert(new)
            for event in node_update_events(old, new):
                self._note_event(event)
                yield PodMove(event, old, new)

    def _handle_object(self, old: KubeObject | None, new: KubeObject | None) -> Iterator[PodMove]:
        """Handle any other object. It makes a cluster event only if a plugin registered for the action."""
        item = new if new is not None else old
        assert item is not None
        known = self._cache.devices.claims.get(item.key) if isinstance(item, ResourceClaim) else None
        if new is not None:
            self._cache.upsert(new)
        else:
            self._cache.delete(item)
        if isinstance(item, ResourceClaim):
            old, new = known, self._cache.devices.claims.get(item.key)
            if new is old:
                return  # the cache has this version or a newer one: its event was handled with our own write
        yield from self._handle_change(old, new)

    def _handle_bind_request(self, old: KubeObject | None, new: KubeObject | None) -> Iterator[PodMove]:
        assert old is None or isinstance(old, BindRequest)
        assert new is None or isinstance(new, BindRequest)
        if self.bind_requests is not None:
            self.bind_requests.handle_event(old, new)
        return iter(())

    def _handle_change(self, old: KubeObject | None, new: KubeObject | None) -> Iterator[PodMove]:
        item = new if new is not None else old
        assert item is not None
        action = ActionType.ADD if old is None else ActionType.DELETE if new is None else ActionType.UPDATE
        resource = EVENT_RESOURCES.get(type(item))
        if resource is not None and self._queue.hints.registered_actions(resource) & action:
            event = ClusterEvent(resource, action)
            self._note_event(event)
            yield PodMove(event, old, new)

    def _note_event(self, event: ClusterEvent) -> None:
        if event.name not in self.last_events:
            self.last_events.append(event.name)

    # pods

    def _handle_pod(self, old: Pod | None, new: Pod | None) -> Iterator[PodMove]:
        if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
            yield from self._handle_pod_delete(old)
            old = None  # a new pod was created between two lists
        if new is not None:
            yield from self._handle_pod_add(new) if old is None else self._handle_pod_update(old, new)

    def _handle_pod_add(self, pod: Pod) -> Iterator[PodMove]:
        if pod.spec.node_name:
            yield from self._handle_pod_assigned(pod)
        elif self._engine.serves(pod):
            self._note_event(UNSCHEDULED_POD_ADD)
            self._engine.pending[pod.uid] = pod
            if self.bind_requests is None or not self.bind_requests.handle_pod_add(pod):
                self._queue.add(pod)
            if self._gangs:
                yield PodMove(UNSCHEDULED_POD_ADD, None, pod)
        elif self.bind_requests is not None:
            self.bind_requests.handle_foreign_pod(pod)

    def _handle_pod_update(self, old: Pod, new: Pod) -> Iterator[PodMove]:
        if old.spec.node_name:
            self._note_event(ASSIGNED_POD_UPDATE)
            uid = new.metadata.uid
            is_known = False
            if self._cache.is_confirmed(uid):
                is_known = self._cache.update_pod(new) is old
            else:
                log.warning("pod %s on node %s changed and was not in the cache", new.key, new.spec.node_name)
                self._cache.add_pod(new)
            for event in pod_update_events(old, new, same_amounts=is_known):
                self._note_event(event)
                yield PodMove(event, old, new)
        elif new.spec.node_name:
            yield from self._handle_pod_assigned(new)
            if self._engine.serves(old):
                self._note_event(UNSCHEDULED_POD_DELETE)
                self._engine.pending.pop(old.uid, None)
                self._queue.delete(old)
        elif self._engine.serves(old):
            yield from self._handle_pending_pod_update(old, new)
        elif self.bind_requests is not None:
            self.bind_requests.handle_foreign_pod(new)

    def _handle_pending_pod_update(self, old: Pod, new: Pod) -> Iterator[PodMove]:
        if old.metadata.resource_version == new.metadata.resource_version:
            return
        self._note_event(UNSCHEDULED_POD_UPDATE)
        self._engine.pending[new.uid] = new
        if self._cache.is_assumed(new.uid):  # in its binding cycle: only its deletion matters
            if new.terminating and not old.terminating:
                yield from self._handle_assumed_pod_delete(new)
            return
        self._queue.update(old, new)
        nominated = old.status.nominated_node_name
        if nominated and nominated != new.status.nominated_node_name:
            # Pods of its priority or lower counted it on that node.
            yield PodMove(ASSIGNED_POD_DELETE, old, None, at_most=old.priority)

    def _handle_pod_delete(self, pod: Pod) -> Iterator[PodMove]:
        self._engine.nominator.remove_victim(pod.uid)
        if self.bind_requests is not None:
            self.bind_requests.handle_pod_delete(pod)
        if pod.spec.node_name:
            self._note_event(ASSIGNED_POD_DELETE)
            self._cache.delete(pod)
            yield PodMove(ASSIGNED_POD_DELETE, pod, None)
        elif self._engine.serves(pod):
            self._note_event(UNSCHEDULED_POD_DELETE)
            self._engine.pending.pop(pod.uid, None)
            self._queue.delete(pod)
            if self._cache.is_assumed(pod.uid):
                yield from self._handle_assumed_pod_delete(pod)
            elif pod.status.nominated_node_name:
                yield PodMove(ASSIGNED_POD_DELETE, pod, None, at_most=pod.priority)

    def _handle_pod_assigned(self, pod: Pod) -> Iterator[PodMove]:
        """A pod is on a node, bound by any client."""
        self._note_event(ASSIGNED_POD_ADD)
        self._cache.upsert(pod)
        if self.bind_requests is not None:
            self.bind_requests.handle_pod_assigned(pod)
        yield PodMove(ASSIGNED_POD_ADD, None, pod)

    def _handle_assumed_pod_delete(self, pod: Pod) -> Iterator[PodMove]:
        """A pod was deleted while it was assumed: its resources on the node are free."""
        assumed = self._cache.pod(pod.uid)
        if assumed is None:
            return
        waiting = self._engine.waiting_pods.get(pod.uid)
        if waiting is not None:
            waiting.reject("", POD_REMOVED)  # its binding cycle forgets the assumption
        else:
            self._cache.forget(assumed)
        yield PodMove(ASSIGNED_POD_DELETE, assumed, None)


def _unless_terminated(item: KubeObject | None) -> Pod | None:
    """A pod that has ended counts as deleted: its resources are free."""
    assert item is None or isinstance(item, Pod)
    return None if item is None or item.status.phase in _TERMINAL_PHASES else item


def _as_node(item: KubeObject | None) -> Node | None:
    assert item is None or isinstance(item, Node)
    return item
