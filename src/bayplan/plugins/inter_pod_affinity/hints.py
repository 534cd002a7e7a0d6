"""May an event cure a pod that InterPodAffinity rejected?

Asked by the queue, once for all parked pods of one stance: namespace, labels and terms are all that counts. Cost: the
terms held against the one or two objects of the event.
"""

from __future__ import annotations

from typing import NamedTuple

from bayplan.framework.api.events import Hint, queue_if
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.selectors.pod_affinity import AffinityTerm, PodAffinityTerms, affinity_terms

_NO_TERMS = PodAffinityTerms()
_NO_LABELS: dict[str, str] = {}
_NO_VALUES: frozenset[str] = frozenset()


class Stance(NamedTuple):
    """What a pod says of other pods, and what others can say of it."""

    namespace: str
    labels: frozenset[tuple[str, str]]
    terms: PodAffinityTerms
    key: str = ""
    values: frozenset[str] = _NO_VALUES
    """A label that every pod has which this one must be near, and what it may say; no key: nothing is known."""


def stance_of(pod: Pod) -> Stance:
    terms = affinity_terms(pod) or _NO_TERMS
    labels = frozenset(pod.metadata.labels.items())
    for term in terms.required:
        for wanted in term.selector.requirements:
            if wanted.operator == "In":
                return Stance(pod.metadata.namespace, labels, terms, wanted.key, wanted.values)
    return Stance(pod.metadata.namespace, labels, terms)


def after_pod_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> Hint:
    """A pod came, went or got other labels."""
    if isinstance(old, Pod) and isinstance(new, Pod) and new.uid == pod.uid:
        return Hint.QUEUE
    return other_pod_changed(stance_of(pod), old, new)


def other_pod_changed(stance: Stance, old: KubeObject | None, new: KubeObject | None) -> Hint:
    """The same for a pod that is not the one that changed. Only pods that take room somewhere count."""
    if old is None:
        assert isinstance(new, Pod)
        meta = new.metadata
        if stance.key and meta.labels.get(stance.key) not in stance.values:
            return Hint.SKIP  # looked up first: pods come all the time, and thousands may wait for one
        return queue_if(_takes_room(new) and matches_all(stance.terms.required, new))
    assert isinstance(old, Pod)
    terms = stance.terms
    if not _takes_room(old) or (isinstance(new, Pod) and not _takes_room(new)):
        return Hint.SKIP
    if isinstance(new, Pod):
        came = not matches_all(terms.required, old) and matches_all(terms.required, new)
        left = matches_all(terms.required_anti, old) and not matches_all(terms.required_anti, new)
        return queue_if(came or left)
    if matches_all(terms.required_anti, old):
        return Hint.QUEUE
    theirs = (affinity_terms(old) or _NO_TERMS).required_anti
    return queue_if(bool(theirs) and _mean(theirs, stance.namespace, dict(stance.labels)))


def after_node_change(stance: Stance, old: KubeObject | None, new: KubeObject | None) -> Hint:
    """A node came, or moved into or out of a domain that a required term speaks of."""
    assert isinstance(new, Node)
    terms = stance.terms
    labels = new.metadata.labels
    before = old.metadata.labels if isinstance(old, Node) else None
    for term in terms.required:
        value = labels.get(term.topology_key)
        if value is not None and (before is None or before.get(term.topology_key) != value):
            return Hint.QUEUE
    if before is None:
        return queue_if(bool(terms.required_anti))
    return queue_if(
        any(
            term.topology_key in before and before[term.topology_key] != labels.get(term.topology_key)
            for term in terms.required_anti
        )
    )


def matches_all(terms: tuple[AffinityTerm, ...], pod: Pod) -> bool:
    """Whether the pod is meant by every term; no terms mean nobody."""
    return bool(terms) and _mean(terms, pod.metadata.namespace, pod.metadata.labels)


def _mean(terms: tuple[AffinityTerm, ...], namespace: str, labels: dict[str, str]) -> bool:
    for term in terms:  # noqa: SIM110  (a generator costs more than the comparison)
        if not term.matches(namespace, labels, _NO_LABELS):
            return False
    return True


def _takes_room(pod: Pod) -> bool:
    return bool(pod.spec.node_name or pod.status.nominated_node_name)
