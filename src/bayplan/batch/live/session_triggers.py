"""Does a change call for a session before the period is over?

Asked once a watch event, after it was followed. Volcano opens its sessions a period apart, whatever happens meanwhile;
here somebody who came, or room for somebody who waits, need not sit the period out. What sessions write themselves
(bindings, conditions, phases) comes back by the watch and calls for nothing: else each session would call the next.
Cost: a few comparisons; the parts of an object that are compared are those that sessions never write.
"""

from __future__ import annotations

from bayplan.batch.live.event_handlers import OVER, Following
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import PodGroup, Queue


def calls_for_session(old: KubeObject | None, new: KubeObject | None, following: Following) -> bool:
    """Whether a session could now decide something that the last one could not."""
    item = new if new is not None else old
    match item:
        case Pod():
            assert old is None or isinstance(old, Pod)
            assert new is None or isinstance(new, Pod)
            return _came(old, new, following) or (_left(old, new) and bool(following.waiting))
        case PodGroup() | Queue():
            assert old is None or isinstance(old, (PodGroup, Queue))
            return new is not None and (old is None or _is_other(old, item) or _opened(old, item))
        case Node():
            assert old is None or isinstance(old, Node)
            return new is not None and bool(following.waiting) and (old is None or _offers_other(old, item))
        case _:
            return bool(following.waiting)


def _came(old: Pod | None, new: Pod | None, following: Following) -> bool:
    """A pod of ours waits that did not, or another one of it does."""
    if new is None or new.spec.node_name or not following.serves(new):
        return False
    return old is None or old.spec != new.spec or old.metadata.annotations != new.metadata.annotations


def _left(old: Pod | None, new: Pod | None) -> bool:
    """A pod took room on a node, and does no longer."""
    if old is None or not old.spec.node_name or old.status.phase in OVER:
        return False
    return new is None or new.status.phase in OVER


def _is_other(old: PodGroup | Queue, new: PodGroup | Queue) -> bool:
    return old.spec != new.spec or old.metadata.annotations != new.metadata.annotations


def _opened(old: PodGroup | Queue, new: PodGroup | Queue) -> bool:
    """A queue was opened, or closed."""
    return isinstance(old, Queue) and isinstance(new, Queue) and old.status.state != new.status.state


def _offers_other(old: Node, new: Node) -> bool:
    return (
        old.spec != new.spec
        or old.labels != new.labels
        or old.metadata.annotations != new.metadata.annotations
        or old.status.allocatable != new.status.allocatable
    )
