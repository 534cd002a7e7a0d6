"""Parts of an answer that the explainers of both engines share: rejections, decisions and suggestions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from bayplan.explain.suggestions import Suggestions
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.snapshot import BoolVector
from bayplan.telemetry.answers import MAX_NAMES, PLACED, RECORD, Answer, NodeRejection, ranked_nodes, score_margin
from bayplan.telemetry.decision_text import decision_sentence
from bayplan.telemetry.decisions import DecisionRecord

NO_CHANGE_HELPS = (
    "no lower request, toleration, dropped selector term, looser spread constraint, freed host port, removed gate, "
    "eviction from one node or missing object would make it fit, alone or together"
)
NO_SINGLE_CHANGE_IS_ENOUGH = "no single change is enough"
NO_CHANGE_FOUND = "nothing that was tried helps, alone or together; there was more to try, so something may"
NO_SINGLE_CHANGE_FOUND = "no single change that was tried is enough"
"""The texts for an incomplete search: only a complete one proves that nothing helps."""
NO_NODES_IN_CLUSTER = "there is no node in the cluster"
NO_RECORD = "the record of the decision is no longer kept"


def rejections_of_diagnosis(diagnosis: Diagnosis) -> tuple[NodeRejection, ...]:
    """Every reason with its nodes, most frequent first."""
    masks: dict[tuple[str, str], BoolVector] = {}
    for reason in diagnosis.reasons():
        key = reason.plugin, reason.text
        masks[key] = masks[key] | reason.mask if key in masks else reason.mask
    found = []
    for (plugin, text), mask in masks.items():
        rows = np.flatnonzero(mask)
        names = tuple(diagnosis.names[row] for row in rows[:MAX_NAMES].tolist())
        found.append(NodeRejection(plugin=plugin, text=text, nodes=len(rows), names=names))
    return tuple(sorted((each for each in found if each.nodes), key=lambda each: -each.nodes))


def rejections_of_record(record: DecisionRecord, names: Sequence[str]) -> tuple[NodeRejection, ...]:
    """The reasons of a record. `names`: node names of the rows that its bits refer to; empty if unknown."""
    found = []
    for reason in record.reasons:
        rows: list[int] = []
        if names and reason.bits:
            bits = np.unpackbits(np.frombuffer(reason.bits, dtype=np.uint8), count=len(names))
            rows = np.flatnonzero(bits)[:MAX_NAMES].tolist()
        rejected = tuple(names[row] for row in rows)
        found.append(NodeRejection(plugin=reason.plugin, text=reason.text, nodes=reason.nodes, names=rejected))
    return tuple(found)


def with_decision(answer: Answer, record: DecisionRecord, reasons: tuple[NodeRejection, ...]) -> Answer:
    best = record.best
    return replace(
        answer,
        source=RECORD,
        decided_at=record.at,
        nodes=record.nodes,
        feasible=record.feasible,
        best=ranked_nodes(best),
        choice=score_margin(best),
        reasons=reasons,
        nominated=record.nominated,
        victims=record.victims,
    )


def with_placement(answer: Answer, record: DecisionRecord) -> Answer:
    """The answer with the reason why the pod got its node."""
    answer = with_decision(answer, record, rejections_of_record(record, ()))
    return replace(answer, sentence=f"{location_text(answer)}: {decision_sentence(record)}")


def location_text(answer: Answer) -> str:
    """The pod and its node. A pod that is not bound yet "is to go to" its node."""
    return f"{answer.pod} {'is on' if answer.state == PLACED else 'is to go to'} {answer.node}"


def with_suggestions(answer: Answer, found: Suggestions, *, has_nodes: bool) -> Answer:
    """The answer with the changes that would help, or the reason why there are none."""
    if not has_nodes:
        return replace(answer, no_change=NO_NODES_IN_CLUSTER)
    if found.fits:
        return replace(answer, closest=found.fits, no_change=f"none is needed: it fits {found.fits} now")
    nothing, not_alone = (
        (NO_CHANGE_FOUND, NO_SINGLE_CHANGE_FOUND) if found.truncated else (NO_CHANGE_HELPS, NO_SINGLE_CHANGE_IS_ENOUGH)
    )
    no_change = "" if found.single_changes else not_alone if found.combined_changes else nothing
    return replace(
        answer,
        closest=found.closest,
        changes=found.single_changes,
        together=found.combined_changes,
        no_change=no_change,
    )
