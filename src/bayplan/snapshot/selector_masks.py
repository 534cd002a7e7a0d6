"""Selectors evaluated on columns: the rows of a table that match a requirement, a term or a node selector.

Uses one lookup table over the distinct values of a label key, applied to all rows. The cost of `In` depends on the
values of the selector, not on the nodes; the other operators evaluate each distinct value once.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bayplan.objects.selectors.label_selectors import LabelMatcher, Requirement
from bayplan.objects.selectors.node_selectors import (
    NAME_FIELD,
    CompiledNodeTerm,
    NodeSelectorMatcher,
    RequiredNodeAffinity,
)
from bayplan.snapshot.intern_tables import BoolVector
from bayplan.snapshot.table import NodeTable


def requirement_mask(nodes: NodeTable, requirement: Requirement) -> BoolVector:
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


def label_selector_mask(nodes: NodeTable, matcher: LabelMatcher) -> BoolVector:
    if matcher.nothing:
        return np.zeros(len(nodes), dtype=np.bool_)
    return _all_requirements_mask(nodes, matcher.requirements)


def node_selector_term_mask(nodes: NodeTable, term: CompiledNodeTerm) -> BoolVector:
    """Return the rows that one term of a node selector accepts, by labels and by name."""
    if term.errors:
        return np.zeros(len(nodes), dtype=np.bool_)
    mask = _all_requirements_mask(nodes, term.requirements)
    for field in term.fields:
        mask &= _field_mask(nodes, field)
    return mask


def node_selector_mask(nodes: NodeTable, selector: NodeSelectorMatcher) -> BoolVector:
    """Return the rows that any term accepts."""
    mask = np.zeros(len(nodes), dtype=np.bool_)
    for term in selector.terms:
        mask |= node_selector_term_mask(nodes, term)
    return mask


def required_affinity_mask(nodes: NodeTable, affinity: RequiredNodeAffinity) -> BoolVector:
    """Return the rows that a pod's `nodeSelector` and required node affinity accept."""
    mask = label_selector_mask(nodes, affinity.labels)
    if affinity.selector is not None:
        mask &= node_selector_mask(nodes, affinity.selector)
    return mask


def _all_requirements_mask(nodes: NodeTable, requirements: Iterable[Requirement]) -> BoolVector:
    mask = np.ones(len(nodes), dtype=np.bool_)
    for requirement in requirements:
        mask &= requirement_mask(nodes, requirement)
    return mask


def _field_mask(nodes: NodeTable, field: Requirement) -> BoolVector:
    if field.key != NAME_FIELD:
        return np.full(len(nodes), field.accepts(""), dtype=np.bool_)
    named = nodes.where_named(field.values)
    return named if field.operator == "In" else ~named
