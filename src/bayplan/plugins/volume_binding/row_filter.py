"""On which rows can a pod's volumes be had? VolumeBinding's questions, asked of many rows at once.

A single claim that waits for a node, by far the most common case, is judged on label columns alone. Several claims
compete for the same volumes, so they are decided by `VolumeFinder`, once for all rows that agree in the labels that
matter; where volumes are local that is once a row, on the rows that are left.
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
from bayplan.volumes.binding import (
    AFFINITY_CONFLICT,
    BIND_CONFLICT,
    NOT_ENOUGH_SPACE,
    VOLUME_MISSING,
    VolumeFinder,
)
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.volume_matcher import CandidateVolumes, ProvisioningCheck

Conjunction = tuple[Requirement, ...]


class _NodeAnswer(NamedTuple):
    """Why a node is out: a reason, or the text of what broke."""

    text: str
    broken: bool = False


class RowRejections:
    """Reasons by row, told in kube-scheduler's order; a row that broke has no other reason."""

    def __init__(self, count: int) -> None:
        self._masks = {
            reason: np.zeros(count, dtype=np.bool_)
            for reason in (AFFINITY_CONFLICT, BIND_CONFLICT, NOT_ENOUGH_SPACE, VOLUME_MISSING)
        }
        self._faults: dict[str, BoolVector] = {}
        self.broken: BoolVector = np.zeros(count, dtype=np.bool_)

    def add_answer(self, answer: _NodeAnswer, mask: BoolVector) -> None:
        if answer.broken:
            self.add_error(answer.text, mask)
        else:
            self.add(answer.text, mask)

    def add(self, reason: str, mask: BoolVector) -> None:
        self._masks[reason] |= mask

    def add_error(self, text: str, mask: BoolVector) -> None:
        fresh = mask & ~self.broken
        self._faults[text] = self._faults[text] | fresh if text in self._faults else fresh
        self.broken = self.broken | fresh

    def rejections(self) -> Iterator[Rejection]:
        for text, mask in self._faults.items():
            yield Rejection(mask, text, code=Code.ERROR)
        for reason, mask in self._masks.items():
            yield Rejection(mask & ~self.broken, reason, resolvable=False)


def decide_single_delayed_claim(
    candidates: CandidateVolumes, provisioning: ProvisioningCheck, nodes: NodeTable, verdict: RowRejections
) -> None:
    """Decide about a single claim that waits for a node, on all rows at once."""
    try:
        candidates.check()
    except VolumeError as fault:
        verdict.add_error(str(fault), np.ones(len(nodes), dtype=np.bool_))
        return
    unserved = ~where_any(nodes, conjunctions(candidates.reaches()))
    allowed = _where_topology(nodes, provisioning.topology)
    verdict.add(BIND_CONFLICT, unserved & ~allowed)
    if provisioning.pools is not None:
        room = where_any(nodes, (pool.requirements for pool in provisioning.pools if not pool.nothing))
        verdict.add(NOT_ENOUGH_SPACE, unserved & allowed & ~room)


def decide_delayed_claims(decider: VolumeFinder, nodes: NodeTable, verdict: RowRejections) -> None:
    """Decide about the claims that wait for a node, once a group of rows that cannot differ."""
    open_rows = ~verdict.broken
    selected = decider.selected_nodes
    if selected:
        chosen = nodes.where_named(selected if len(selected) == 1 else ())
        verdict.add(BIND_CONFLICT, ~chosen)
        open_rows &= chosen
    left = nodes.restricted_to(open_rows)
    _, first, members = np.unique(_groups(left, decider.label_keys()), return_index=True, return_inverse=True)
    answers = [_answer(decider, left[position]) for position in first.tolist()]
    for answer in dict.fromkeys(answers):
        if answer is None:
            continue
        agreeing = np.fromiter((other == answer for other in answers), dtype=np.bool_, count=len(answers))
        mask = np.zeros(len(nodes), dtype=np.bool_)
        mask[open_rows] = agreeing[members]
        verdict.add_answer(answer, mask)


def _answer(decider: VolumeFinder, node: NodeInfo) -> _NodeAnswer | None:
    """What one node says about the claims that wait; None where nothing speaks against it."""
    try:
        reason, _ = decider.find_pod_volumes(node.name, node.labels)
    except VolumeError as fault:
        return _NodeAnswer(str(fault), broken=True)
    return _NodeAnswer(reason) if reason is not None else None


def _groups(nodes: NodeTable, keys: frozenset[str]) -> IntVector:
    """A number a row; rows with equal numbers have equal values under all the keys."""
    groups: IntVector = np.zeros(len(nodes), dtype=np.int64)
    for key in sorted(keys):
        ids = nodes.label_ids(key).astype(np.int64) + 1
        width = int(ids.max(initial=0)) + 1
        _, groups = np.unique(groups * width + ids, return_inverse=True)
    return groups


def _where_topology(nodes: NodeTable, topology: TopologyMatcher | None) -> BoolVector:
    """The rows for which a class makes volumes."""
    if topology is None:
        return np.zeros(len(nodes), dtype=np.bool_)
    if not topology.terms:
        return np.ones(len(nodes), dtype=np.bool_)
    return where_any(nodes, (term.requirements for term in topology.terms if not term.nothing))


def conjunctions(selectors: Iterable[NodeSelectorMatcher | None]) -> Iterator[Conjunction]:
    """Several affinities, any of which will do, as one list of alternatives. Fields of nodes are left out."""
    for selector in selectors:
        if selector is None:
            yield ()
        else:
            yield from (term.requirements for term in selector.terms if not term.errors)


def where_any(nodes: NodeTable, alternatives: Iterable[Conjunction]) -> BoolVector:
    """The rows where all requirements of some alternative hold.

    Alternatives that only name values of one label, as those of local volumes do, are asked together.
    """
    mask = np.zeros(len(nodes), dtype=np.bool_)
    named: dict[str, set[str]] = {}
    for alternative in dict.fromkeys(alternatives):
        if not alternative:
            return np.ones(len(nodes), dtype=np.bool_)
        if len(alternative) == 1 and alternative[0].operator == "In":
            named.setdefault(alternative[0].key, set()).update(alternative[0].values)
        else:
            mask |= _where_all(nodes, alternative)
    for key, values in named.items():
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
