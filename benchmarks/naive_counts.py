"""Naive twins that compute cluster-wide counts once a pod instead of once a node.

The naive twins of the tests evaluate each node from the whole cluster. With five thousand nodes that is quadratic,
which no realistic implementation would be. These three count first and then evaluate one node after the other, with the
twins' own functions for the meaning of a term; all other twins read one node only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bayplan.objects.core import Container, Node, PodAffinityTerm, TopologySpreadConstraint
from bayplan.objects.selectors.label_selectors import LabelMatcher
from naive import image_locality
from naive import inter_pod_affinity as affinity
from naive import pod_topology_spread as spreading
from naive.twin import Case, fits_unless
from support.builders.framework import FilterResult, rejected, unresolvable

_UNBOUNDED = 2**31 - 1


class CountedSpread:
    """Hard spread constraints: pods by domain, counted once."""

    def __init__(self, case: Case) -> None:
        self._case = case
        hard = spreading.constraints(case, "DoNotSchedule")
        keys = [constraint.topology_key for constraint, _ in hard]
        keyed = [node for node in case.cluster.nodes if all(key in node.metadata.labels for key in keys)]
        self._hard = [
            (constraint, selector, self._counts(constraint, selector, keyed)) for constraint, selector in hard
        ]

    @property
    def is_idle(self) -> bool:
        return not self._hard

    def _counts(
        self, constraint: TopologySpreadConstraint, selector: LabelMatcher, keyed: Sequence[Node]
    ) -> Counter[str]:
        counts: Counter[str] = Counter()
        for node in keyed:
            if spreading.included(constraint, self._case.pod, node):
                value = node.metadata.labels[constraint.topology_key]
                counts[value] += spreading.pods_meant(self._case, selector, node)
        return counts

    def judge(self, node: Node) -> FilterResult:
        for constraint, selector, counts in self._hard:
            value = node.metadata.labels.get(constraint.topology_key)
            if value is None:
                return unresolvable("node(s) didn't match pod topology spread constraints (missing required label)")
            domains = 1 if constraint.min_domains is None else constraint.min_domains
            fewest = 0 if len(counts) < domains else min(counts.values(), default=_UNBOUNDED)
            mine = counts.get(value, 0) + int(selector.matches(self._case.pod.labels))
            if mine - fewest > constraint.max_skew:
                return rejected("node(s) didn't match pod topology spread constraints")
        return fits_unless()


class CountedAffinity:
    """Required (anti-)affinity: the domains with matching pods, computed once."""

    def __init__(self, case: Case) -> None:
        self._case = case
        me = case.pod
        self._wanted, avoided = affinity.near(me).required, affinity.far(me).required
        self._liked: set[tuple[str, str]] = set()
        self._avoided: set[tuple[str, str]] = set()
        self._unwelcome: set[tuple[str, str]] = set()
        for pod, where in affinity.placed(case):
            if self._wanted and all(affinity.means(case, term, me, pod, incoming=True) for term in self._wanted):
                self._liked.update(_domains(self._wanted, where))
            meant = [term for term in avoided if affinity.means(case, term, me, pod, incoming=True)]
            self._avoided.update(_domains(meant, where))
            against = [
                term for term in affinity.far(pod).required if affinity.means(case, term, pod, me, incoming=False)
            ]
            self._unwelcome.update(_domains(against, where))
        self._first = not self._liked and all(
            affinity.means(case, term, me, me, incoming=True) for term in self._wanted
        )

    @property
    def is_idle(self) -> bool:
        return not self._wanted and not self._avoided and not self._unwelcome

    def judge(self, node: Node) -> FilterResult:
        here = set(node.metadata.labels.items())
        keyed = all(term.topology_key in node.metadata.labels for term in self._wanted)
        satisfied = keyed and all(
            (term.topology_key, node.metadata.labels[term.topology_key]) in self._liked for term in self._wanted
        )
        lonely = bool(self._wanted) and not (keyed and (satisfied or self._first))
        return fits_unless(
            (lonely, unresolvable("node(s) didn't match pod affinity rules")),
            (bool(here & self._avoided), rejected("node(s) didn't match pod anti-affinity rules")),
            (bool(here & self._unwelcome), rejected("node(s) didn't satisfy existing pods anti-affinity rules")),
        )


def _domains(terms: Sequence[PodAffinityTerm], where: Node) -> set[tuple[str, str]]:
    keys = [term.topology_key for term in terms]
    return {(key, where.metadata.labels[key]) for key in keys if key in where.metadata.labels}


def image_scores(case: Case, feasible: Sequence[Node]) -> dict[str, int]:
    """Scores of ImageLocality: on how many nodes each image is, counted once."""
    sizes: dict[str, int] = {}
    holders: Counter[str] = Counter()
    wanted = {image_locality.tagged(each.image) for each in _containers(case)}
    for node in case.cluster.nodes:
        for name, size in image_locality.sizes(node).items():
            if name in wanted:
                sizes.setdefault(name, size)
                holders[name] += 1
    count = len(case.cluster.nodes)
    shares = {name: int(sizes[name] * (holders[name] / count)) for name in sizes}
    return {node.name: _image_score(case, shares, node) for node in feasible}


def _image_score(case: Case, shares: dict[str, int], node: Node) -> int:
    there = image_locality.sizes(node)
    names = [image_locality.tagged(each.image) for each in _containers(case)]
    total = sum(shares[name] for name in names if name in there)
    low, high = 23 * image_locality.MIB, 1000 * image_locality.MIB * len(names)
    return 0 if total < low else 100 * (min(total, high) - low) // (high - low)


def _containers(case: Case) -> Sequence[Container]:
    return (*case.pod.spec.init_containers, *case.pod.spec.containers)
