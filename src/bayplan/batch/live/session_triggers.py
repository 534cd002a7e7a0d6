"""Does a change call for a session before the period is over?

Asked once a watch event, after it was followed. Volcano opens its sessions a period apart, whatever happens meanwhile;
here somebody who came, or room for somebody who waits, need not sit the period out. What sessions write themselves
(bindings, conditions, phases) comes back by the watch and calls for nothing: else each session would call the next.
Cost: a few comparisons; the parts of an object that are compared are those that sessions never write.
"""

from __future__ import annotations

from bayplan.batch.live.event_handlers import ENDED_PHASES, BatchEventHandlers
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import PodGroup, Queue


def triggers_session(old: KubeObject | None, new: KubeObject | None, following: BatchEventHandlers) -> bool:
    """Whether a session could now decide something that the last one could not."""
    item = new if new is not None else old
    match item:
        case Pod():
            assert old is None or isinstance(old, Pod)
            assert new is None or isinstance(new, Pod)
            return _pod_became_pending(old, new, following) or (_pod_freed_node(old, new) and bool(following.waiting))
        case PodGroup() | Queue():
            assert old is None or isinstance(old, (PodGroup, Queue))
            return new is not None and (old is None or _spec_changed(old, item) or _queue_state_changed(old, item))
        case Node():
            assert old is None or isinstance(old, Node)
            return new is not None and bool(following.waiting) and (old is None or _node_changed(old, item))
        case _:
            return bool(following.waiting)


def _pod_became_pending(old: Pod | None, new: Pod | None, following: BatchEventHandlers) -> bool:
    """A pod of ours waits that did not, or another one of it does."""
    if new is None or new.spec.node_name or not following.is_responsible_for(new):
        return False
    return old is None or old.spec != new.spec or old.metadata.annotations != new.metadata.annotations


def _pod_freed_node(old: Pod | None, new: Pod | None) -> bool:
    """A pod took room on a node, and does no longer."""
    if old is None or not old.spec.node_name or old.status.phase in ENDED_PHASES:
        return False
    return new is None or new.status.phase in ENDED_PHASES


def _spec_changed(old: PodGroup | Queue, new: PodGroup | Queue) -> bool:
    return old.spec != new.spec or old.metadata.annotations != new.metadata.annotations


def _queue_state_changed(old: PodGroup | Queue, new: PodGroup | Queue) -> bool:
    """A queue was opened, or closed."""
    return isinstance(old, Queue) and isinstance(new, Queue) and old.status.state != new.status.state


def _node_changed(old: Node, new: Node) -> bool:
    return (
        old.spec != new.spec
        or old.labels != new.labels
        or old.metadata.annotations != new.metadata.annotations
        or old.status.allocatable != new.status.allocatable
    )
