"""What diagnoses and suggestions contribute to an answer: the part that explainers of both engines share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from bayplan.explain.suggestions import Suggestions
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.snapshot import BoolVector
from bayplan.telemetry.answers import MOST_NAMED, PLACED, RECORD, Answer, Refused, candidates_of, choice_of
from bayplan.telemetry.decision_text import why
from bayplan.telemetry.decisions import DecisionRecord

NOTHING_HELPS = (
    "no lower request, toleration, dropped selector term, looser spread constraint, freed host port, removed gate, "
    "eviction from one node or missing object would make it fit, alone or together"
)
NOT_ALONE = "no single change is enough"
NOTHING_FOUND = "nothing that was tried helps, alone or together; there was more to try, so something may"
NONE_FOUND_ALONE = "no single change that was tried is enough"
"""The same where not everything was tried: that nothing helps is said only where it is certain."""
NO_NODE = "there is no node in the cluster"
NO_RECORD = "the record of the decision is no longer kept"


def refusals_in(diagnosis: Diagnosis) -> tuple[Refused, ...]:
    """Every reason with the nodes that it holds for, most frequent first."""
    masks: dict[tuple[str, str], BoolVector] = {}
    for reason in diagnosis.reasons():
        key = reason.plugin, reason.text
        masks[key] = masks[key] | reason.mask if key in masks else reason.mask
    found = []
    for (plugin, text), mask in masks.items():
        rows = np.flatnonzero(mask)
        names = tuple(diagnosis.names[row] for row in rows[:MOST_NAMED].tolist())
        found.append(Refused(plugin=plugin, text=text, nodes=len(rows), names=names))
    return tuple(sorted((each for each in found if each.nodes), key=lambda each: -each.nodes))


def refused_in(record: DecisionRecord, names: Sequence[str]) -> tuple[Refused, ...]:
    """The reasons of a record; `names`: the nodes of the rows that its bits speak of, none where that is not known."""
    found = []
    for reason in record.reasons:
        rows: list[int] = []
        if names and reason.bits:
            bits = np.unpackbits(np.frombuffer(reason.bits, dtype=np.uint8), count=len(names))
            rows = np.flatnonzero(bits)[:MOST_NAMED].tolist()
        named = tuple(names[row] for row in rows)
        found.append(Refused(plugin=reason.plugin, text=reason.text, nodes=reason.nodes, names=named))
    return tuple(found)


def as_recorded(answer: Answer, record: DecisionRecord, reasons: tuple[Refused, ...]) -> Answer:
    """The answer with what was decided."""
    best = record.best
    return replace(
        answer,
        source=RECORD,
        decided_at=record.at,
        nodes=record.nodes,
        feasible=record.feasible,
        best=candidates_of(best),
        choice=choice_of(best),
        reasons=reasons,
        nominated=record.nominated,
        victims=record.victims,
    )


def placed_as_recorded(answer: Answer, record: DecisionRecord) -> Answer:
    """Why a pod went to the node that it is on."""
    told = as_recorded(answer, record, refused_in(record, ()))
    return replace(told, sentence=f"{where(answer)}: {why(record)}")


def where(answer: Answer) -> str:
    """The pod and its node, in words that do not say more than is true: it may still have to get there."""
    return f"{answer.pod} {'is on' if answer.state == PLACED else 'is to go to'} {answer.node}"


def with_suggestions(answer: Answer, found: Suggestions, *, has_nodes: bool) -> Answer:
    """The answer with what would help, or why nothing is suggested."""
    if not has_nodes:
        return replace(answer, no_change=NO_NODE)
    if found.fits:
        return replace(answer, closest=found.fits, no_change=f"none is needed: it fits {found.fits} now")
    nothing, not_alone = (NOTHING_FOUND, NONE_FOUND_ALONE) if found.cut_short else (NOTHING_HELPS, NOT_ALONE)
    no_change = "" if found.alone else not_alone if found.together else nothing
    return replace(answer, closest=found.closest, changes=found.alone, together=found.together, no_change=no_change)
