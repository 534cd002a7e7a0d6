"""Triggers of early sessions: whether an event calls for a session before the period is over.

Called once per watch event, after it was handled. Volcano opens sessions at a fixed period. Here new pods, and freed
resources for pending pods, need not wait for it. The session's own writes (bindings, conditions, phases) return by the
watch and trigger nothing; otherwise each session would trigger the next. Cost: a few comparisons of object parts that
sessions never write.
"""

from __future__ import annotations

from bayplan.batch.live.event_handlers import ENDED_PHASES, BatchEventHandlers
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import PodGroup, Queue


def triggers_session(old: KubeObject | None, new: KubeObject | None, event_handlers: BatchEventHandlers) -> bool:
    """Whether a session could now make a decision that the last one could not."""
    item = new if new is not None else old
    match item:
        case Pod():
            assert old is None or isinstance(old, Pod)
            assert new is None or isinstance(new, Pod)
            return _pod_became_pending(old, new, event_handlers) or (
                _pod_freed_node(old, new) and bool(event_handlers.waiting)
            )
        case PodGroup() | Queue():
            assert old is None or isinstance(old, (PodGroup, Queue))
            return new is not None and (old is None or _spec_changed(old, item) or _queue_state_changed(old, item))
        case Node():
            assert old is None or isinstance(old, Node)
            return new is not None and bool(event_handlers.waiting) and (old is None or _node_changed(old, item))
        case _:
            return bool(event_handlers.waiting)


def _pod_became_pending(old: Pod | None, new: Pod | None, event_handlers: BatchEventHandlers) -> bool:
    """A pod of this scheduler became pending, or a pending one changed."""
    if new is None or new.spec.node_name or not event_handlers.is_responsible_for(new):
        return False
    return old is None or old.spec != new.spec or old.metadata.annotations != new.metadata.annotations


def _pod_freed_node(old: Pod | None, new: Pod | None) -> bool:
    """A pod on a node ended or was deleted."""
    if old is None or not old.spec.node_name or old.status.phase in ENDED_PHASES:
        return False
    return new is None or new.status.phase in ENDED_PHASES


def _spec_changed(old: PodGroup | Queue, new: PodGroup | Queue) -> bool:
    return old.spec != new.spec or old.metadata.annotations != new.metadata.annotations


def _queue_state_changed(old: PodGroup | Queue, new: PodGroup | Queue) -> bool:
    return isinstance(old, Queue) and isinstance(new, Queue) and old.status.state != new.status.state


def _node_changed(old: Node, new: Node) -> bool:
    return (
        old.spec != new.spec
        or old.labels != new.labels
        or old.metadata.annotations != new.metadata.annotations
        or old.status.allocatable != new.status.allocatable
    )
