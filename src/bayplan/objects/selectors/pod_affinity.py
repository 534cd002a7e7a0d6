"""Pod affinity and anti-affinity terms, compiled once.

A term decides whether it selects a pod. Terms are values: equal terms of different pods are equal, so that columns can
count them under one number. `matchLabelKeys` are ignored: the API server has merged them into the selector before a
scheduler sees the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bayplan.objects.core import Pod, PodAffinity, PodAffinityTerm
from bayplan.objects.meta import LabelSelector
from bayplan.objects.selectors.label_selectors import NOTHING, LabelMatcher, SelectorError, compile_label_selector

NamespaceLabels = Callable[[str], Mapping[str, str]]
"""The labels of a namespace by its name; empty for an unknown one."""


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """Pods in certain namespaces with certain labels, and a topology key."""

    topology_key: str
    selector: LabelMatcher
    namespaces: frozenset[str]
    namespace_selector: LabelMatcher

    def matches(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> bool:
        if namespace not in self.namespaces and not self.namespace_selector.matches(namespace_labels):
            return False
        return self.selector.matches(labels)

    def matches_pod(self, pod: Pod, namespace_labels: NamespaceLabels) -> bool:
        meta = pod.metadata
        return self.matches(meta.namespace, meta.labels, namespace_labels(meta.namespace))


@dataclass(frozen=True, slots=True)
class WeightedTerm:
    weight: int
    term: AffinityTerm


@dataclass(frozen=True, slots=True)
class PodAffinityTerms:
    required: tuple[AffinityTerm, ...] = ()
    preferred: tuple[WeightedTerm, ...] = ()
    required_anti: tuple[AffinityTerm, ...] = ()
    preferred_anti: tuple[WeightedTerm, ...] = ()


def affinity_terms(pod: Pod) -> PodAffinityTerms | None:
    """The pod's terms; None if `affinity` has none."""
    affinity = pod.spec.affinity
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return None
    near, far = affinity.pod_affinity or PodAffinity(), affinity.pod_anti_affinity or PodAffinity()
    namespace = pod.metadata.namespace
    return PodAffinityTerms(
        required=_required_terms(near, namespace),
        preferred=_preferred_terms(near, namespace),
        required_anti=_required_terms(far, namespace),
        preferred_anti=_preferred_terms(far, namespace),
    )


def _required_terms(affinity: PodAffinity, namespace: str) -> tuple[AffinityTerm, ...]:
    return tuple(_term(term, namespace) for term in affinity.required)


def _preferred_terms(affinity: PodAffinity, namespace: str) -> tuple[WeightedTerm, ...]:
    return tuple(
        WeightedTerm(weighted.weight, _term(weighted.pod_affinity_term, namespace)) for weighted in affinity.preferred
    )


def _term(term: PodAffinityTerm, own_namespace: str) -> AffinityTerm:
    namespaces = frozenset(term.namespaces)
    if not namespaces and term.namespace_selector is None:
        namespaces = frozenset({own_namespace})
    return AffinityTerm(
        topology_key=term.topology_key,
        selector=_compile_selector(term.label_selector),
        namespaces=namespaces,
        namespace_selector=_compile_selector(term.namespace_selector),
    )


def _compile_selector(selector: LabelSelector | None) -> LabelMatcher:
    """A malformed selector, which no API server accepts, selects no pod."""
    try:
        return compile_label_selector(selector)
    except SelectorError:
        return NOTHING
