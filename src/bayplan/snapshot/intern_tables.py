"""The words that the columns of one cluster share: resource names, taint lists, feature sets, pod kinds, terms.

A cache owns one vocabulary; its snapshots and their forks read the same one, so an id means the same everywhere.
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
"""Ids that are used to look things up: as wide as NumPy wants them, since it converts all others first."""
SlotVector = npt.NDArray[np.int32]
"""Ids of which there are as many as pods."""

CPU, MEMORY, EPHEMERAL_STORAGE, PODS = range(4)
FIXED_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")

K = TypeVar("K", bound=Hashable)


class NamespacedLabels:
    """What selectors see of a pod: its namespace and its labels. Equal kinds are one entry in the vocabulary."""

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
    """The first of equal kinds, while it is remembered: what is looked up by itself is found without comparing."""
    return kind


class ResourceNumbers:
    """Resource names to column numbers. Never shrinks: a cluster knows a few dozen names at most."""

    __slots__ = ("_index", "names")

    def __init__(self) -> None:
        self.names: list[str] = list(FIXED_RESOURCES)
        self._index = {name: number for number, name in enumerate(FIXED_RESOURCES)}

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """The column of `name`, made if it is new."""
        number = self._index.get(name)
        if number is None:
            number = self._index[name] = len(self.names)
            self.names.append(name)
        return number

    def find(self, name: str) -> int:
        """The column of `name`, or -1 when no node and no pod has ever named it."""
        return self._index.get(name, -1)


class InternTables:
    """Every id space of one cluster."""

    __slots__ = ("affinities", "features", "kinds", "resources", "taints")

    def __init__(self) -> None:
        self.resources = ResourceNumbers()
        self.taints: Interner[tuple[Taint, ...]] = Interner()
        self.features: Interner[frozenset[str]] = Interner()
        self.kinds: Interner[NamespacedLabels] = Interner()
        self.affinities: Interner[PodAffinityTerms] = Interner()

    @property
    def has_released(self) -> bool:
        """Whether ids wait to be given out again."""
        return bool(self.kinds.released or self.affinities.released or self.taints.released or self.features.released)

    def reuse_released_ids(self) -> None:
        """Let released ids be given out again; called when every snapshot is up to date."""
        self.taints.reuse_released_ids()
        self.features.reuse_released_ids()
        self.kinds.reuse_released_ids()
        self.affinities.reuse_released_ids()


class IdPredicate(Generic[K]):
    """A yes/no answer for each id of an interner, asked once a distinct value: `answers()[ids]` is a whole column."""

    __slots__ = ("_answers", "_cursor", "_interner", "_predicate")

    def __init__(self, interner: Interner[K], predicate: Callable[[K], bool]) -> None:
        self._interner = interner
        self._predicate = predicate
        self._answers: BoolVector = np.zeros(0, dtype=np.bool_)
        self._cursor = 0

    def answers(self) -> BoolVector:
        """Indexed by id; ids that appeared since the last call are asked now."""
        interner = self._interner
        self._cursor, fresh = interner.since(self._cursor)
        if len(self._answers) < len(interner):
            grown = np.zeros(max(len(interner), 2 * len(self._answers)), dtype=np.bool_)
            grown[: len(self._answers)] = self._answers
            self._answers = grown
        for number in fresh:
            value = interner.values[number]
            self._answers[number] = value is not None and self._predicate(value)
        return self._answers
