"""Event handlers that update the cache and the batch engine.

Called once per watch event, with the object before and after. If the pod engine uses the same cache, it handles the
kinds that it watches. The remaining kinds, and the assumed pods of this engine, are always handled here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from bayplan.batch.engine import BatchEngine
from bayplan.batch.live.multi_scheduler import MultiScheduler
from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import PodGroup

log = logging.getLogger(__name__)

ENDED_PHASES = ("Succeeded", "Failed")


def manage_every_node(_: Node) -> bool:
    return True


def ignore_freed_pod(_: Pod) -> None:
    """The default of `on_pod_released`: no other component waits for resources."""


@dataclass(slots=True)
class BatchEventHandlers:
    """Updates cache and engine after events of the API server."""

    engine: BatchEngine
    scheduler_names: Collection[str]
    kinds_handled_elsewhere: Collection[type[KubeObject]] = ()
    """Kinds that the pod engine writes into the shared cache."""
    manages: Callable[[Node], bool] = manage_every_node
    multi_scheduler: MultiScheduler | None = None
    """The job division among schedulers of the same name; None if there is only one."""
    on_pod_released: Callable[[Pod], None] = ignore_freed_pod
    """Called with a pod that was assumed on a node and is not bound there."""
    pods: dict[str, Pod] = field(default_factory=dict)
    """By key: every pending pod of this scheduler, and every pod on a node or of a group, in its latest version."""
    waiting: dict[str, Pod] = field(default_factory=dict)
    """By uid: pods of this scheduler without a node."""
    requests: BindRequestTracker | None = None
    """Tracker of bind requests; None if this process binds pods itself."""

    def handle_event(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """Handle one change; None means that the object did not exist before or is deleted."""
        item = new if new is not None else old
        if isinstance(item, Pod):
            assert old is None or isinstance(old, Pod)
            assert new is None or isinstance(new, Pod)
            self._handle_pod(old, new)
        elif isinstance(item, BindRequest):
            self._handle_bind_request(old, new)
        elif item is not None and type(item) not in self.kinds_handled_elsewhere:
            if new is not None and self._uses(new):
                self.engine.cache.upsert(new)
            else:
                self.engine.cache.delete(item)

    @property
    def knows_all_nodes(self) -> bool:
        """Whether a node missing in the cache does not exist. Otherwise it may belong to another scheduler."""
        return Node in self.kinds_handled_elsewhere or self.manages is manage_every_node

    def is_responsible_for(self, pod: Pod) -> bool:
        return pod.scheduler_name in self.scheduler_names and not self._belongs_to_other_scheduler(pod)

    def _belongs_to_other_scheduler(self, item: Pod | PodGroup) -> bool:
        return self.multi_scheduler is not None and not self.multi_scheduler.owns_job(item)

    def latest_pod(self, pod: Pod) -> Pod | None:
        """The latest version of the pod; None if it is deleted."""
        known = self.pods.get(pod.key)
        return known if known is not None and known.uid == pod.uid else None

    # Implementation

    def _handle_bind_request(self, old: KubeObject | None, new: KubeObject | None) -> None:
        assert old is None or isinstance(old, BindRequest)
        assert new is None or isinstance(new, BindRequest)
        if self.requests is not None:
            self.requests.handle_event(old, new)

    def _uses(self, item: KubeObject) -> bool:
        """Whether a node or a pod group is one of this scheduler; true for other kinds."""
        if isinstance(item, Node):
            return self.manages(item)
        return not (isinstance(item, PodGroup) and self._belongs_to_other_scheduler(item))

    def _handle_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or old.uid != new.uid):
            self._handle_pod_deleted(old)
        if new is None:
            return
        if not new.spec.node_name and not self.is_responsible_for(new):
            if self.requests is not None and new.status.phase not in ENDED_PHASES:
                self.requests.handle_foreign_pod(new)
            return  # pending pod of another scheduler
        self.pods[new.key] = new
        if new.spec.node_name:
            self.waiting.pop(new.uid, None)
        else:
            self.waiting[new.uid] = new
        if self.requests is not None and new.spec.node_name:
            self.requests.handle_pod_assigned(new)
        elif self.requests is not None and not new.terminating and new.status.phase not in ENDED_PHASES:
            self.requests.handle_pod_add(new)
        if Pod not in self.kinds_handled_elsewhere:
            self._update_cache(new)
        if new.status.phase in ENDED_PHASES:
            self.engine.handle.nominator.remove_victim(new.uid)
            self._forget_assumed(new)
        if not self._belongs_to_other_scheduler(new):
            self.engine.handle_update(new)

    def _handle_pod_deleted(self, pod: Pod) -> None:
        known = self.pods.get(pod.key)
        if known is not None and known.uid == pod.uid:
            del self.pods[pod.key]
        self.waiting.pop(pod.uid, None)
        if self.requests is not None:
            self.requests.handle_pod_delete(pod)
        cache = self.engine.cache
        self._forget_assumed(pod)
        if Pod not in self.kinds_handled_elsewhere:
            cache.delete(pod)
        self.engine.handle.nominator.remove_victim(pod.uid)
        self.engine.handle_delete(pod)

    def _forget_assumed(self, pod: Pod) -> None:
        """Release the resources of a pod that was assumed on a node."""
        cache = self.engine.cache
        assumed = cache.pod(pod.uid) if cache.is_assumed(pod.uid) and self.is_responsible_for(pod) else None
        if assumed is not None:
            cache.forget(assumed)
            self.on_pod_released(assumed)

    def _update_cache(self, pod: Pod) -> None:
        """Count a pod on its node until it ends, whichever scheduler placed it."""
        cache = self.engine.cache
        if pod.status.phase not in ENDED_PHASES:
            cache.upsert(pod)
        elif cache.is_confirmed(pod.uid):
            cache.delete(pod)
