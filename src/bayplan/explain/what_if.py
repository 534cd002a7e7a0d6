"""Where would a pod fit as it is, and as it might be? Filters are asked, and nothing is changed.

Asked by `suggesting`, for people who want to know why a pod waits. Questions go to the plugins that decide; whoever
makes a `FilterTrials` sees to it that they enter nobody's statistics. Extenders are not asked: what they would say of a
pod that does not exist is no business of theirs. Cost of a look: that of one attempt whose pod shares nothing with
others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.status import Code, Status
from bayplan.framework.runtime.filtering import FilterPoints
from bayplan.objects.core import Pod
from bayplan.snapshot import BoolVector, Catalog, NodeColumns, PodInfo, Snapshot

ShortageFunction = Callable[[Pod, Mapping[str, int], Mapping[str, int], NodeColumns], Callable[[int], dict[str, int]]]
"""Of a pod, what it asks for and the least that it can ask for: how much less of each it would have to be, by row."""


@dataclass(frozen=True, slots=True)
class FilterReport:
    """What filters say of a pod on every node, and whether it may be tried at all; to be read before the cluster
    moves on."""

    cycle: Cycle
    pre_enqueue_status: Status
    diagnosis: Diagnosis

    @property
    def feasible(self) -> BoolVector:
        """Rows that would take the pod if it were tried."""
        return self.diagnosis.rows_with(Code.SUCCESS)

    @property
    def fits(self) -> bool:
        return self.pre_enqueue_status.ok and bool(self.feasible.any())

    @property
    def nodes(self) -> list[str]:
        """The nodes that would take the pod."""
        names = self.diagnosis.names
        return [names[row] for row in np.flatnonzero(self.feasible).tolist()]

    @property
    def node(self) -> str:
        """The first of them; empty where there is none."""
        rows = self.feasible
        return self.diagnosis.names[int(rows.argmax())] if rows.any() else ""


@dataclass(slots=True)
class SearchProgress:
    """Whether a search has looked at everything that it could find something in."""

    truncated: bool = False


class FilterTrials:
    """Asks filters about pods that are, and about pods that might be. `pre_enqueue_status`: whether a pod may be tried
    at all."""

    def __init__(
        self,
        filters: FilterPoints,
        gate: Callable[[Pod], Status],
        snapshot: Callable[[], Snapshot],
        now: Callable[[], datetime],
        shortages: ShortageFunction | None = None,
    ) -> None:
        """`shortages`: what of its requests a pod would have to give up on a row, where room is counted otherwise than
        by what nodes have and pods ask for."""
        self.filters = filters
        self.gate = gate
        self.shortages = shortages
        self._snapshot = snapshot
        self.now = now

    @property
    def catalog(self) -> Catalog:
        return self._snapshot().catalog

    def run_filters(self, pod: Pod) -> FilterReport:
        """Ask about all nodes of this moment."""
        snapshot = self._snapshot()
        gate = self.gate(pod)
        cycle = Cycle(PodInfo(pod), snapshot)
        outcome = self.filters.pre_filter(cycle)
        if outcome.status.ok or outcome.status.rejected:
            return FilterReport(cycle, gate, self.filters.run_filters(cycle, outcome))
        broken = Diagnosis(snapshot.nodes.names)
        broken.absent = outcome.status
        broken.pre_filter_message = outcome.status.message
        return FilterReport(cycle, gate, broken)
