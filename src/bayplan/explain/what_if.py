"""Runs the filters on a pod, or on a changed copy of it, without changing anything.

Called by `suggestions`. The filters are the deciding plugins themselves; the creator of a `FilterTrials` makes sure
that the calls enter no statistics. Extenders are not called, because they would get pods that do not exist. Cost of a
filter run: that of one attempt for a pod without a shared evaluation."""

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
"""For a pod, its requests and their lower limits: by how much each request exceeds what a row has, by row."""


@dataclass(frozen=True, slots=True)
class FilterReport:
    """The filters' verdicts on a pod for every node, and whether the pod may be tried at all. Valid until the cluster
    changes."""

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
        """The first feasible node; empty if there is none."""
        rows = self.feasible
        return self.diagnosis.names[int(rows.argmax())] if rows.any() else ""


@dataclass(slots=True)
class SearchProgress:
    """Whether a search was complete."""

    truncated: bool = False


class FilterTrials:
    """Runs filters on existing and on changed pods. `gate`: whether a pod may be tried at all."""

    def __init__(
        self,
        filters: FilterPoints,
        gate: Callable[[Pod], Status],
        snapshot: Callable[[], Snapshot],
        now: Callable[[], datetime],
        shortages: ShortageFunction | None = None,
    ) -> None:
        """`shortages`: computes by how much requests exceed a row, if capacity is not simply allocatable minus
        requests."""
        self.filters = filters
        self.gate = gate
        self.shortages = shortages
        self._snapshot = snapshot
        self.now = now

    @property
    def catalog(self) -> Catalog:
        return self._snapshot().catalog

    def run_filters(self, pod: Pod) -> FilterReport:
        """Run the filters on all current nodes."""
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
