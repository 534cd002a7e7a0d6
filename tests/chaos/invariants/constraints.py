"""Hard constraints hold at the moment of binding, against the states that the scheduler could know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from chaos.invariants.base import SKEW_S, Checker, Found
from chaos.objects import (
    Tree,
    is_deleted,
    key,
    labels,
    matches,
    name,
    namespace,
    node_of,
    occupies,
    spec,
    tolerates,
    uid,
)
from chaos.record import Change, History

ZONE = "topology.kubernetes.io/zone"


class NodeConstraints(Checker):
    """Node selector, taints and cordons."""

    name = "node-constraints"

    def on_change(self, change: Change) -> Found:
        if change.is_binding and change.new is not None:
            self.checks += 1
            pod, at_s = change.new, change.at_s
            self.later(at_s + SKEW_S, lambda: self._judge(pod, at_s))
        return
        yield

    def _judge(self, pod: Tree, at_s: float) -> Found:
        since_s, node = self.world.knowledge.since(at_s), node_of(pod)
        states = [each for each in self.world.record.states("Node", node, since_s, at_s + SKEW_S) if each is not None]
        reasons = [refused_by(pod, each) for each in states]
        if reasons and all(reasons):
            text = f"pod {key(pod)} was bound to {node}, which refuses it: {reasons[-1]}"
            yield self.violation(at_s, text, uid(pod), uid(states[-1]))


def refused_by(pod: Tree, node: Tree) -> str:
    """Why the node does not admit the pod, or an empty string."""
    missing = [
        f"{label}={value}"
        for label, value in (spec(pod).get("nodeSelector") or {}).items()
        if labels(node).get(label) != value
    ]
    if missing:
        return f"no label {', '.join(missing)}"
    if spec(node).get("unschedulable"):
        return "it is cordoned"
    for taint in spec(node).get("taints") or ():
        if taint["effect"] in ("NoSchedule", "NoExecute") and not tolerates(pod, taint):
            return f"taint {taint['key']}={taint.get('value', '')}:{taint['effect']}"
    return ""


class AntiAffinity(Checker):
    """Required anti-affinity on one node, of the pod that comes and of those that are there."""

    name = "anti-affinity"

    def on_change(self, change: Change) -> Found:
        if not change.is_binding or change.new is None:
            return
        pod, at_s = change.new, change.at_s
        self.checks += bool(anti_affinity_selectors(pod))
        for each in self.world.record.pods_on(node_of(pod)):
            if uid(each) != uid(pod) and occupies(each) and repels(pod, each):
                self.later(at_s + SKEW_S, partial(self._judge, pod, each, at_s))
        return
        yield

    def _judge(self, pod: Tree, other: Tree, at_s: float) -> Found:
        since_s, record = self.world.knowledge.since(at_s), self.world.record
        mine = _versions(record.history(uid(pod)), since_s, at_s) or [pod]
        theirs = _versions(record.history(uid(other)), since_s, at_s) or [other]
        if all(repels(one, two) for one in mine for two in theirs):
            text = f"pods {key(pod)} and {key(other)} are both on {node_of(pod)} against their anti-affinity"
            yield self.violation(at_s, text, uid(pod), uid(other))


def anti_affinity_selectors(pod: Tree) -> list[Tree]:
    affinity = (spec(pod).get("affinity") or {}).get("podAntiAffinity") or {}
    terms: Iterable[Tree] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    return [each["labelSelector"] for each in terms if each["topologyKey"] == "kubernetes.io/hostname"]


def repels(one: Tree, two: Tree) -> bool:
    """Whether the anti-affinity of either pod forbids the other one."""
    if namespace(one) != namespace(two):
        return False
    return any(matches(each, labels(two)) for each in anti_affinity_selectors(one)) or any(
        matches(each, labels(one)) for each in anti_affinity_selectors(two)
    )


def _versions(history: History | None, since_s: float, until_s: float) -> list[Tree]:
    """States of an object in a window, with the one that it had at the beginning."""
    if history is None:
        return []
    inside = [each for each in history.versions if since_s < each.at_s <= until_s and each.type != "DELETED"]
    before = [each for each in history.versions if each.at_s <= since_s]
    return [each.tree() for each in (*before[-1:], *inside)]


class Spread(Checker):
    """DoNotSchedule constraints over zones. In a window, each zone is counted at its best for the scheduler."""

    name = "topology-spread"

    def on_change(self, change: Change) -> Found:
        if change.is_binding and change.new is not None and spread_constraints(change.new):
            self.checks += 1
            pod, at_s = change.new, change.at_s
            self.later(at_s + SKEW_S, lambda: self._judge(pod, at_s))
        return
        yield

    def _judge(self, pod: Tree, at_s: float) -> Found:
        since_s, record = self.world.knowledge.since(at_s), self.world.record
        zones = self._zones(pod, since_s, at_s)
        if zones is None or node_of(pod) not in zones:
            return  # nodes of the pool changed meanwhile
        for each in spread_constraints(pod):
            lives = [
                (zones[node], start, end)
                for node, start, end, found in self._lives(namespace(pod), uid(pod), at_s)
                if node in zones and matches(each["labelSelector"], labels(found))
            ]
            own = zones[node_of(pod)]
            most = {zone: _extreme(lives, zone, since_s, at_s, max) for zone in set(zones.values())}
            fewest = _extreme(lives, own, since_s, at_s, min)
            if fewest + 1 - min(most.values()) > each["maxSkew"]:
                text = f"pod {key(pod)} in zone {own} breaks its spread: {fewest} before it, other ones {most}"
                yield self.violation(at_s, text, uid(pod), *(uid(each) for each in record.all("Node")))

    def _zones(self, pod: Tree, since_s: float, at_s: float) -> dict[str, str] | None:
        """Zone of each node that the selector of the pod admits; None where that changed in the window."""
        selector, found = spec(pod).get("nodeSelector") or {}, {}
        for node in self.world.record.all("Node"):
            states = self.world.record.states("Node", name(node), since_s, at_s)
            fits = {each is not None and matches({"matchLabels": selector}, labels(each)) for each in states}
            if len(fits) > 1:
                return None
            if fits == {True}:
                found[name(node)] = labels(node).get(ZONE, "")
        return found

    def _lives(self, in_namespace: str, without: str, at_s: float) -> Iterable[tuple[str, float, float, Tree]]:
        """Node, binding time, time of leaving and tree of each pod of the namespace that was bound."""
        for history in list(self.world.record.histories.values()):
            if history.kind != "Pod" or history.uid == without or not history.key.startswith(f"{in_namespace}/"):
                continue
            bound_s, left_s, last = None, float("inf"), None
            for each in history.versions:
                tree = each.tree()
                if bound_s is None and node_of(tree):
                    bound_s, last = each.at_s, tree
                if each.type == "DELETED" or is_deleted(tree) or (node_of(tree) and not occupies(tree)):
                    left_s = min(left_s, each.at_s)
            if bound_s is not None and last is not None and bound_s <= at_s:
                yield node_of(last), bound_s, left_s, last


def spread_constraints(pod: Tree) -> list[Tree]:
    found: Iterable[Tree] = spec(pod).get("topologySpreadConstraints") or ()
    return [each for each in found if each["whenUnsatisfiable"] == "DoNotSchedule" and each["topologyKey"] == ZONE]


def _extreme(lives: list[tuple[str, float, float]], zone: str, since_s: float, at_s: float, pick: object) -> int:
    """The highest or lowest count of a zone within the window."""
    moments = {since_s, at_s, *(t for _, start, end in lives for t in (start, end) if since_s <= t <= at_s)}
    counts = [sum(z == zone and start <= t < end for z, start, end in lives) for t in moments]
    return int(pick(counts))  # type: ignore[operator]


def zone_counts(pods: Iterable[Tree], zones: dict[str, str], selector: Tree) -> Counter[str]:
    """Pods that count for a spread constraint, by zone; zones without any are there with 0."""
    found = Counter(dict.fromkeys(zones.values(), 0))
    for each in pods:
        if occupies(each) and not is_deleted(each) and node_of(each) in zones and matches(selector, labels(each)):
            found[zones[node_of(each)]] += 1
    return found
