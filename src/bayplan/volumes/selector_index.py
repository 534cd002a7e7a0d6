"""Index of selectors by a required label.

There is often one local volume and one local storage capacity per node, each with a selector for the node's label. For
5,000 nodes, 5,000 such selectors would be evaluated 25 million times. So the index stores a selector that requires `key
In values` under its key and values. A node gets the selectors under its own labels, and those without such a
requirement. Cost: one dictionary lookup per distinct key, plus the returned items.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from bayplan.objects.selectors.label_selectors import LabelMatcher, Requirement
from bayplan.objects.selectors.node_selectors import NodeSelectorMatcher

T = TypeVar("T")
_HOSTNAME = "kubernetes.io/hostname"


class RequiredLabel(NamedTuple):
    """A selector with this required label matches no node whose label `key` is missing or not among the values."""

    key: str
    values: frozenset[str]


_NO_NODE = RequiredLabel(_HOSTNAME, frozenset())  # for a selector that no node can match


class SelectorIndex(Generic[T]):
    """Items, each with a required label or None."""

    __slots__ = ("_anywhere", "_by_key")

    def __init__(self, items: Iterable[tuple[T, RequiredLabel | None]]) -> None:
        self._anywhere: list[T] = []
        self._by_key: dict[str, dict[str, list[T]]] = {}
        for item, required_label in items:
            if required_label is None:
                self._anywhere.append(item)
                continue
            by_value = self._by_key.setdefault(required_label.key, {})
            for value in required_label.values:
                by_value.setdefault(value, []).append(item)

    def candidates_for(self, labels: Mapping[str, str]) -> Iterator[T]:
        """The items that may match a node with these labels."""
        yield from self._anywhere
        for key, by_value in self._by_key.items():
            value = labels.get(key)
            if value is not None:
                yield from by_value.get(value, ())


@lru_cache(maxsize=16_384)
def required_label_of_terms(selector: NodeSelectorMatcher) -> RequiredLabel | None:
    """The label that every term of a node selector requires, if any."""
    demands = [_values_by_key(term.requirements) for term in selector.terms if not term.errors]
    if not demands:
        return _NO_NODE
    shared = set(demands[0]).intersection(*demands[1:])
    key = _most_selective_key(shared)
    return RequiredLabel(key, frozenset().union(*(demand[key] for demand in demands))) if key else None


@lru_cache(maxsize=16_384)
def required_label_of_selector(selector: LabelMatcher) -> RequiredLabel | None:
    """A label that a label selector requires, if any."""
    if selector.nothing:
        return _NO_NODE
    demands = _values_by_key(selector.requirements)
    key = _most_selective_key(demands)
    return RequiredLabel(key, demands[key]) if key else None


def _most_selective_key(keys: Collection[str]) -> str:
    return _HOSTNAME if _HOSTNAME in keys else min(keys, default="")


def _values_by_key(requirements: Iterable[Requirement]) -> dict[str, frozenset[str]]:
    return {requirement.key: requirement.values for requirement in requirements if requirement.operator == "In"}
