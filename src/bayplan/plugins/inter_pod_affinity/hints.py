"""Queueing hints of InterPodAffinity.

The queue calls them once for all unschedulable pods with the same hint input: namespace, labels and terms. Cost: the
terms are matched with the one or two objects of the event.
"""

from __future__ import annotations

from typing import NamedTuple

from bayplan.framework.api.events import QueueingHint, queue_hint_if
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.selectors.pod_affinity import AffinityTerm, PodAffinityTerms, affinity_terms

_NO_TERMS = PodAffinityTerms()
_NO_LABELS: dict[str, str] = {}
_NO_VALUES: frozenset[str] = frozenset()


class AffinityHintInput(NamedTuple):
    """Everything of a pod that the hints read."""

    namespace: str
    labels: frozenset[tuple[str, str]]
    terms: PodAffinityTerms
    key: str = ""
    values: frozenset[str] = _NO_VALUES
    """A label that every pod has which a required term matches, with its possible values. Empty key: unknown."""


def affinity_hint_input(pod: Pod) -> AffinityHintInput:
    terms = affinity_terms(pod) or _NO_TERMS
    labels = frozenset(pod.metadata.labels.items())
    for term in terms.required:
        for requirement in term.selector.requirements:
            if requirement.operator == "In":
                return AffinityHintInput(pod.metadata.namespace, labels, terms, requirement.key, requirement.values)
    return AffinityHintInput(pod.metadata.namespace, labels, terms)


def hint_on_pod_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """A pod was added, removed or relabeled."""
    if isinstance(old, Pod) and isinstance(new, Pod) and new.uid == pod.uid:
        return QueueingHint.QUEUE
    return hint_on_other_pod_change(affinity_hint_input(pod), old, new)


def hint_on_other_pod_change(
    hint_input: AffinityHintInput, old: KubeObject | None, new: KubeObject | None
) -> QueueingHint:
    """A pod other than the rejected one changed. Only pods on a node or with a nomination count."""
    if old is None:
        assert isinstance(new, Pod)
        meta = new.metadata
        if hint_input.key and meta.labels.get(hint_input.key) not in hint_input.values:
            return QueueingHint.SKIP  # checked first: pods are added frequently, and thousands may wait
        return queue_hint_if(_is_on_node(new) and matches_all(hint_input.terms.required, new))
    assert isinstance(old, Pod)
    terms = hint_input.terms
    if not _is_on_node(old) or (isinstance(new, Pod) and not _is_on_node(new)):
        return QueueingHint.SKIP
    if isinstance(new, Pod):
        matches_now = not matches_all(terms.required, old) and matches_all(terms.required, new)
        matches_no_longer = matches_all(terms.required_anti, old) and not matches_all(terms.required_anti, new)
        return queue_hint_if(matches_now or matches_no_longer)
    if matches_all(terms.required_anti, old):
        return QueueingHint.QUEUE
    existing_terms = (affinity_terms(old) or _NO_TERMS).required_anti
    return queue_hint_if(
        bool(existing_terms) and _terms_match(existing_terms, hint_input.namespace, dict(hint_input.labels))
    )


def hint_on_node_change(hint_input: AffinityHintInput, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """A node was added, or moved into or out of a domain of a required term."""
    assert isinstance(new, Node)
    terms = hint_input.terms
    labels = new.metadata.labels
    before = old.metadata.labels if isinstance(old, Node) else None
    for term in terms.required:
        value = labels.get(term.topology_key)
        if value is not None and (before is None or before.get(term.topology_key) != value):
            return QueueingHint.QUEUE
    if before is None:
        return queue_hint_if(bool(terms.required_anti))
    return queue_hint_if(
        any(
            term.topology_key in before and before[term.topology_key] != labels.get(term.topology_key)
            for term in terms.required_anti
        )
    )


def matches_all(terms: tuple[AffinityTerm, ...], pod: Pod) -> bool:
    """Whether every term matches the pod; False without terms."""
    return bool(terms) and _terms_match(terms, pod.metadata.namespace, pod.metadata.labels)


def _terms_match(terms: tuple[AffinityTerm, ...], namespace: str, labels: dict[str, str]) -> bool:
    for term in terms:  # noqa: SIM110  (a generator costs more than the comparison)
        if not term.matches(namespace, labels, _NO_LABELS):
            return False
    return True


def _is_on_node(pod: Pod) -> bool:
    return bool(pod.spec.node_name or pod.status.nominated_node_name)
