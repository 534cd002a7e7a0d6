"""Builds the `DecisionRecord` of a scheduling decision. The only place that chooses what a record contains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from bayplan.framework.api.diagnosis import Diagnosis, FilterReasonRows
from bayplan.framework.equivalence.class_evaluation import ClassEvaluation
from bayplan.framework.equivalence.rejections import RejectionCount
from bayplan.framework.runtime.scoring import top_positions
from bayplan.objects.core import Pod
from bayplan.scheduler.cycle.schedule_result import SchedulingDecision
from bayplan.telemetry.decisions import (
    BEST_NODES,
    MAX_RECORD_BYTES,
    NO_RANKING,
    REASON_BYTES,
    DecisionRecord,
    Ranking,
    ReasonCount,
    text_bytes,
)

T = TypeVar("T")

_MAX_MESSAGE_BYTES = 1024  # the limit of an event's note
_MAX_REASON_BYTES = 256
_VICTIMS_BYTES = 768
_BEST_BYTES = 2560
_REASONS_BYTES = 640  # of a pod that was placed: its reasons are rarely read


def decision_record(pod: Pod, decision: SchedulingDecision, at: datetime, layout: int = 0) -> DecisionRecord:
    """The record of a decision. `layout`: layout number of the snapshot that the decision was made on."""
    if decision.class_evaluation is not None and decision.node is not None:
        return _shared_record(pod, decision.node, decision.row, decision.class_evaluation, at)
    diagnosis = decision.diagnosis
    record = DecisionRecord(
        at=at,
        pod=pod.key,
        uid=pod.uid,
        profile=pod.scheduler_name,
        node=decision.node,
        outcome=_outcome(decision),
        message=_truncate(decision.message),
        nodes=diagnosis.eligible_count if diagnosis else 0,
        feasible=len(decision.nodes) if decision.nodes is not None else 0,
        ranking=_best(decision),
        reasons=_reasons(diagnosis, _REASONS_BYTES) if diagnosis and decision.node is not None else (),
        nominated=decision.nominated_node_name or "",
        victims=tuple(_take_within_bytes(_VICTIMS_BYTES, decision.victims, text_bytes)),
    )
    if diagnosis is None or decision.node is not None:
        return record
    reasons = _reasons(diagnosis, MAX_RECORD_BYTES - record.size_bytes, with_bits=True)
    return replace(record, reasons=reasons, layout=layout)


def _shared_record(pod: Pod, node: str, row: int, class_evaluation: ClassEvaluation, at: datetime) -> DecisionRecord:
    """The same for a decision that was made from the shared evaluation of an equivalence class."""
    names = class_evaluation.snapshot.nodes.names
    ranking = NO_RANKING
    if class_evaluation.candidates > 1:
        rows = class_evaluation.ranking(row, BEST_NODES)
        best = tuple([names[row] for row in rows])
        ranking = Ranking.fit(_BEST_BYTES, best, class_evaluation.scoring, class_evaluation.scores_at(rows))
    reasons = _shared_reasons(class_evaluation.rejections())
    return DecisionRecord(
        at,
        pod.key,
        pod.metadata.uid,
        pod.scheduler_name,
        node,
        "scheduled",
        "",
        nodes=len(names),
        feasible=class_evaluation.candidates,
        ranking=ranking,
        reasons=reasons,
    )


@lru_cache(maxsize=64)
def _shared_reasons(rejections: tuple[RejectionCount, ...]) -> tuple[ReasonCount, ...]:
    """Rejections seldom change between two pods of one class, so the result is cached."""
    ordered = sorted(rejections, key=lambda each: -each.nodes)
    counted = (ReasonCount(each.plugin, each.text[:_MAX_REASON_BYTES], each.nodes) for each in ordered)
    return tuple(_take_within_bytes(_REASONS_BYTES, counted, lambda each: text_bytes(each.text) + REASON_BYTES))


def _truncate(message: str) -> str:
    if text_bytes(message) <= _MAX_MESSAGE_BYTES:
        return message
    return message.encode()[:_MAX_MESSAGE_BYTES].decode(errors="ignore")


def _take_within_bytes(budget: int, items: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
    for item in items:
        budget -= size(item)
        if budget < 0:
            return
        yield item


def _outcome(decision: SchedulingDecision) -> str:
    if decision.node is not None:
        return "scheduled"
    return "unschedulable" if decision.status.rejected else "error"


def _best(decision: SchedulingDecision) -> Ranking:
    nodes, scores = decision.nodes, decision.scores
    if nodes is None or scores is None or decision.node is None:
        return NO_RANKING
    chosen = nodes.columns.index[decision.node]
    if not nodes.is_whole:
        chosen = int((nodes.rows == chosen).argmax())
    positions = top_positions(scores.total, chosen, BEST_NODES)  # the chosen node comes first among equals
    numbers = np.array([vector[positions] for vector in (scores.total, *scores.by_plugin.values())], dtype=np.int64)
    rows = positions if nodes.is_whole else nodes.rows[positions].tolist()
    names = tuple(nodes.columns.names[row] for row in rows)
    return Ranking.fit(_BEST_BYTES, names, tuple(scores.by_plugin), numbers.T.tobytes())


def _reasons(diagnosis: Diagnosis, budget: int, *, with_bits: bool = False) -> tuple[ReasonCount, ...]:
    """The most frequent reasons that fit the budget; then node bit masks for as many of them as still fit."""
    counted = [(int(np.count_nonzero(reason.mask)), reason) for reason in _distinct_reasons(diagnosis.reasons())]
    ordered = sorted((each for each in counted if each[0]), key=lambda each: -each[0])
    selected = list(_take_within_bytes(budget, ordered, lambda each: _reason_bytes(each[1])))
    left = budget - sum(_reason_bytes(reason) for _, reason in selected)
    marked = left // (diagnosis.node_count // 8 + 1) if with_bits else 0
    bits = [np.packbits(reason.mask).tobytes() for _, reason in selected[:marked]]
    return tuple(
        ReasonCount(reason.plugin, reason.text[:_MAX_REASON_BYTES], count, bits[place] if place < len(bits) else b"")
        for place, (count, reason) in enumerate(selected)
    )


def _distinct_reasons(reasons: Iterable[FilterReasonRows]) -> Iterator[FilterReasonRows]:
    """Each reason text of a plugin once. Plugins keep their order; the texts of a plugin are sorted."""
    plugins: dict[str, dict[str, FilterReasonRows]] = {}
    for reason in reasons:
        texts = plugins.setdefault(reason.plugin, {})
        known = texts.get(reason.text)
        texts[reason.text] = (
            reason if known is None else FilterReasonRows(reason.plugin, reason.text, known.mask | reason.mask)
        )
    for texts in plugins.values():
        yield from (texts[text] for text in sorted(texts))


def _reason_bytes(reason: FilterReasonRows) -> int:
    return text_bytes(reason.text[:_MAX_REASON_BYTES]) + REASON_BYTES
