"""Selectors over columns: which rows of a table match a requirement, a term, a node selector.

One lookup table over the distinct values of a label key, spread over the rows. `In` costs as much as the selector has
values, whatever the nodes have; the other operators look at each distinct value once.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bayplan.objects.selectors.label_selectors import LabelMatcher, Requirement
from bayplan.objects.selectors.node_selectors import (
    NAME_FIELD,
    NodeSelectorMatcher,
    NodeTerm,
    RequiredNodeAffinity,
)
from bayplan.snapshot.intern_tables import BoolVector
from bayplan.snapshot.table import NodeTable


def where_requirement(nodes: NodeTable, requirement: Requirement) -> BoolVector:
    """Rows whose label satisfies one requirement."""
    match requirement.operator:
        case "In":
            return nodes.where_label_in(requirement.key, requirement.values)
        case "NotIn":
            return ~nodes.where_label_in(requirement.key, requirement.values)
        case "Exists":
            present: BoolVector = nodes.label_ids(requirement.key) >= 0
            return present
        case "DoesNotExist":
            absent: BoolVector = nodes.label_ids(requirement.key) < 0
            return absent
    return nodes.where_label(requirement.key, requirement.accepts)


def where_labels(nodes: NodeTable, matcher: LabelMatcher) -> BoolVector:
    """Rows whose labels a label selector accepts."""
    if matcher.nothing:
        return np.zeros(len(nodes), dtype=np.bool_)
    return _all(nodes, matcher.requirements)


def where_term(nodes: NodeTable, term: NodeTerm) -> BoolVector:
    """Rows that one term of a node selector accepts, by labels and by name."""
    if term.errors:
        return np.zeros(len(nodes), dtype=np.bool_)
    mask = _all(nodes, term.requirements)
    for field in term.fields:
        mask &= _where_field(nodes, field)
    return mask


def where_selector(nodes: NodeTable, selector: NodeSelectorMatcher) -> BoolVector:
    """Rows that any term accepts."""
    mask = np.zeros(len(nodes), dtype=np.bool_)
    for term in selector.terms:
        mask |= where_term(nodes, term)
    return mask


def where_required(nodes: NodeTable, affinity: RequiredNodeAffinity) -> BoolVector:
    """Rows that a pod's `nodeSelector` and required node affinity accept."""
    mask = where_labels(nodes, affinity.labels)
    if affinity.selector is not None:
        mask &= where_selector(nodes, affinity.selector)
    return mask


def _all(nodes: NodeTable, requirements: Iterable[Requirement]) -> BoolVector:
    mask = np.ones(len(nodes), dtype=np.bool_)
    for requirement in requirements:
        mask &= where_requirement(nodes, requirement)
    return mask


def _where_field(nodes: NodeTable, field: Requirement) -> BoolVector:
    if field.key != NAME_FIELD:
        return np.full(len(nodes), field.accepts(""), dtype=np.bool_)
    named = nodes.where_named(field.values)
    return named if field.operator == "In" else ~named
