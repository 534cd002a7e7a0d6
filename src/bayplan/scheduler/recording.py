"""Turns a decision into its record: the one place that chooses what is kept."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from bayplan.framework.diagnosis import Diagnosis
from bayplan.objects.core import Pod
from bayplan.scheduler.cycle import Decision
from bayplan.telemetry.decisions import BEST_NODES, LARGEST_RECORD_BYTES, DecisionRecord, ReasonCount, ScoredNode

_BITS_BUDGET = LARGEST_RECORD_BYTES // 2


def record_of(pod: Pod, decision: Decision, at: datetime) -> DecisionRecord:
    """What to remember of a decision."""
    diagnosis = decision.diagnosis
    return DecisionRecord(
        at=at,
        pod=pod.key,
        uid=pod.uid,
        profile=pod.scheduler_name,
        node=decision.node,
        outcome=_outcome(decision),
        message=decision.message[:1024],
        nodes=diagnosis.node_count if diagnosis else 0,
        feasible=len(decision.nodes) if decision.nodes is not None else 0,
        best=_best(decision),
        reasons=_reasons(diagnosis, with_bits=decision.node is None) if diagnosis else (),
        nominated=decision.nominate or "",
        victims=decision.victims[:16],
    )


def _outcome(decision: Decision) -> str:
    if decision.node is not None:
        return "scheduled"
    return "unschedulable" if decision.status.rejected else "error"


def _best(decision: Decision) -> tuple[ScoredNode, ...]:
    nodes, scores = decision.nodes, decision.scores
    if nodes is None or scores is None:
        return ()
    names = nodes.names
    order = np.argsort(-scores.total, kind="stable")[:BEST_NODES].tolist()
    order.sort(key=lambda position: (-int(scores.total[position]), names[position] != decision.node))
    return tuple(
        ScoredNode(
            names[position],
            int(scores.total[position]),
            tuple((plugin, int(vector[position])) for plugin, vector in scores.by_plugin.items()),
        )
        for position in order
    )


def _reasons(diagnosis: Diagnosis, *, with_bits: bool) -> tuple[ReasonCount, ...]:
    """Reasons, most frequent first; masks of a pod that failed as bits while they fit the budget."""
    found = []
    left = _BITS_BUDGET
    for reason in diagnosis.verdicts.reasons:
        count = int(np.count_nonzero(reason.mask))
        if not count:
            continue
        bits = np.packbits(reason.mask).tobytes() if with_bits and diagnosis.node_count <= 8 * left else b""
        left -= len(bits)
        found.append(ReasonCount(reason.plugin, reason.text, count, bits))
    return tuple(sorted(found, key=lambda reason: -reason.nodes))
