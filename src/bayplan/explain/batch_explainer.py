"""Why, of a batch engine that is running: what its last session left to say of a pod, of its gang and of its queue.

Asked over HTTP. Whether a changed pod would find a node is asked of the same filters that sessions have as predicates,
and of the room that is left; whether its gang and its queue let it start is told beside it, since no change of one pod
decides that. Nothing is kept ready for questions but the records of what was bound, and what the last session decided.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from bayplan.batch.config.arguments import Arguments
from bayplan.batch.diagnostics.misconfigured_objects import held_up, shut_out
from bayplan.batch.evaluation.bind_failure_filter import OWNER as GIVEN_UP
from bayplan.batch.evaluation.framework_adapter import built
from bayplan.batch.evaluation.node_account_filter import SessionRoom
from bayplan.batch.live.run_loop import LiveBatch
from bayplan.batch.live.status_updater import GROUPLESS
from bayplan.batch.model.amounts import Amounts, exceeded
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.tasks import GROUP_NAME
from bayplan.batch.plugins.predicates import Predicates, built_filters
from bayplan.batch.queue_accounts.queue_limits import gauged
from bayplan.batch.session.outcome import PodMessage
from bayplan.explain.answer_builder import (
    NO_RECORD,
    placed_as_recorded,
    refusals_in,
    where,
    with_suggestions,
)
from bayplan.explain.bind_request_answers import kept_back, on_its_way
from bayplan.explain.suggestions import suggesting
from bayplan.explain.what_if import Look, WhatIf
from bayplan.framework.api.extension_points import FILTER, PRE_FILTER
from bayplan.framework.api.status import SUCCESS, Status, unresolvable
from bayplan.framework.runtime.cooperative import in_turns
from bayplan.framework.runtime.filtering import Filtering
from bayplan.framework.runtime.nominator import NominationLedger
from bayplan.framework.runtime.plugin_call import Boundary
from bayplan.objects.core import Pod
from bayplan.snapshot import Snapshot
from bayplan.telemetry.answers import (
    BINDING,
    MOST_NAMED,
    NOW,
    PENDING,
    PLACED,
    Answer,
    Borrower,
    Gang,
    Member,
    QueueShare,
    Refused,
)
from bayplan.telemetry.plugin_timings import PluginTimings

_OWNER = "why"
_PREDICATE_FLAG = "enablePredicate"
_NOT_BACKFILLED = "it asks for nothing, and backfill, which places such pods, is not among the actions"
_NOT_LOOKED_AT = "no session has looked at it yet"


class BatchExplainer:
    """Explains the pods of one live batch engine."""

    def __init__(self, live: LiveBatch) -> None:
        self._live = live
        self._snapshot: Snapshot | None = None

    def serves(self, pod: Pod) -> bool:
        return self._live.following.serves(pod)

    def find(self, namespace: str, name: str) -> Pod | None:
        """The pod as last told."""
        return self._live.following.pods.get(f"{namespace}/{name}")

    async def answer(self, pod: Pod, *, now: bool = False) -> Answer:
        """Why the pod is where it is. `now`: which nodes would take it is asked afresh, whatever the last session said;
        whether its gang and its queue let it start is for sessions to decide."""
        job, assumed = self._job(pod), self._live.engine.cache.pod(pod.uid)
        answer = Answer(
            pod=pod.key,
            uid=pod.uid,
            engine="batch",
            scheduler=pod.scheduler_name,
            since=pod.metadata.creation_timestamp,
            decided_at=self._live.ended_at,
            gang=None if job is None else self._gang(job),
            queue=None if job is None else self._queue(job.queue),
        )
        if pod.spec.node_name:
            return self._placed(replace(answer, state=PLACED, node=pod.spec.node_name), pod)
        if assumed is not None:
            told = self._placed(replace(answer, state=BINDING, node=assumed.spec.node_name), pod)
            return on_its_way(told, self._live.following.requests, pod)
        told = await in_turns(self._pending(replace(answer, state=PENDING), pod, job, now=now), self._live.clock)
        return kept_back(told, self._live.following.requests, pod, otherwise="")

    # what sessions said ------------------------------------------------------------------------------------------

    def _job(self, pod: Pod) -> Job | None:
        group = pod.metadata.annotations.get(GROUP_NAME, "")
        return self._live.engine.ledger.jobs.get(f"{pod.namespace}/{group}") if group else None

    def _placed(self, answer: Answer, pod: Pod) -> Answer:
        record = self._live.engine.records.latest(pod.key)
        if record is not None and (record.uid, record.node) == (pod.uid, answer.node):
            return placed_as_recorded(answer, record)
        text = NO_RECORD if self.serves(pod) else f"{pod.scheduler_name} placed it, which is not served here"
        return replace(answer, sentence=f"{where(answer)}; {text}", decided_at=None)

    def _told(self, answer: Answer, pod: Pod, job: Job | None) -> Answer:
        live = self._live
        message = live.latest.waiting.get(pod.key)
        return replace(
            answer,
            sentence=f"{pod.key} stays pending: {self._reason(pod, job, message)}",
            waits_for="the next session",
            tries=live.tries.get(pod.key, 0),
            nominated=message.nominated_node if message is not None else "",
        )

    def _reason(self, pod: Pod, job: Job | None, message: PodMessage | None) -> str:
        unread = self._live.engine.unread.get(pod.uid)
        if unread is not None:
            return unread[1]
        if GROUP_NAME not in pod.metadata.annotations:
            return GROUPLESS
        if job is None or not job.has_group:
            return f"there is no PodGroup {pod.namespace}/{pod.metadata.annotations[GROUP_NAME]}"
        if not (message is not None and message.counts) and (sentence := shut_out(self._live.engine, job)):
            return sentence
        waits_for = next(
            (why for group, why in held_up(self._live.engine, self._live.latest) if group.key == job.uid), ""
        )
        if waits_for:
            return waits_for
        if job.is_pending():
            return f"its group {job.uid} is not let into the queue {job.queue} yet"
        if SessionRoom(self._live.engine).left_out(pod):
            return _NOT_BACKFILLED
        return message.message if message is not None and message.message else _NOT_LOOKED_AT

    def _gang(self, job: Job) -> Gang:
        waiting = self._live.latest.waiting
        members = [
            Member(pod=task.key, reason=told.message)
            for task in job.pending.values()
            if (told := waiting.get(task.key)) is not None
        ]
        members.sort(key=lambda member: (not member.reason.startswith(("0/", "In hyperNode")), member.pod))
        return Gang(
            name=job.uid,
            phase=job.phase,
            least=job.min_available,
            ready=job.ready_task_num,
            tasks=len(job.tasks),
            holding_back=tuple(members[:MOST_NAMED]),
        )

    def _queue(self, name: str) -> QueueShare:
        gauges = self._live.latest.final_gauges
        mine = gauges.get(name, {})
        queue = self._live.engine.ledger.queues.get(name)
        return QueueShare(
            name=name,
            share=mine.get("share"),
            allocated=_texts(gauged(mine, "allocated")),
            deserved=_texts(gauged(mine, "deserved")),
            capability={} if queue is None else _texts(queue.capability),
            borrowers=tuple(
                Borrower(queue=other, over=over)
                for other in sorted(gauges)
                if other != name and (over := _over(gauges[other]))
            )[:MOST_NAMED],
        )

    # what would help ---------------------------------------------------------------------------------------------

    def _pending(self, answer: Answer, pod: Pod, job: Job | None, *, now: bool) -> Generator[None, None, Answer]:
        answer = self._told(answer, pod, job)
        room = SessionRoom(self._live.engine)
        what_if = WhatIf(self._filters(room), partial(_gate, room), self._seen, self._live.clock.now, room.shortages)
        look = what_if.look(pod)
        message = self._live.latest.waiting.get(pod.key)
        seen = refusals_in(look.diagnosis)
        feasible = int(look.feasible.sum())
        answer = replace(answer, nodes=look.diagnosis.node_count, feasible=feasible, reasons=seen)
        if now:
            answer = replace(answer, source=NOW, sentence=f"{answer.sentence} {_as_it_is_now(look)}")
        elif message is not None:
            answer = replace(answer, reasons=_counted(message.counts, seen))
        yield
        found = yield from suggesting(what_if, pod)
        return with_suggestions(answer, found, has_nodes=bool(answer.nodes))

    def _filters(self, room: SessionRoom) -> Filtering:
        """What sessions ask, in their order: room first. Pods that others nominated take room there, and nothing
        else."""
        engine = self._live.engine
        options = next((each for each in engine.configuration.plugins if each.name == Predicates.name), None)
        asked: list[Any] = [room]
        if options is not None and options.enabled(_PREDICATE_FLAG):
            asked += built_filters(engine.handle, Arguments(options.arguments, owner=_OWNER), _OWNER).values()
        if engine.handle.desk is not None:
            asked.append(built(engine.handle, _OWNER, GIVEN_UP))
        return Filtering(
            [each for each in asked if PRE_FILTER.extended_by(each)],
            [each for each in asked if FILTER.extended_by(each)],
            Boundary(engine.handle.clock, PluginTimings()),
            NominationLedger(),
        )

    def _seen(self) -> Snapshot:
        """The cluster of now; a session's own snapshot shows what it is trying out."""
        cache = self._live.engine.cache
        if self._snapshot is None:
            self._snapshot = cache.snapshot()
        cache.refresh(self._snapshot)
        return self._snapshot


def _as_it_is_now(look: Look) -> str:
    if not look.gate.ok:
        return f"Asked now: {look.gate.message}"
    count = int(look.feasible.sum())
    if not count:
        return f"Asked now: {look.diagnosis.sentence()}"
    return (
        f"Asked now: {count} of {look.diagnosis.node_count} nodes would take it, if its gang and its queue let it start"
    )


def _counted(counts: Mapping[str, int], seen: Sequence[Refused]) -> tuple[Refused, ...]:
    """What a session counted. It does not keep which nodes they were: they are named where as many say so now."""
    known = {each.text: each for each in seen}
    found = []
    for text, nodes in sorted(counts.items(), key=lambda each: -each[1]):
        same = known.get(text)
        names = same.names if same is not None and same.nodes == nodes else ()
        found.append(Refused(plugin=same.plugin if same is not None else "", text=text, nodes=nodes, names=names))
    return tuple(found)


def _gate(room: SessionRoom, pod: Pod) -> Status:
    if room.left_out(pod):
        return unresolvable(_NOT_BACKFILLED)
    gates = [gate.name for gate in pod.spec.scheduling_gates]
    return unresolvable(f"waiting for scheduling gates: [{' '.join(gates)}]") if gates else SUCCESS


def _texts(amounts: Amounts) -> dict[str, str]:
    return {} if amounts.is_empty() else {name: str(amount) for name, amount in amounts.quantities().items()}


def _over(gauges: Mapping[str, float]) -> dict[str, str]:
    """What a queue holds beyond what it deserves; nothing for one that deserves nothing in particular."""
    deserved, held = gauged(gauges, "deserved"), gauged(gauges, "allocated")
    return {} if deserved.is_empty() else {k: v for k, v in _texts(exceeded(held, deserved)).items() if v != "0"}
