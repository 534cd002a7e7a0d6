"""Why is a pod where it is, or nowhere, and what would have to change? Answers about pods of the pod engine.

Asked by the live explainer and by commands that have a cluster in files. What was decided comes from the record of the
decision; what would help is looked for on the cluster of this moment. The work is a generator that yields between two
looks at the cluster. Cost: some ten to fifty looks for a pod that waits, none for one that is placed.
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
from bayplan.scheduler.cycle.scheduling_cycle import NO_NODES, SchedulingDecision
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import NodeTable, Snapshot
from bayplan.telemetry.answers import NOW, PENDING, PLACED, Answer, NodeRejection
from bayplan.telemetry.decision_text import decision_sentence
from bayplan.telemetry.decisions import DecisionRecord

AnswerSteps = Generator[None, None, Answer]


class PodExplainer:
    """Explains decisions of one engine. `snapshot`: the cluster of now, where the engine's own must not be touched."""

    def __init__(self, engine: PodEngine, clock: Clock, snapshot: Callable[[], Snapshot] | None = None) -> None:
        self._engine = engine
        self._clock = clock
        self._snapshot = snapshot or engine.snapshot

    def record(self, pod: Pod) -> DecisionRecord | None:
        """The latest decision about this very pod; another one of its name does not count."""
        found = self._engine.records.latest(pod.key)
        return found if found is not None and found.uid == pod.uid else None

    def explain_placed(self, pod: Pod, state: str = PLACED) -> Answer:
        """Why a pod that has a node is there, or is to get there."""
        record = self.record(pod)
        base = _base_answer(pod, state=state, node=pod.spec.node_name)
        if record is None or record.node != pod.spec.node_name:
            mine = self._engine.serves(pod)
            text = NO_RECORD if mine else f"{pod.scheduler_name} placed it, which is not served here"
            return replace(base, sentence=f"{location_text(base)}; {text}")
        return with_placement(base, record)

    def explain_pending(self, pod: Pod, *, now: bool = False) -> AnswerSteps:
        """Why a pod waits, and what would help. `now`: by asking afresh, whatever was decided."""
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
        told = with_decision(base, record, rejections_of_record(record, names))
        return replace(told, sentence=f"{base.pod} stays pending: {decision_sentence(record)}")

    def _from_filters(self, base: Answer, pod: Pod, framework: Framework, what_if: FilterTrials) -> Answer:
        look = what_if.run_filters(pod)
        decision = _decision(look, framework)
        snapshot = look.cycle.snapshot
        record = decision_record(pod, decision, self._clock.now(), snapshot.layout)
        told = replace(with_decision(base, record, rejections_of_diagnosis(look.diagnosis)), source=NOW)
        if not look.pre_enqueue_status.ok:
            gate = NodeRejection(plugin=look.pre_enqueue_status.plugin, text=look.pre_enqueue_status.message, nodes=0)
            text = f"{pod.key} is not let in: {look.pre_enqueue_status.message}"
            return replace(told, sentence=text, reasons=(gate, *told.reasons), best=(), choice=None, feasible=0)
        if record.node is not None:
            return replace(told, sentence=f"{pod.key} would go to {record.node} now: {decision_sentence(record)}")
        return replace(told, sentence=f"{pod.key} stays pending: {decision_sentence(record)}")


def _decision(look: FilterReport, framework: Framework) -> SchedulingDecision:
    """What an attempt would decide, ties aside."""
    diagnosis = look.diagnosis
    if not diagnosis.node_count:
        return SchedulingDecision(status=Status(Code.UNRESOLVABLE, (NO_NODES,)))
    rows = np.flatnonzero(look.feasible)
    if not len(rows):
        return SchedulingDecision(status=Status(Code.UNSCHEDULABLE, (diagnosis.sentence(),)), diagnosis=diagnosis)
    nodes = NodeTable(look.cycle.snapshot.nodes, rows)
    if len(rows) == 1:
        return SchedulingDecision(nodes.names[0], diagnosis=diagnosis, nodes=nodes)
    scores = framework.score_points.score(look.cycle, nodes)
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
