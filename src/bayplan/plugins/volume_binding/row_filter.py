"""Filters rows by the pod's volumes, for many rows at once.

A single unbound claim with WaitForFirstConsumer, the most frequent case, is evaluated on label columns. Several claims
compete for the same volumes: `VolumeFinder` decides once for all rows with equal relevant labels. For local volumes
that is once for each remaining row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.status import Code
from bayplan.objects.selectors.label_selectors import Requirement
from bayplan.objects.selectors.node_selectors import NodeSelectorMatcher, TopologyMatcher
from bayplan.snapshot import BoolVector, IntVector, NodeInfo, NodeTable
from bayplan.volumes.binding import AFFINITY_CONFLICT, BIND_CONFLICT, NOT_ENOUGH_SPACE, VOLUME_MISSING, VolumeFinder
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.volume_matcher import CandidateVolumes, ProvisioningCheck

Conjunction = tuple[Requirement, ...]


class _NodeAnswer(NamedTuple):
    """Why a node is rejected: a reason, or the text of an error."""

    text: str
    is_error: bool = False


class RowRejections:
    """Reasons by row, in kube-scheduler's order. A row with an error has no other reason."""

    def __init__(self, count: int) -> None:
        self._masks = {
            reason: np.zeros(count, dtype=np.bool_)
            for reason in (AFFINITY_CONFLICT, BIND_CONFLICT, NOT_ENOUGH_SPACE, VOLUME_MISSING)
        }
        self._faults: dict[str, BoolVector] = {}
        self.error_rows: BoolVector = np.zeros(count, dtype=np.bool_)

    def add_answer(self, node_answer: _NodeAnswer, mask: BoolVector) -> None:
        if node_answer.is_error:
            self.add_error(node_answer.text, mask)
        else:
            self.add(node_answer.text, mask)

    def add(self, reason: str, mask: BoolVector) -> None:
        self._masks[reason] |= mask

    def add_error(self, text: str, mask: BoolVector) -> None:
        new_errors = mask & ~self.error_rows
        self._faults[text] = self._faults[text] | new_errors if text in self._faults else new_errors
        self.error_rows = self.error_rows | new_errors

    def rejections(self) -> Iterator[Rejection]:
        for text, mask in self._faults.items():
            yield Rejection(mask, text, code=Code.ERROR)
        for reason, mask in self._masks.items():
            yield Rejection(mask & ~self.error_rows, reason, resolvable=False)


def decide_single_delayed_claim(
    candidates: CandidateVolumes, provisioning: ProvisioningCheck, nodes: NodeTable, row_rejections: RowRejections
) -> None:
    """Evaluate a single unbound claim on all rows at once."""
    try:
        candidates.check()
    except VolumeError as fault:
        row_rejections.add_error(str(fault), np.ones(len(nodes), dtype=np.bool_))
        return
    without_volume = ~where_any(nodes, conjunctions(candidates.reaches()))
    allowed = _where_topology(nodes, provisioning.topology)
    row_rejections.add(BIND_CONFLICT, without_volume & ~allowed)
    if provisioning.pools is not None:
        has_capacity = where_any(nodes, (pool.requirements for pool in provisioning.pools if not pool.nothing))
        row_rejections.add(NOT_ENOUGH_SPACE, without_volume & allowed & ~has_capacity)


def decide_delayed_claims(finder: VolumeFinder, nodes: NodeTable, row_rejections: RowRejections) -> None:
    """Evaluate several unbound claims, once for each group of rows with equal relevant labels."""
    open_rows = ~row_rejections.error_rows
    selected = finder.selected_nodes
    if selected:
        selected_rows = nodes.where_named(selected if len(selected) == 1 else ())
        row_rejections.add(BIND_CONFLICT, ~selected_rows)
        open_rows &= selected_rows
    remaining = nodes.restricted_to(open_rows)
    _, first, members = np.unique(_groups(remaining, finder.label_keys()), return_index=True, return_inverse=True)
    node_answers = [_evaluate_node(finder, remaining[position]) for position in first.tolist()]
    for node_answer in dict.fromkeys(node_answers):
        if node_answer is None:
            continue
        same_answer = np.fromiter(
            (each == node_answer for each in node_answers), dtype=np.bool_, count=len(node_answers)
        )
        mask = np.zeros(len(nodes), dtype=np.bool_)
        mask[open_rows] = same_answer[members]
        row_rejections.add_answer(node_answer, mask)


def _evaluate_node(finder: VolumeFinder, node: NodeInfo) -> _NodeAnswer | None:
    """Return why a node is rejected; None if it is accepted."""
    try:
        reason, _ = finder.find_pod_volumes(node.name, node.labels)
    except VolumeError as fault:
        return _NodeAnswer(str(fault), is_error=True)
    return _NodeAnswer(reason) if reason is not None else None


def _groups(nodes: NodeTable, keys: frozenset[str]) -> IntVector:
    """Return a group number for each row. Rows with equal numbers have equal values for all keys."""
    groups: IntVector = np.zeros(len(nodes), dtype=np.int64)
    for key in sorted(keys):
        ids = nodes.label_ids(key).astype(np.int64) + 1
        width = int(ids.max(initial=0)) + 1
        _, groups = np.unique(groups * width + ids, return_inverse=True)
    return groups


def _where_topology(nodes: NodeTable, topology: TopologyMatcher | None) -> BoolVector:
    """Return the rows for which a storage class provisions volumes."""
    if topology is None:
        return np.zeros(len(nodes), dtype=np.bool_)
    if not topology.terms:
        return np.ones(len(nodes), dtype=np.bool_)
    return where_any(nodes, (term.requirements for term in topology.terms if not term.nothing))


def conjunctions(selectors: Iterable[NodeSelectorMatcher | None]) -> Iterator[Conjunction]:
    """Yield the alternatives of several node affinities as one list. Requirements on node fields are left out."""
    for selector in selectors:
        if selector is None:
            yield ()
        else:
            yield from (term.requirements for term in selector.terms if not term.errors)


def where_any(nodes: NodeTable, alternatives: Iterable[Conjunction]) -> BoolVector:
    """Return the rows where all requirements of any alternative hold.

    Alternatives with values of a single label, as those of local volumes, are evaluated together.
    """
    mask = np.zeros(len(nodes), dtype=np.bool_)
    values_by_key: dict[str, set[str]] = {}
    for alternative in dict.fromkeys(alternatives):
        if not alternative:
            return np.ones(len(nodes), dtype=np.bool_)
        if len(alternative) == 1 and alternative[0].operator == "In":
            values_by_key.setdefault(alternative[0].key, set()).update(alternative[0].values)
        else:
            mask |= _where_all(nodes, alternative)
    for key, values in values_by_key.items():
        mask |= nodes.where_label_in(key, values)
    return mask


def _where_all(nodes: NodeTable, requirements: Conjunction) -> BoolVector:
    mask = np.ones(len(nodes), dtype=np.bool_)
    for requirement in requirements:
        if requirement.operator == "In":
            mask &= nodes.where_label_in(requirement.key, requirement.values)
            continue
        fits = nodes.where_label(requirement.key, requirement.accepts)
        if requirement.accepts(None):
            fits |= nodes.label_ids(requirement.key) < 0
        mask &= fits
    return mask
