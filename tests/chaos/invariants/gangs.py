"""Gangs are whole or not at all, and queues stay within their capability."""

from __future__ import annotations

from collections import Counter

from chaos.invariants.base import SKEW_S, Checker, Found
from chaos.objects import Tree, group_of, is_deleted, is_terminal, key, name, node_of, occupies, spec, uid
from chaos.quantities import amounts, pod_requests
from chaos.record import Change

GRACE_S = 240.0
"""For so long a gang may be partly bound under constant faults; writes whose outcome is unknown hold room for 60 s."""


class WholeGangs(Checker):
    """Of a gang, `minMember` pods are bound, or none."""

    name = "partial-gang"

    def __init__(self, world: object) -> None:
        super().__init__(world)  # type: ignore[arg-type]
        self._partial: dict[str, float] = {}

    def on_change(self, change: Change) -> Found:
        if change.kind not in ("Pod", "PodGroup"):
            return
        group_key = group_of(change.tree) if change.kind == "Pod" else key(change.tree)
        if not group_key:
            return
        group = self.world.record.named("PodGroup", group_key)
        if group is not None and self.is_partial(group):
            self._partial.setdefault(group_key, change.at_s)
        else:
            self._partial.pop(group_key, None)
        return
        yield

    def is_partial(self, group: Tree) -> bool:
        """Whether some members are bound but fewer than the minimum, and the driver deleted none."""
        members = [each for each in self.world.record.all("Pod") if group_of(each) == key(group)]
        self.checks += 1
        started = sum(bool(node_of(each)) and not is_deleted(each) for each in members)
        touched = is_deleted(group) or any(is_deleted(each) or is_terminal(each) for each in members)
        return not touched and 0 < started < spec(group)["minMember"] <= len(members)

    def on_tick(self, now_s: float) -> Found:
        for group, since_s in list(self._partial.items()):
            if now_s - since_s > GRACE_S:
                yield from self._partial_for(group, since_s, now_s)

    def on_calm(self, now_s: float) -> Found:
        for group, since_s in list(self._partial.items()):
            yield from self._partial_for(group, since_s, now_s)

    def _partial_for(self, group: str, since_s: float, now_s: float) -> Found:
        found = self.world.record.named("PodGroup", group)
        if found is None or not self.is_partial(found):
            self._partial.pop(group, None)
            return
        members = [each for each in self.world.record.all("Pod") if group_of(each) == group]
        text = f"gang {group} of {spec(found)['minMember']} has been partly bound since {since_s:.1f} s"
        yield self.violation(now_s, text, uid(found), *(uid(each) for each in members))


class QueueCapability(Checker):
    """The pods of a queue request no more than the queue's `capability`."""

    name = "queue-capability"

    def on_change(self, change: Change) -> Found:
        if not change.is_binding or change.new is None or not group_of(change.new):
            return
        queue = self._queue_of(change.new)
        if queue is None or not spec(queue).get("capability"):
            return
        self.checks += 1
        used: Counter[str] = Counter()
        for each in self.world.record.all("Pod"):  # as in Volcano, a pod that is leaving no longer counts for its queue
            if occupies(each) and not is_deleted(each) and self._queue_of(each) is queue:
                used.update(pod_requests(each))
        pod, at_s = change.new, change.at_s
        if self._over(used, queue):
            self.later(at_s + SKEW_S, lambda: self._judge(pod, name(queue), used, at_s))
        return
        yield

    def _queue_of(self, pod: Tree) -> Tree | None:
        group = self.world.record.named("PodGroup", group_of(pod)) if group_of(pod) else None
        return None if group is None else self.world.record.named("Queue", spec(group).get("queue", "default"))

    def _over(self, used: Counter[str], queue: Tree) -> list[str]:
        limits = amounts(spec(queue).get("capability"))
        return [f"{used[each]} of {limit} {each}" for each, limit in limits.items() if used[each] > limit]

    def _judge(self, pod: Tree, queue: str, used: Counter[str], at_s: float) -> Found:
        since_s = self.world.knowledge.since(at_s)
        states = [each for each in self.world.record.states("Queue", queue, since_s, at_s + SKEW_S) if each is not None]
        over = [self._over(used, each) for each in states]
        if over and all(over):
            text = f"queue {queue} exceeds its capability with pod {key(pod)}: {', '.join(over[-1])} (thousandths)"
            yield self.violation(at_s, text, uid(pod), uid(states[-1]))
