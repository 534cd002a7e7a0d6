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
    as_recorded,
    placed_as_recorded,
    refusals_in,
    refused_in,
    where,
    with_suggestions,
)
from bayplan.explain.suggestions import suggesting
from bayplan.explain.what_if import Look, WhatIf
from bayplan.framework.api.status import Code, Status
from bayplan.framework.runtime.framework import Framework
from bayplan.objects.core import Pod
from bayplan.scheduler.cycle.decision_records import record_of
from bayplan.scheduler.cycle.scheduling_cycle import NO_NODES, Decision
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import NodeTable, Snapshot
from bayplan.telemetry.answers import NOW, PENDING, PLACED, Answer, Refused
from bayplan.telemetry.decision_text import why
from bayplan.telemetry.decisions import DecisionRecord

Answering = Generator[None, None, Answer]


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

    def placed(self, pod: Pod, state: str = PLACED) -> Answer:
        """Why a pod that has a node is there, or is to get there."""
        record = self.record(pod)
        base = _base(pod, state=state, node=pod.spec.node_name)
        if record is None or record.node != pod.spec.node_name:
            mine = self._engine.serves(pod)
            text = NO_RECORD if mine else f"{pod.scheduler_name} placed it, which is not served here"
            return replace(base, sentence=f"{where(base)}; {text}")
        return placed_as_recorded(base, record)

    def pending(self, pod: Pod, *, now: bool = False) -> Answering:
        """Why a pod waits, and what would help. `now`: by asking afresh, whatever was decided."""
        base = _base(pod, state=PENDING)
        if not self._engine.serves(pod):
            text = f'{pod.key} stays pending: no profile serves scheduler name "{pod.scheduler_name}"'
            return replace(base, sentence=text, source=NOW)
        framework = self._engine.aside(pod.scheduler_name)
        what_if = WhatIf(framework.filtering, framework.pre_enqueue, self._snapshot, self._clock.now)
        record = None if now else self.record(pod)
        if record is None or record.node is not None:
            answer = self._afresh(base, pod, framework, what_if)
        else:
            answer = self._as_decided(base, record)
        yield
        found = yield from suggesting(what_if, pod)
        return with_suggestions(answer, found, has_nodes=bool(len(self._snapshot())))

    def _as_decided(self, base: Answer, record: DecisionRecord) -> Answer:
        snapshot = self._snapshot()
        names = snapshot.nodes.names if record.layout == snapshot.layout else ()
        told = as_recorded(base, record, refused_in(record, names))
        return replace(told, sentence=f"{base.pod} stays pending: {why(record)}")

    def _afresh(self, base: Answer, pod: Pod, framework: Framework, what_if: WhatIf) -> Answer:
        look = what_if.look(pod)
        decision = _decision(look, framework)
        snapshot = look.cycle.snapshot
        record = record_of(pod, decision, self._clock.now(), snapshot.layout)
        told = replace(as_recorded(base, record, refusals_in(look.diagnosis)), source=NOW)
        if not look.gate.ok:
            gate = Refused(plugin=look.gate.plugin, text=look.gate.message, nodes=0)
            text = f"{pod.key} is not let in: {look.gate.message}"
            return replace(told, sentence=text, reasons=(gate, *told.reasons), best=(), choice=None, feasible=0)
        if record.node is not None:
            return replace(told, sentence=f"{pod.key} would go to {record.node} now: {why(record)}")
        return replace(told, sentence=f"{pod.key} stays pending: {why(record)}")


def _decision(look: Look, framework: Framework) -> Decision:
    """What an attempt would decide, ties aside."""
    diagnosis = look.diagnosis
    if not diagnosis.node_count:
        return Decision(status=Status(Code.UNRESOLVABLE, (NO_NODES,)))
    rows = np.flatnonzero(look.feasible)
    if not len(rows):
        return Decision(status=Status(Code.UNSCHEDULABLE, (diagnosis.sentence(),)), diagnosis=diagnosis)
    nodes = NodeTable(look.cycle.snapshot.nodes, rows)
    if len(rows) == 1:
        return Decision(nodes.names[0], diagnosis=diagnosis, nodes=nodes)
    scores = framework.scoring.score(look.cycle, nodes)
    if not scores.status.ok:
        return Decision(status=scores.status, diagnosis=diagnosis)
    return Decision(nodes.names[int(scores.total.argmax())], diagnosis=diagnosis, nodes=nodes, scores=scores)


def _base(pod: Pod, *, state: str, node: str = "") -> Answer:
    return Answer(
        pod=pod.key,
        uid=pod.uid,
        scheduler=pod.scheduler_name,
        state=state,
        node=node,
        since=pod.metadata.creation_timestamp,
    )
