"""Intern tables that the columns of one cluster share: resources, taints, features, pod kinds and affinity terms.

A cache owns one set of tables. Its snapshots and their forks use the same one, so an id has one meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from bayplan.objects.core import Taint
from bayplan.objects.selectors.pod_affinity import PodAffinityTerms
from bayplan.snapshot.interner import Interner

BoolVector = npt.NDArray[np.bool_]
IntVector = npt.NDArray[np.int64]
IdVector = npt.NDArray[np.intp]
"""Ids used as indexes, in NumPy's index type to avoid conversions."""
SlotVector = npt.NDArray[np.int32]
"""Ids with one entry for each pod."""

CPU, MEMORY, EPHEMERAL_STORAGE, PODS = range(4)
FIXED_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")

K = TypeVar("K", bound=Hashable)


class NamespacedLabels:
    """The namespace and the labels of a pod, which is all that selectors read. Equal values have one id."""

    __slots__ = ("_hash", "labels", "namespace")

    def __init__(self, namespace: str, labels: dict[str, str]) -> None:
        self.namespace = namespace
        self.labels = labels
        self._hash = hash((namespace, frozenset(labels.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamespacedLabels) and self.namespace == other.namespace and self.labels == other.labels

    def __hash__(self) -> int:
        return self._hash


@lru_cache(maxsize=4096)
def shared_namespaced_labels(kind: NamespacedLabels) -> NamespacedLabels:
    """Return the first of equal values while it is cached: identical objects are found without a comparison."""
    return kind


class ResourceNumbers:
    """Column numbers of resource names. Never shrinks: a cluster has a few dozen names at most."""

    __slots__ = ("_index", "names")

    def __init__(self) -> None:
        self.names: list[str] = list(FIXED_RESOURCES)
        self._index = {name: number for number, name in enumerate(FIXED_RESOURCES)}

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """Return the column of `name`, a new one if needed."""
        number = self._index.get(name)
        if number is None:
            number = self._index[name] = len(self.names)
            self.names.append(name)
        return number

    def find(self, name: str) -> int:
        """Return the column of `name`, or -1 if no node and no pod has named it."""
        return self._index.get(name, -1)


class InternTables:
    __slots__ = ("affinities", "features", "kinds", "resources", "taints")

    def __init__(self) -> None:
        self.resources = ResourceNumbers()
        self.taints: Interner[tuple[Taint, ...]] = Interner()
        self.features: Interner[frozenset[str]] = Interner()
        self.kinds: Interner[NamespacedLabels] = Interner()
        self.affinities: Interner[PodAffinityTerms] = Interner()

    @property
    def has_released(self) -> bool:
        """Whether released ids wait for reuse."""
        return bool(self.kinds.released or self.affinities.released or self.taints.released or self.features.released)

    def reuse_released_ids(self) -> None:
        """Allow reuse of released ids. Called when every snapshot is up to date."""
        self.taints.reuse_released_ids()
        self.features.reuse_released_ids()
        self.kinds.reuse_released_ids()
        self.affinities.reuse_released_ids()


class IdPredicate(Generic[K]):
    """A predicate evaluated once for each id of an interner: `answers()[ids]` is a whole column."""

    __slots__ = ("_answers", "_cursor", "_interner", "_predicate")

    def __init__(self, interner: Interner[K], predicate: Callable[[K], bool]) -> None:
        self._interner = interner
        self._predicate = predicate
        self._answers: BoolVector = np.zeros(0, dtype=np.bool_)
        self._cursor = 0

    def answers(self) -> BoolVector:
        """Return the results indexed by id. Evaluates ids that are new since the last call."""
        interner = self._interner
        self._cursor, new_ids = interner.since(self._cursor)
        if len(self._answers) < len(interner):
            resized = np.zeros(max(len(interner), 2 * len(self._answers)), dtype=np.bool_)
            resized[: len(self._answers)] = self._answers
            self._answers = resized
        for number in new_ids:
            value = interner.values[number]
            self._answers[number] = value is not None and self._predicate(value)
        return self._answers
