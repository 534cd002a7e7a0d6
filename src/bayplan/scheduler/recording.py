"""Turns a decision into its record: the one place that chooses what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from bayplan.framework.diagnosis import Diagnosis, Reason
from bayplan.framework.standing import Standing
from bayplan.objects.core import Pod
from bayplan.scheduler.cycle import Decision
from bayplan.telemetry.decisions import (
    BEST_NODES,
    LARGEST_RECORD_BYTES,
    REASON_BYTES,
    DecisionRecord,
    ReasonCount,
    ScoredNode,
    text_bytes,
)

T = TypeVar("T")

_LONGEST_MESSAGE = 1024  # as an event has it
_LONGEST_REASON = 256
_VICTIMS_BYTES = 768
_BEST_BYTES = 2560
_REASONS_BYTES = 640  # of a pod that was placed: nobody asks for more


def record_of(pod: Pod, decision: Decision, at: datetime) -> DecisionRecord:
    """What to remember of a decision."""
    if decision.standing is not None and decision.node is not None:
        return _shared_record(pod, decision.node, decision.standing, at)
    diagnosis = decision.diagnosis
    record = DecisionRecord(
        at=at,
        pod=pod.key,
        uid=pod.uid,
        profile=pod.scheduler_name,
        node=decision.node,
        outcome=_outcome(decision),
        message=_cut(decision.message),
        nodes=diagnosis.node_count if diagnosis else 0,
        feasible=len(decision.nodes) if decision.nodes is not None else 0,
        best=tuple(_within(_BEST_BYTES, _best(decision), lambda scored: scored.size_bytes)),
        reasons=_reasons(diagnosis, _REASONS_BYTES) if diagnosis and decision.node is not None else (),
        nominated=decision.nominate or "",
        victims=tuple(_within(_VICTIMS_BYTES, decision.victims, text_bytes)),
    )
    if diagnosis is None or decision.node is not None:
        return record
    reasons = _reasons(diagnosis, LARGEST_RECORD_BYTES - record.size_bytes, with_bits=True)
    return replace(record, reasons=reasons)


def _shared_record(pod: Pod, node: str, standing: Standing, at: datetime) -> DecisionRecord:
    """The same for a decision that was read off what pods of one kind share."""
    names = standing.snapshot.nodes.names
    ranking = standing.ranking(standing.snapshot.nodes.index[node], BEST_NODES) if standing.candidates > 1 else ()
    best = (ScoredNode(names[row], total, tuple(parts)) for row, total, parts in ranking)
    reasons = sorted(standing.rejections(), key=lambda each: -each.nodes)
    counted = (ReasonCount(each.plugin, each.text[:_LONGEST_REASON], each.nodes) for each in reasons)
    return DecisionRecord(
        at=at,
        pod=pod.key,
        uid=pod.uid,
        profile=pod.scheduler_name,
        node=node,
        outcome="scheduled",
        message="",
        nodes=len(names),
        feasible=standing.candidates,
        best=tuple(_within(_BEST_BYTES, best, lambda scored: scored.size_bytes)),
        reasons=tuple(_within(_REASONS_BYTES, counted, lambda each: text_bytes(each.text) + REASON_BYTES)),
    )


def _cut(message: str) -> str:
    if text_bytes(message) <= _LONGEST_MESSAGE:
        return message
    return message.encode()[:_LONGEST_MESSAGE].decode(errors="ignore")


def _within(budget: int, items: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
    """The first items that fit a number of bytes."""
    for item in items:
        budget -= size(item)
        if budget < 0:
            return
        yield item


def _outcome(decision: Decision) -> str:
    if decision.node is not None:
        return "scheduled"
    return "unschedulable" if decision.status.rejected else "error"


def _best(decision: Decision) -> tuple[ScoredNode, ...]:
    nodes, scores = decision.nodes, decision.scores
    if nodes is None or scores is None or decision.node is None:
        return ()
    names = nodes.names
    order = np.argsort(-scores.total, kind="stable")[:BEST_NODES].tolist()
    chosen = int(np.flatnonzero(nodes.rows == nodes.columns.index[decision.node])[0])
    order = [chosen, *(position for position in order if position != chosen)][:BEST_NODES]  # of many that tie: this one
    return tuple(
        ScoredNode(
            names[position],
            int(scores.total[position]),
            tuple((plugin, int(vector[position])) for plugin, vector in scores.by_plugin.items()),
        )
        for position in order
    )


def _reasons(diagnosis: Diagnosis, budget: int, *, with_bits: bool = False) -> tuple[ReasonCount, ...]:
    """Reasons, most frequent first, while they fit; then, for as many of them as still fit, their nodes as bits."""
    counted = [(int(np.count_nonzero(reason.mask)), reason) for reason in diagnosis.reasons()]
    ordered = sorted((each for each in counted if each[0]), key=lambda each: -each[0])
    kept = list(_within(budget, ordered, lambda each: _reason_bytes(each[1])))
    left = budget - sum(_reason_bytes(reason) for _, reason in kept)
    marked = left // (diagnosis.node_count // 8 + 1) if with_bits else 0
    bits = [np.packbits(reason.mask).tobytes() for _, reason in kept[:marked]]
    return tuple(
        ReasonCount(reason.plugin, reason.text[:_LONGEST_REASON], count, bits[place] if place < len(bits) else b"")
        for place, (count, reason) in enumerate(kept)
    )


def _reason_bytes(reason: Reason) -> int:
    return text_bytes(reason.text[:_LONGEST_REASON]) + REASON_BYTES
