"""How many nodes to look at, and from where.

By default all of them: whole columns make that cheap, and the best node is then really the best. An explicit
`percentageOfNodesToScore` samples as kube-scheduler does, and so does a profile where looking is not cheap (an
extender, a score plugin that only knows one node at a time) unless the configuration says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bayplan.framework.diagnosis import NOT_LOOKED_AT, Diagnosis
from bayplan.framework.status import Code
from bayplan.snapshot import RowVector

FEWEST_NODES = 100
_SMALLEST_PERCENTAGE = 5


def nodes_to_find(count: int, percentage: int) -> int:
    """How many feasible nodes are enough among `count` candidates; percentage 0 means adaptive."""
    if count < FEWEST_NODES:
        return count
    if percentage == 0:
        percentage = max(_SMALLEST_PERCENTAGE, 50 - count // 125)
    return min(count, max(FEWEST_NODES, count * percentage // 100))


@dataclass(slots=True)
class Sampler:
    """Where the next search starts. kube-scheduler's rotating index, one a scheduler."""

    start: int = 0

    def cut(self, diagnosis: Diagnosis, order: RowVector, wanted: int) -> RowVector:
        """The first `wanted` feasible rows from the start on; rows from the next feasible one on were not looked at."""
        codes = diagnosis.verdicts.codes
        candidates: RowVector = order[codes[order] != NOT_LOOKED_AT]
        if not len(candidates):
            return candidates
        turn = self.start % len(candidates)
        rotated = np.concatenate((candidates[turn:], candidates[:turn]))
        feasible = diagnosis.rows_with(Code.SUCCESS)[rotated]
        hits = np.flatnonzero(feasible)
        seen = len(rotated) if len(hits) <= wanted else int(hits[wanted])
        self.advance(seen, len(order))
        self._forget(diagnosis, rotated[seen:])
        chosen: RowVector = rotated[:seen][feasible[:seen]]
        return chosen

    def advance(self, looked_at: int, nodes: int) -> None:
        self.start = (self.start + looked_at) % max(nodes, 1)

    @staticmethod
    def _forget(diagnosis: Diagnosis, rows: RowVector) -> None:
        diagnosis.verdicts.codes[rows] = NOT_LOOKED_AT
        for reason in diagnosis.verdicts.reasons:
            reason.mask[rows] = False
        for mask in diagnosis.verdicts.plugins.values():
            mask[rows] = False
        for row in rows.tolist():
            diagnosis.overrides.pop(row, None)
        kept = {plugin for plugin, mask in diagnosis.verdicts.plugins.items() if mask.any()}
        kept |= {status.plugin for status in diagnosis.overrides.values()}
        gone = diagnosis.verdicts.plugins.keys() - kept
        diagnosis.unschedulable_plugins -= gone
        diagnosis.pending_plugins -= gone
