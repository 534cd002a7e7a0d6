"""A pod with what is worth computing once: requests as numbers, host ports, parsed affinity terms, claims.

Made when a pod enters the cache or an attempt; shared by the cache, snapshots and plugins. Requests are the accounted
ones of a pod that is on a node (resizes in progress included); what a plugin asks of the incoming pod it computes
from `pod` itself, by the rules of `objects.resources`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from bayplan.codec.quantity import int64
from bayplan.objects.core import Pod
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.ports import HostPort, host_ports
from bayplan.objects.resources import (
    accounted_nonzero,
    accounted_requests,
    balanced_requests,
    filter_requests,
    fit_score_requests,
    has_same_usage,
)
from bayplan.objects.selectors.pod_affinity import PodAffinityTerms, affinity_terms
from bayplan.objects.volumes import Volume
from bayplan.snapshot.intern_tables import (
    InternTables,
    IntVector,
    NamespacedLabels,
    shared_namespaced_labels,
)

T = TypeVar("T")

FLOAT_EXACT_LIMIT = 1 << 46
"""Below this, a hundred times an amount is exact as a float, and so is its whole share of another such amount."""

REQUESTS_OFFSET = 3
"""What comes before requests in what pods add to a row: CPU and memory with guesses, and the pod itself."""


class RowAmounts(NamedTuple):
    """What a pod adds to a row, as `NodeColumns` lays it out: guesses, one pod, requests."""

    vocabulary: InternTables  # that numbers the resources
    amounts: IntVector
    upper_bound: int  # none of them is larger; `FLOAT_EXACT_LIMIT` where one is negative
    parts: tuple[int, ...]  # the amounts again, for whoever adds them one by one


class PodInfo:
    """One version of one pod, ready for columns; or a later one that `has_same_scheduling_fields`."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.uid = pod.metadata.uid
        self.priority = pod.priority
        self.terminating = pod.terminating
        self._computed: dict[Callable[[Pod], Any], Any] = {}  # shared with the pod once it is on a node
        self._weight: RowAmounts | None = None
        self.equivalence_classes: dict[
            str, tuple[int, Any]
        ] = {}  # by profile: with which pods it shares answers, and since when

    @property
    def key(self) -> str:
        return self.pod.key

    @property
    def node_name(self) -> str:
        return self.pod.spec.node_name

    @cached_property
    def requests(self) -> dict[str, int]:
        return accounted_requests(self.pod)

    @cached_property
    def nonzero(self) -> tuple[int, int]:
        """CPU (milli) and memory (bytes), with a guess for containers that ask for nothing."""
        return accounted_nonzero(self.pod)

    @cached_property
    def host_ports(self) -> tuple[HostPort, ...]:
        return host_ports(self.pod)

    @cached_property
    def affinity(self) -> PodAffinityTerms | None:
        """The pod's terms about other pods, or None where it has none at all."""
        return affinity_terms(self.pod)

    @cached_property
    def claim_keys(self) -> tuple[str, ...]:
        """`namespace/name` of each claim that a volume names directly, once a volume."""
        namespace = self.pod.metadata.namespace
        return tuple(
            f"{namespace}/{volume.persistent_volume_claim.claim_name}"
            for volume in self.pod.spec.volumes
            if volume.persistent_volume_claim is not None
        )

    @cached_property
    def namespaced_labels(self) -> NamespacedLabels:
        return shared_namespaced_labels(NamespacedLabels(self.pod.metadata.namespace, self.pod.metadata.labels))

    def bound_to(self, node_name: str) -> PodInfo:
        """The same pod on a node, with everything that was computed already: none of it depends on the node."""
        bound = PodInfo.__new__(PodInfo)
        known = self.__dict__.copy()
        known["pod"] = self.pod.bound_to(node_name)
        known["kinds"] = {}  # a pod that is placed holds on to nothing that was found out for placing it
        bound.__dict__ = known
        return bound

    def with_new_version(self, pod: Pod) -> PodInfo:
        """A version of the pod that `has_same_row_amounts`, with everything that was computed for columns."""
        return self._copy_cached(pod, _OF_COLUMNS)

    def with_new_identity(self, pod: Pod) -> PodInfo:
        """Another pod that differs in its name and uid alone, with everything that was computed of this one."""
        other = PodInfo.__new__(PodInfo)
        known = self.__dict__.copy()
        known["pod"], known["uid"] = pod, pod.metadata.uid
        known["_computed"] = self._computed.copy()
        other.__dict__ = known
        return other

    def row_amounts(self, vocabulary: InternTables) -> RowAmounts:
        """What the pod adds to a row."""
        known = self._weight
        if known is None or known.vocabulary is not vocabulary:
            known = self._weight = self._compute_row_amounts(vocabulary)
        return known

    def share_row_amounts(self, known: PodInfo, vocabulary: InternTables) -> None:
        """Take over the weight of a pod that asks for the same."""
        self._weight = known.row_amounts(vocabulary)

    def _compute_row_amounts(self, vocabulary: InternTables) -> RowAmounts:
        index = vocabulary.resources.index
        requests = [(index(name), int64(amount)) for name, amount in self.requests.items()]
        amounts = np.zeros(REQUESTS_OFFSET + 1 + max((number for number, _ in requests), default=-1), dtype=np.int64)
        amounts[:REQUESTS_OFFSET] = *self.nonzero, 1
        for number, amount in requests:
            amounts[REQUESTS_OFFSET + number] = amount
        parts = tuple(amounts.tolist())
        return RowAmounts(vocabulary, amounts, max(parts) if min(parts) >= 0 else FLOAT_EXACT_LIMIT, parts)

    def cached(self, compute: Callable[[Pod], T]) -> T:
        """`compute(pod)`, computed once however many ask: of something that depends on nothing but the pod."""
        try:
            value: T = self._computed[compute]
        except KeyError:
            value = self._computed[compute] = compute(self.pod)
        return value

    def set_cached(self, compute: Callable[[Pod], T], value: T) -> None:
        """From now on `cached(compute)` is this: what was decided, and the API server does not show yet.

        The pod on its node says the same, since it shares what was computed.
        """
        self._computed[compute] = value

    def delete_cached(self, compute: Callable[[Pod], Any]) -> None:
        """It was taken back: compute it anew when somebody asks."""
        self._computed.pop(compute, None)

    def precompute(self, vocabulary: InternTables) -> None:
        """Compute now what the cache will ask, so that it is there when the pod's turn comes."""
        self.row_amounts(vocabulary)
        _ = self.host_ports, self.affinity, self.claim_keys, self.namespaced_labels
        for compute in _INCOMING:
            self.cached(compute)

    def from_same_template(self, pod: Pod) -> PodInfo:
        """Another pod that `has_same_request_inputs`, with what was computed of requests and ports; the amounts are its
        own."""
        other = self._copy_cached(pod, _OF_REQUESTS)
        if "requests" in self.__dict__:
            other.__dict__["requests"] = self.requests.copy()
        for compute in _INCOMING:
            if compute in self._computed:
                other._computed[compute] = self._computed[compute].copy()
        return other

    def _copy_cached(self, pod: Pod, names: Iterable[str]) -> PodInfo:
        """Another pod, with what was computed of this one under these names."""
        other = PodInfo(pod)
        known, given = self.__dict__, other.__dict__
        for name in names:
            if name in known:
                given[name] = known[name]
        return other


_OF_REQUESTS = ("nonzero", "_weight", "host_ports")
_INCOMING = (filter_requests, fit_score_requests, balanced_requests)
_OF_COLUMNS = ("requests", "nonzero", "_weight", "host_ports", "affinity", "claim_keys", "kind")
"""What depends on nothing that `has_same_row_amounts` does not compare. What plugins have computed may depend on
anything."""


def has_same_row_amounts(one: Pod, other: Pod) -> bool:
    """Whether two versions of a pod are the same to columns: they show nothing that is different."""
    return one.spec == other.spec and one.metadata.labels == other.metadata.labels and has_same_usage(one, other)


def template_key(pod: Pod) -> tuple[object, ...]:
    """All of a pod but who it is: its name, uid and version, when it was made, and what its volumes are called where
    that is all that is known of them. Each pod is given such a volume, of a name like no other, with its account."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    if spec.volumes:
        spec = replace(spec, volumes=tuple([each for each in spec.volumes if each != Volume(name=each.name)]))
    belongs = (meta.namespace, meta.labels, meta.annotations, meta.owner_references)
    return (*belongs, meta.deletion_timestamp, meta.finalizers, spec, status)


def has_same_scheduling_fields(one: Pod, other: Pod) -> bool:
    """Whether two versions of a pod are the same to whoever decides: they differ in their conditions at most."""
    if one.spec != other.spec or _metadata_key(one.metadata) != _metadata_key(other.metadata):
        return False
    before, after = one.status, other.status
    return before == after or replace(before, conditions=()) == replace(after, conditions=())


def _metadata_key(meta: ObjectMeta) -> tuple[object, ...]:
    return (
        meta.uid,
        meta.labels,
        meta.annotations,
        meta.deletion_timestamp,
        meta.owner_references,
        meta.finalizers,
        meta.creation_timestamp,
    )
