"""No node is over-committed: resources, pods, host ports. No binding ever changes."""

from __future__ import annotations

from collections import Counter

from chaos.invariants.base import SKEW_S, Checker, Found
from chaos.objects import Tree, host_ports, key, node_of, occupies, uid
from chaos.quantities import allocatable, pod_requests
from chaos.record import Change


class BoundOnce(Checker):
    """The node of a pod never changes once it is set."""

    name = "bound-once"

    def on_change(self, change: Change) -> Found:
        if change.kind != "Pod" or change.old is None or change.new is None or not node_of(change.old):
            return
        self.checks += 1
        if node_of(change.old) != node_of(change.new):
            text = f"pod {key(change.new)} was bound to {node_of(change.old)} and then to {node_of(change.new) or '-'}"
            yield self.violation(change.at_s, text, uid(change.new))


class Capacity(Checker):
    """The requests of the pods on a node never exceed what it can have been known to have."""

    name = "over-commitment"

    def on_change(self, change: Change) -> Found:
        if not change.is_binding or change.new is None or not occupies(change.new):
            return
        self.checks += 1
        node = node_of(change.new)
        pods = [each for each in self.world.record.pods_on(node) if occupies(each)]
        used = sum_requests(pods)
        known = self.world.record.named("Node", node)
        if known is None or exceeded(used, allocatable(known)):
            pod, at_s = change.new, change.at_s
            self.later(at_s + SKEW_S, lambda: self._judge(pod, node, used, pods, at_s))
        return
        yield

    def _judge(self, pod: Tree, node: str, used: Counter[str], pods: list[Tree], at_s: float) -> Found:
        since_s = self.world.knowledge.since(at_s)
        states = [each for each in self.world.record.states("Node", node, since_s, at_s + SKEW_S) if each is not None]
        if not states:
            yield self.violation(at_s, f"pod {key(pod)} was bound to {node}, which did not exist", uid(pod))
            return
        over = [exceeded(used, allocatable(each)) for each in states]
        if all(over):
            wanted = ", ".join(f"{used[each]} of {allocatable(states[-1])[each]} {each}" for each in over[-1])
            names = ", ".join(sorted(key(each) for each in pods))
            text = f"node {node} is over-committed by pod {key(pod)}: {wanted} (thousandths); on it: {names}"
            yield self.violation(at_s, text, *(uid(each) for each in pods), uid(states[-1]))


class HostPorts(Checker):
    """Two pods of a node never have the same host port."""

    name = "host-ports"

    def on_change(self, change: Change) -> Found:
        if not change.is_binding or change.new is None or not host_ports(change.new):
            return
        self.checks += 1
        node = node_of(change.new)
        for each in self.world.record.pods_on(node):
            shared = host_ports(each) & host_ports(change.new)
            if shared and occupies(each) and uid(each) != uid(change.new):
                text = f"pods {key(change.new)} and {key(each)} have host ports {sorted(shared)} on {node}"
                yield self.violation(change.at_s, text, uid(change.new), uid(each))


def sum_requests(pods: list[Tree]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in pods:
        total.update(pod_requests(each))
    return total


def exceeded(used: Counter[str], room: Counter[str]) -> list[str]:
    """Resources of which more is used than there is."""
    return sorted(resource for resource, amount in used.items() if amount > room[resource])
