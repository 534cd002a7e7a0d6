"""May an event cure a pod that InterPodAffinity rejected?

Asked by the queue, once for all parked pods of one stance: namespace, labels and terms are all that counts. Cost: the
terms held against the one or two objects of the event.
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
    """What a pod says of other pods, and what others can say of it."""

    namespace: str
    labels: frozenset[tuple[str, str]]
    terms: PodAffinityTerms
    key: str = ""
    values: frozenset[str] = _NO_VALUES
    """A label that every pod has which this one must be near, and what it may say; no key: nothing is known."""


def affinity_hint_input(pod: Pod) -> AffinityHintInput:
    terms = affinity_terms(pod) or _NO_TERMS
    labels = frozenset(pod.metadata.labels.items())
    for term in terms.required:
        for wanted in term.selector.requirements:
            if wanted.operator == "In":
                return AffinityHintInput(pod.metadata.namespace, labels, terms, wanted.key, wanted.values)
    return AffinityHintInput(pod.metadata.namespace, labels, terms)


def hint_on_pod_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """A pod came, went or got other labels."""
    if isinstance(old, Pod) and isinstance(new, Pod) and new.uid == pod.uid:
        return QueueingHint.QUEUE
    return hint_on_other_pod_change(affinity_hint_input(pod), old, new)


def hint_on_other_pod_change(stance: AffinityHintInput, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """The same for a pod that is not the one that changed. Only pods that take room somewhere count."""
    if old is None:
        assert isinstance(new, Pod)
        meta = new.metadata
        if stance.key and meta.labels.get(stance.key) not in stance.values:
            return QueueingHint.SKIP  # looked up first: pods come all the time, and thousands may wait for one
        return queue_hint_if(_is_on_node(new) and matches_all(stance.terms.required, new))
    assert isinstance(old, Pod)
    terms = stance.terms
    if not _is_on_node(old) or (isinstance(new, Pod) and not _is_on_node(new)):
        return QueueingHint.SKIP
    if isinstance(new, Pod):
        came = not matches_all(terms.required, old) and matches_all(terms.required, new)
        left = matches_all(terms.required_anti, old) and not matches_all(terms.required_anti, new)
        return queue_hint_if(came or left)
    if matches_all(terms.required_anti, old):
        return QueueingHint.QUEUE
    theirs = (affinity_terms(old) or _NO_TERMS).required_anti
    return queue_hint_if(bool(theirs) and _terms_match(theirs, stance.namespace, dict(stance.labels)))


def hint_on_node_change(stance: AffinityHintInput, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """A node came, or moved into or out of a domain that a required term speaks of."""
    assert isinstance(new, Node)
    terms = stance.terms
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
    """Whether the pod is meant by every term; no terms mean nobody."""
    return bool(terms) and _terms_match(terms, pod.metadata.namespace, pod.metadata.labels)


def _terms_match(terms: tuple[AffinityTerm, ...], namespace: str, labels: dict[str, str]) -> bool:
    for term in terms:  # noqa: SIM110  (a generator costs more than the comparison)
        if not term.matches(namespace, labels, _NO_LABELS):
            return False
    return True


def _is_on_node(pod: Pod) -> bool:
    return bool(pod.spec.node_name or pod.status.nominated_node_name)
