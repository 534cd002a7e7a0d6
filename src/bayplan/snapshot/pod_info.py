"""A pod with everything that is worth computing once: numeric requests, host ports, affinity terms, claims.

Built when a pod enters the cache or an attempt; shared by the cache, snapshots and plugins. `requests` are the
accounted requests of a pod on a node, including resizes in progress. Plugins compute the requests of an incoming pod
from `pod`, by the rules of `objects.resources`.
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
from bayplan.snapshot.intern_tables import InternTables, IntVector, NamespacedLabels, shared_namespaced_labels

T = TypeVar("T")

FLOAT_EXACT_LIMIT = 1 << 46
"""Below this limit one hundred times an amount is exact as a float, and so are the quotients that scores use."""

REQUESTS_OFFSET = 3
"""Number of amounts before the requests: CPU and memory with defaults, and the pod count."""


class RowAmounts(NamedTuple):
    """The amounts that a pod adds to a row, in the layout of `NodeColumns`: defaults, one pod, requests."""

    vocabulary: InternTables  # numbers the resources
    amounts: IntVector
    upper_bound: int  # upper bound of all amounts; `FLOAT_EXACT_LIMIT` if one is negative
    amount_tuple: tuple[int, ...]  # the amounts again, for element-wise addition


class PodInfo:
    """One version of one pod in the form that columns need, or a later version that `has_same_scheduling_fields`."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.uid = pod.metadata.uid
        self.priority = pod.priority
        self.terminating = pod.terminating
        self._computed: dict[Callable[[Pod], Any], Any] = {}  # shared with the pod once it is on a node
        self._row_amounts: RowAmounts | None = None
        # by profile: revision of the device classes and equivalence class
        self.equivalence_classes: dict[str, tuple[int, Any]] = {}

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
        """CPU (milli) and memory (bytes) requests, with kube-scheduler's defaults for containers without requests."""
        return accounted_nonzero(self.pod)

    @cached_property
    def host_ports(self) -> tuple[HostPort, ...]:
        return host_ports(self.pod)

    @cached_property
    def affinity(self) -> PodAffinityTerms | None:
        """The pod's affinity and anti-affinity terms about other pods, or None."""
        return affinity_terms(self.pod)

    @cached_property
    def claim_keys(self) -> tuple[str, ...]:
        """`namespace/name` of each claim that a volume names directly, once for each volume."""
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
        """Return the same pod on a node with all cached values: none of them depends on the node."""
        bound = PodInfo.__new__(PodInfo)
        values = self.__dict__.copy()
        values["pod"] = self.pod.bound_to(node_name)
        values["equivalence_classes"] = {}  # a placed pod keeps no equivalence class
        bound.__dict__ = values
        return bound

    def with_new_version(self, pod: Pod) -> PodInfo:
        """Return a version of the pod that `has_same_row_amounts`, with all values that columns need."""
        return self._copy_cached(pod, _COLUMN_ATTRIBUTES)

    def with_new_identity(self, pod: Pod) -> PodInfo:
        """Return another pod that differs only in name and uid, with all cached values."""
        other = PodInfo.__new__(PodInfo)
        values = self.__dict__.copy()
        values["pod"], values["uid"] = pod, pod.metadata.uid
        values["_computed"] = self._computed.copy()
        other.__dict__ = values
        return other

    def row_amounts(self, vocabulary: InternTables) -> RowAmounts:
        amounts = self._row_amounts
        if amounts is None or amounts.vocabulary is not vocabulary:
            amounts = self._row_amounts = self._compute_row_amounts(vocabulary)
        return amounts

    def share_row_amounts(self, source: PodInfo, vocabulary: InternTables) -> None:
        """Share the row amounts of a pod with the same requests."""
        self._row_amounts = source.row_amounts(vocabulary)

    def _compute_row_amounts(self, vocabulary: InternTables) -> RowAmounts:
        index = vocabulary.resources.index
        requests = [(index(name), int64(amount)) for name, amount in self.requests.items()]
        amounts = np.zeros(REQUESTS_OFFSET + 1 + max((number for number, _ in requests), default=-1), dtype=np.int64)
        amounts[:REQUESTS_OFFSET] = *self.nonzero, 1
        for number, amount in requests:
            amounts[REQUESTS_OFFSET + number] = amount
        amount_tuple = tuple(amounts.tolist())
        return RowAmounts(
            vocabulary, amounts, max(amount_tuple) if min(amount_tuple) >= 0 else FLOAT_EXACT_LIMIT, amount_tuple
        )

    def cached(self, compute: Callable[[Pod], T]) -> T:
        """Return `compute(pod)`, cached. `compute` must depend on nothing but the pod."""
        try:
            value: T = self._computed[compute]
        except KeyError:
            value = self._computed[compute] = compute(self.pod)
        return value

    def set_cached(self, compute: Callable[[Pod], T], value: T) -> None:
        """Set the result of `cached(compute)`: a decision that the API server does not show yet.

        The pod on its node has the same result, because both share cached values.
        """
        self._computed[compute] = value

    def delete_cached(self, compute: Callable[[Pod], Any]) -> None:
        """Delete a cached value after a decision is undone."""
        self._computed.pop(compute, None)

    def precompute(self, vocabulary: InternTables) -> None:
        """Compute everything that the cache needs, before the pod's attempt."""
        self.row_amounts(vocabulary)
        _ = self.host_ports, self.affinity, self.claim_keys, self.namespaced_labels
        for compute in _INCOMING_REQUESTS:
            self.cached(compute)

    def from_same_template(self, pod: Pod) -> PodInfo:
        """Return another pod that `has_same_request_inputs`, with the cached requests and ports. Amounts are copied."""
        other = self._copy_cached(pod, _REQUEST_ATTRIBUTES)
        if "requests" in self.__dict__:
            other.__dict__["requests"] = self.requests.copy()
        for compute in _INCOMING_REQUESTS:
            if compute in self._computed:
                other._computed[compute] = self._computed[compute].copy()
        return other

    def _copy_cached(self, pod: Pod, names: Iterable[str]) -> PodInfo:
        other = PodInfo(pod)
        values, other_values = self.__dict__, other.__dict__
        for name in names:
            if name in values:
                other_values[name] = values[name]
        return other


_REQUEST_ATTRIBUTES = ("nonzero", "_row_amounts", "host_ports")
_INCOMING_REQUESTS = (filter_requests, fit_score_requests, balanced_requests)
_COLUMN_ATTRIBUTES = (
    "requests",
    "nonzero",
    "_row_amounts",
    "host_ports",
    "affinity",
    "claim_keys",
    "namespaced_labels",
)
"""Values that depend only on fields that `has_same_row_amounts` compares. Values of plugins may depend on anything."""


def has_same_row_amounts(one: Pod, other: Pod) -> bool:
    """Whether two versions of a pod are equal in everything that columns contain."""
    return one.spec == other.spec and one.metadata.labels == other.metadata.labels and has_same_usage(one, other)


def template_key(pod: Pod) -> tuple[object, ...]:
    """Return everything of a pod except its identity: name, uid, version and creation time.

    Volumes that have only a name are left out too: the service account token volume of each pod has a random name.
    """
    meta, spec, status = pod.metadata, pod.spec, pod.status
    if spec.volumes:
        spec = replace(spec, volumes=tuple([each for each in spec.volumes if each != Volume(name=each.name)]))
    identity = (meta.namespace, meta.labels, meta.annotations, meta.owner_references)
    return (*identity, meta.deletion_timestamp, meta.finalizers, spec, status)


def has_same_scheduling_fields(one: Pod, other: Pod) -> bool:
    """Whether two versions of a pod are equal for the scheduler: at most their conditions differ."""
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
