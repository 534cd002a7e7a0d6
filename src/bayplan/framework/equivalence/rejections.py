"""Rejections of an equivalence class: which filter rejects which rows, and why.

Called by `ClassEvaluation`: a count of reasons for the record of a placed pod, a whole diagnosis for an unschedulable
pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bayplan.framework.api.diagnosis import Diagnosis, FilterReasonRows, FilterResults
from bayplan.framework.api.status import Code
from bayplan.framework.equivalence.plugin_evaluation import PluginEvaluation
from bayplan.snapshot import BoolVector

RejectorVector = npt.NDArray[np.int8]
"""For each row the number of the first filter that rejects it."""


class RejectionCount(NamedTuple):
    """A reason of one plugin, and the number of rows that have it."""

    plugin: str
    text: str
    nodes: int


def count_rejections(filters: Sequence[PluginEvaluation], rejector: RejectorVector) -> Iterator[RejectionCount]:
    """Yield how many rows each filter rejects, by reason."""
    for number, evaluation in enumerate(filters):
        if not evaluation.rejects:
            continue
        rejected = rejector == number
        masks: dict[str, BoolVector] = {}
        for reason in evaluation.reasons:
            if reason.mask is not None:
                known = masks.get(reason.text)
                masks[reason.text] = reason.mask if known is None else known | reason.mask
        for text in sorted(masks):
            if nodes := int(np.count_nonzero(masks[text] & rejected)):
                yield RejectionCount(evaluation.role.name, text, nodes)


def build_diagnosis(names: list[str], filters: Sequence[PluginEvaluation], rejector: RejectorVector) -> Diagnosis:
    """Return the diagnosis that a full attempt would have built."""
    diagnosis = Diagnosis(names)
    results = FilterResults.empty(len(rejector))
    for number, evaluation in enumerate(filters):
        rejected = rejector == number
        if not rejected.any():
            continue
        name = evaluation.role.name
        results.codes[rejected] = evaluation.codes[rejected]
        results.plugins[name] = rejected
        for reason in evaluation.reasons:
            if reason.mask is not None and (rows := reason.mask & rejected).any():
                results.reasons.append(FilterReasonRows(name, reason.text, rows))
        diagnosis.unschedulable_plugins.add(name)
        if (evaluation.codes[rejected] == Code.PENDING).any():
            diagnosis.pending_plugins.add(name)
    diagnosis.verdicts = results
    return diagnosis
