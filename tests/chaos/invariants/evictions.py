"""No needless eviction: in pools of uniform pods, a preemptor costs one victim, on the node where it then runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from chaos.invariants.base import Checker, Found, World
from chaos.objects import Tree, is_deleted, key, labels, node_of, priority, uid
from chaos.record import Change

POOL_LABEL = "chaos/pool"
PREEMPTOR_LABEL = "chaos/preemptor"
UNIFORM_LABEL = "chaos/uniform"
"""Value: the scenario. Pods with it have the same size, and only preemptors of the scenario may evict them."""


@dataclass(slots=True)
class Victim:
    uid: str
    key: str
    node: str
    priority: int
    at_s: float


class Evictions(Checker):
    """Pods that are deleted by a process under test, and why."""

    name = "needless-eviction"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.victims: dict[str, Victim] = {}
        self.allowed = 0
        """Victims beyond one per preemptor, after an outage in which the nomination was lost."""
        self._judged: set[str] = set()

    def on_change(self, change: Change) -> Found:
        tree = change.tree
        if change.kind != "Pod" or "kai-resource-reservation/" in key(tree):
            return
        leaves = change.type == "DELETED" or is_deleted(tree)
        if not leaves or uid(tree) in self.world.acts.deleted or uid(tree) in self.victims:
            return
        if change.type == "DELETED" and not node_of(tree):
            text = f"pod {key(tree)} was deleted while it waited, and not by the driver"
            yield self.violation(change.at_s, text, uid(tree))
            return
        self.checks += 1
        victim = Victim(uid(tree), key(tree), node_of(tree), priority(tree), change.at_s)
        self.victims[uid(tree)] = victim
        if not labels(tree).get(UNIFORM_LABEL):
            text = f"pod {victim.key} on {victim.node} was evicted; no pod may preempt it"
            yield self.violation(change.at_s, text, uid(tree))
        elif not self._candidates(tree, change.at_s):
            text = f"pod {victim.key} was evicted, and no pod with a higher priority waited"
            yield self.violation(change.at_s, text, uid(tree))

    def _candidates(self, victim: Tree, at_s: float) -> list[Tree]:
        """Preemptors of the scenario that waited lately."""
        scenario = labels(victim).get(UNIFORM_LABEL)
        found = []
        for history in self.world.record.histories.values():
            if history.kind != "Pod":
                continue
            tree = history.versions[-1].tree()
            waited_until = next((each.at_s for each in history.versions if node_of(each.tree())), history.gone_s)
            recent = waited_until is None or waited_until > at_s - 8.0
            if labels(tree).get(PREEMPTOR_LABEL) == scenario and priority(tree) > priority(victim) and recent:
                found.append(tree)
        return found

    def judge_scenario(self, scenario: str, started_s: float, now_s: float) -> Found:
        """At the end of a scenario: victims per node against preemptors that run there."""
        if scenario in self._judged:
            return
        self._judged.add(scenario)
        record = self.world.record
        victims = [each for each in self.victims.values() if self._scenario_of(each.uid) == scenario]
        preemptors = [each for each in record.all("Pod") if labels(each).get(PREEMPTOR_LABEL) == scenario]
        self.checks += 1
        room = Counter(node_of(each) for each in preemptors if node_of(each))
        needed = Counter(each.node for each in victims)
        surplus = needed - room
        if not surplus:
            return
        if self.world.acts.outage_between(started_s, now_s):
            self.allowed += surplus.total()
            return
        text = (
            f"scenario {scenario}: {len(victims)} pods were evicted for {len(preemptors)} preemptors of the same size; "
            f"victims {dict(needed)}, preemptors {dict(room)}"
        )
        yield self.violation(now_s, text, *(each.uid for each in victims), *(uid(each) for each in preemptors))

    def _scenario_of(self, pod_uid: str) -> str:
        history = self.world.record.history(pod_uid)
        return "" if history is None else labels(history.versions[-1].tree()).get(UNIFORM_LABEL, "")
