"""Explains pods of the pod engine: why a pod has its node or none, and which changes would help.

Called by the live explainer and by commands that have a cluster in files. The decision comes from its record;
suggestions are computed on the current cluster. The work is a generator that yields between two filter runs. Cost: ten
to fifty filter runs for a pending pod, none for one that has a node.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
from msgspec.structs import replace

from bayplan.clock import Clock
from bayplan.explain.answer_builder import (
    NO_RECORD,
    location_text,
    rejections_of_diagnosis,
    rejections_of_record,
    with_decision,
    with_placement,
    with_suggestions,
)
from bayplan.explain.suggestions import search_suggestions
from bayplan.explain.what_if import FilterReport, FilterTrials
from bayplan.framework.api.status import Code, Status
from bayplan.framework.runtime.framework import Framework
from bayplan.objects.core import Pod
from bayplan.scheduler.cycle.decision_records import decision_record
from bayplan.scheduler.cycle.schedule_result import SchedulingDecision
from bayplan.scheduler.cycle.scheduling_cycle import NO_NODES
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import NodeTable, Snapshot
from bayplan.telemetry.answers import NOW, PENDING, PLACED, Answer, NodeRejection
from bayplan.telemetry.decision_text import decision_sentence
from bayplan.telemetry.decisions import DecisionRecord

AnswerSteps = Generator[None, None, Answer]


class PodExplainer:
    """Explains decisions of one engine. `snapshot`: the current cluster, if the engine's own snapshot must not
    change."""

    def __init__(self, engine: PodEngine, clock: Clock, snapshot: Callable[[], Snapshot] | None = None) -> None:
        self._engine = engine
        self._clock = clock
        self._snapshot = snapshot or engine.snapshot

    def record(self, pod: Pod) -> DecisionRecord | None:
        """The latest decision about this pod. A decision about another pod of its name does not count."""
        found = self._engine.records.latest(pod.key)
        return found if found is not None and found.uid == pod.uid else None

    def explain_placed(self, pod: Pod, state: str = PLACED) -> Answer:
        """Why a pod has the node that it is on or will be bound to."""
        record = self.record(pod)
        base = _base_answer(pod, state=state, node=pod.spec.node_name)
        if record is None or record.node != pod.spec.node_name:
            is_own = self._engine.serves(pod)
            text = NO_RECORD if is_own else f"{pod.scheduler_name} placed it, which is not served here"
            return replace(base, sentence=f"{location_text(base)}; {text}")
        return with_placement(base, record)

    def explain_pending(self, pod: Pod, *, now: bool = False) -> AnswerSteps:
        """Why a pod is pending, and what would help. `now`: run the filters again instead of reading the record."""
        base = _base_answer(pod, state=PENDING)
        if not self._engine.serves(pod):
            text = f'{pod.key} stays pending: no profile serves scheduler name "{pod.scheduler_name}"'
            return replace(base, sentence=text, source=NOW)
        framework = self._engine.unrecorded_framework(pod.scheduler_name)
        what_if = FilterTrials(framework.filter_points, framework.pre_enqueue, self._snapshot, self._clock.now)
        record = None if now else self.record(pod)
        if record is None or record.node is not None:
            answer = self._from_filters(base, pod, framework, what_if)
        else:
            answer = self._from_record(base, record)
        yield
        found = yield from search_suggestions(what_if, pod)
        return with_suggestions(answer, found, has_nodes=bool(len(self._snapshot())))

    def _from_record(self, base: Answer, record: DecisionRecord) -> Answer:
        snapshot = self._snapshot()
        names = snapshot.nodes.names if record.layout == snapshot.layout else ()
        answer = with_decision(base, record, rejections_of_record(record, names))
        return replace(answer, sentence=f"{base.pod} stays pending: {decision_sentence(record)}")

    def _from_filters(self, base: Answer, pod: Pod, framework: Framework, what_if: FilterTrials) -> Answer:
        report = what_if.run_filters(pod)
        decision = _decision(report, framework)
        snapshot = report.cycle.snapshot
        record = decision_record(pod, decision, self._clock.now(), snapshot.layout)
        answer = replace(with_decision(base, record, rejections_of_diagnosis(report.diagnosis)), source=NOW)
        if not report.pre_enqueue_status.ok:
            gate = NodeRejection(
                plugin=report.pre_enqueue_status.plugin, text=report.pre_enqueue_status.message, nodes=0
            )
            text = f"{pod.key} is gated: {report.pre_enqueue_status.message}"
            return replace(answer, sentence=text, reasons=(gate, *answer.reasons), best=(), choice=None, feasible=0)
        if record.node is not None:
            return replace(answer, sentence=f"{pod.key} would go to {record.node} now: {decision_sentence(record)}")
        return replace(answer, sentence=f"{pod.key} stays pending: {decision_sentence(record)}")


def _decision(report: FilterReport, framework: Framework) -> SchedulingDecision:
    """The decision of an attempt, except for tie breaks."""
    diagnosis = report.diagnosis
    if not diagnosis.node_count:
        return SchedulingDecision(status=Status(Code.UNRESOLVABLE, (NO_NODES,)))
    rows = np.flatnonzero(report.feasible)
    if not len(rows):
        return SchedulingDecision(status=Status(Code.UNSCHEDULABLE, (diagnosis.sentence(),)), diagnosis=diagnosis)
    nodes = NodeTable(report.cycle.snapshot.nodes, rows)
    if len(rows) == 1:
        return SchedulingDecision(nodes.names[0], diagnosis=diagnosis, nodes=nodes)
    scores = framework.score_points.score(report.cycle, nodes)
    if not scores.status.ok:
        return SchedulingDecision(status=scores.status, diagnosis=diagnosis)
    return SchedulingDecision(nodes.names[int(scores.total.argmax())], diagnosis=diagnosis, nodes=nodes, scores=scores)


def _base_answer(pod: Pod, *, state: str, node: str = "") -> Answer:
    return Answer(
        pod=pod.key,
        uid=pod.uid,
        scheduler=pod.scheduler_name,
        state=state,
        node=node,
        since=pod.metadata.creation_timestamp,
    )
