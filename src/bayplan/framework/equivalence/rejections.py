"""Who of the filters rejects which rows, and why, read off parts that pods of one kind share.

Asked by `Standing`: a count of reasons for the record of a pod that was placed, a whole diagnosis for one that was not.
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
    """A reason of one plugin, and how many rows it holds for."""

    plugin: str
    text: str
    nodes: int


def count_rejections(filters: Sequence[PluginEvaluation], owner: RejectorVector) -> Iterator[RejectionCount]:
    """Who rejects how many rows, and why."""
    for number, part in enumerate(filters):
        if not part.rejects:
            continue
        mine = owner == number
        masks: dict[str, BoolVector] = {}
        for given in part.reasons:
            if given.mask is not None:
                known = masks.get(given.text)
                masks[given.text] = given.mask if known is None else known | given.mask
        for text in sorted(masks):
            if nodes := int(np.count_nonzero(masks[text] & mine)):
                yield RejectionCount(part.role.name, text, nodes)


def build_diagnosis(names: list[str], filters: Sequence[PluginEvaluation], owner: RejectorVector) -> Diagnosis:
    """The diagnosis that a full attempt would have made."""
    diagnosis = Diagnosis(names)
    verdicts = FilterResults.empty(len(owner))
    for number, part in enumerate(filters):
        mine = owner == number
        if not mine.any():
            continue
        name = part.role.name
        verdicts.codes[mine] = part.codes[mine]
        verdicts.plugins[name] = mine
        for given in part.reasons:
            if given.mask is not None and (held := given.mask & mine).any():
                verdicts.reasons.append(FilterReasonRows(name, given.text, held))
        diagnosis.unschedulable_plugins.add(name)
        if (part.codes[mine] == Code.PENDING).any():
            diagnosis.pending_plugins.add(name)
    diagnosis.verdicts = verdicts
    return diagnosis
