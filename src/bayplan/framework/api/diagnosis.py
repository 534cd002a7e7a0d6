"""Why a pod fits no node: for every node the plugin, the code and the reasons, stored as masks.

The filters of one attempt build it. Statuses of nodes, counts of reasons and the FailedScheduling message are read
from the same record, so they cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bayplan.framework.api.status import SUCCESS, Code, Status
from bayplan.snapshot import BoolVector, IntVector

CodeVector = npt.NDArray[np.int8]
NOT_EVALUATED = -1
_BITS = 62  # reasons that fit into one int64 bit mask
_NO_STATUS = Status(Code.UNRESOLVABLE)


@dataclass(slots=True)
class FilterReasonRows:
    """One reason of one plugin, and the rows that have it."""

    plugin: str
    text: str
    mask: BoolVector


@dataclass(slots=True)
class FilterResults:
    """Result of all filters for each entry of a table."""

    codes: CodeVector
    reasons: list[FilterReasonRows] = field(default_factory=list)
    plugins: dict[str, BoolVector] = field(default_factory=dict)  # plugin -> entries that it rejected

    @classmethod
    def empty(cls, count: int) -> FilterResults:
        return cls(np.zeros(count, dtype=np.int8))

    @property
    def feasible(self) -> BoolVector:
        mask: BoolVector = self.codes == Code.SUCCESS
        return mask

    def status(self, position: int) -> Status:
        code = Code(int(self.codes[position]))
        if code is Code.SUCCESS:
            return SUCCESS
        plugin = next(name for name, mask in self.plugins.items() if mask[position])
        return Status(code, (reason.text for reason in self.reasons if reason.mask[position]), plugin=plugin)

    def statuses(self) -> list[Status]:
        """Return the status of every entry. Entries with the same reasons share one object."""
        patterns = combination_numbers([reason.mask for reason in self.reasons], len(self.codes))
        _, first, which = np.unique(patterns, return_index=True, return_inverse=True)
        distinct = [self.status(position) for position in first.tolist()]
        return [distinct[number] for number in which.tolist()]


def combination_numbers(masks: Sequence[BoolVector], count: int) -> IntVector:
    """A number for each row; equal for rows in the same masks."""
    keys = np.zeros(count, dtype=np.int64)
    if len(masks) > _BITS:
        _, keys = np.unique(np.stack(masks), axis=1, return_inverse=True)
        return keys.astype(np.int64)
    for number, mask in enumerate(masks):
        keys |= mask.astype(np.int64) << number
    return keys


class Diagnosis:
    """The statuses of all nodes for one pod; rows are those of the attempt's snapshot."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.verdicts: FilterResults = FilterResults(np.full(len(names), NOT_EVALUATED, dtype=np.int8))
        self.overrides: dict[int, Status] = {}  # rows whose status does not come from the common filter pass
        self.absent: Status = _NO_STATUS  # the status of every row that was not evaluated
        self.pre_filter_message = ""
        self.post_filter_message = ""
        self.eligible_rows: BoolVector | None = None  # the rows that the pod may be placed on; None: all rows
        self.unschedulable_plugins: set[str] = set()
        self.pending_plugins: set[str] = set()

    @property
    def node_count(self) -> int:
        return len(self.names)

    @property
    def eligible_count(self) -> int:
        """Number of nodes that the pod may be placed on."""
        return self.node_count if self.eligible_rows is None else int(np.count_nonzero(self.eligible_rows))

    def record(self, status: Status) -> None:
        """Record the rejecting plugin for the scheduling queue."""
        if status.rejected and status.plugin:
            self.unschedulable_plugins.add(status.plugin)
            if status.code is Code.PENDING:
                self.pending_plugins.add(status.plugin)

    def record_rejectors(self) -> None:
        """Record every plugin that rejected a row in the common filter pass."""
        common = np.ones(self.node_count, dtype=np.bool_)
        common[list(self.overrides)] = False
        for plugin, mask in self.verdicts.plugins.items():
            codes = set(np.unique(self.verdicts.codes[mask & common]).tolist()) - {NOT_EVALUATED, int(Code.ERROR)}
            if codes:
                self.unschedulable_plugins.add(plugin)
            if int(Code.PENDING) in codes:
                self.pending_plugins.add(plugin)

    def add(self, other: Diagnosis) -> None:
        """Merge the results of other rows."""
        looked_at = other.verdicts.codes != NOT_EVALUATED
        self.verdicts.codes[looked_at] = other.verdicts.codes[looked_at]
        self.verdicts.reasons += other.verdicts.reasons
        for plugin, mask in other.verdicts.plugins.items():
            known = self.verdicts.plugins.get(plugin)
            self.verdicts.plugins[plugin] = mask if known is None else known | mask
        self.overrides |= other.overrides
        self.unschedulable_plugins |= other.unschedulable_plugins
        self.pending_plugins |= other.pending_plugins

    def override(self, row: int, status: Status) -> None:
        """Set the status of one row that was evaluated separately."""
        self.overrides[row] = status
        self.record(status)

    def status(self, row: int) -> Status:
        override = self.overrides.get(row)
        if override is not None:
            return override
        if self.verdicts.codes[row] == NOT_EVALUATED:
            return self.absent
        return self.verdicts.status(row)

    def explicit_rows(self) -> BoolVector:
        """Return the rows with a status of their own."""
        rows: BoolVector = self.verdicts.codes != NOT_EVALUATED
        rows[list(self.overrides)] = True
        return rows

    def rows_with(self, code: Code) -> BoolVector:
        """Return the rows whose status has this code. Rows without a status count with the absent status."""
        rows: BoolVector = self.verdicts.codes == code
        if self.absent.code is code:
            rows |= self.verdicts.codes == NOT_EVALUATED
        for row, status in self.overrides.items():
            rows[row] = status.code is code
        return rows

    def histogram(self) -> Counter[str]:
        """Count the nodes of every reason."""
        counts: Counter[str] = Counter()
        for reason in self.reasons():
            counts[reason.text] += int(np.count_nonzero(reason.mask))
        return +counts

    def reasons(self) -> list[FilterReasonRows]:
        """Return every reason with its rows: of the common pass, of overridden rows and of rows that were not
        evaluated.
        """
        found = [*self.verdicts.reasons]
        if self.overrides:
            common = np.ones(self.node_count, dtype=np.bool_)
            common[list(self.overrides)] = False
            found = [FilterReasonRows(each.plugin, each.text, each.mask & common) for each in found]
            found += self._reasons_of_overrides()
        # A row that passed every filter, and that an extender left out without a reason, counts as not evaluated.
        unseen = ~self.explicit_rows() | self.rows_with(Code.SUCCESS)
        if self.eligible_rows is not None:
            unseen &= self.eligible_rows
        return found + [FilterReasonRows(self.absent.plugin, text, unseen) for text in self.absent.reasons]

    def _reasons_of_overrides(self) -> Iterator[FilterReasonRows]:
        rows: dict[int, list[int]] = {}  # many rows share few statuses
        statuses: dict[int, Status] = {}
        for row, status in self.overrides.items():
            rows.setdefault(id(status), []).append(row)
            statuses[id(status)] = status
        for number, status in statuses.items():
            if status.code is Code.SUCCESS:
                continue
            mask = np.zeros(self.node_count, dtype=np.bool_)
            mask[rows[number]] = True
            for text in status.reasons:
                yield FilterReasonRows(status.plugin, text, mask)

    def sentence(self) -> str:
        """Return the message of the FailedScheduling event."""
        head = f"0/{self.eligible_count} nodes are available:"
        if self.pre_filter_message:
            head += f" {self.pre_filter_message}."
        else:
            parts = sorted(f"{count} {text}" for text, count in self.histogram().items())
            if parts:
                head += f" {', '.join(parts)}."
        return f"{head} {self.post_filter_message}" if self.post_filter_message else head

    def by_node(self) -> Iterator[tuple[str, Status]]:
        """Yield every evaluated node with its status. Slow; for output, not for the hot path."""
        explicit = self.explicit_rows()
        for row, name in enumerate(self.names):
            if explicit[row]:
                yield name, self.status(row)
