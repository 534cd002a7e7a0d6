"""Explains the pods of a running batch engine: the last session's messages about the pod, its gang and its queue.

Called over HTTP. Whether a changed pod would find a node is checked with the filters that sessions use as predicates,
and with the free resources of the nodes. Whether gang and queue let the pod start is a separate part of the answer: no
change of one pod decides that. Only records of bound pods and the result of the last session are stored for this.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from bayplan.batch.config.arguments import Arguments
from bayplan.batch.diagnostics.misconfigured_objects import closed_queue_message, find_blocked_groups
from bayplan.batch.evaluation.bind_failure_filter import OWNER as GIVEN_UP
from bayplan.batch.evaluation.framework_adapter import cached_plugin
from bayplan.batch.evaluation.node_account_filter import NodeAccountFilter
from bayplan.batch.live.run_loop import BatchRunLoop
from bayplan.batch.live.status_updater import NO_POD_GROUP_MESSAGE
from bayplan.batch.model.amounts import Amounts, excess_amounts
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.tasks import GROUP_NAME
from bayplan.batch.plugins.predicates import PredicatesPlugin, build_filters
from bayplan.batch.queue_accounts.queue_limits import read_queue_gauges
from bayplan.batch.session.outcome import PodMessage
from bayplan.explain.answer_builder import (
    NO_RECORD,
    location_text,
    rejections_of_diagnosis,
    with_placement,
    with_suggestions,
)
from bayplan.explain.bind_request_answers import with_bind_failures, with_binding_progress
from bayplan.explain.suggestions import search_suggestions
from bayplan.explain.what_if import FilterReport, FilterTrials
from bayplan.framework.api.extension_points import FILTER, PRE_FILTER
from bayplan.framework.api.status import SUCCESS, Status, unresolvable
from bayplan.framework.runtime.cooperative import run_cooperatively
from bayplan.framework.runtime.filtering import FilterPoints
from bayplan.framework.runtime.nominator import Nominator
from bayplan.framework.runtime.plugin_call import PluginCaller
from bayplan.objects.core import Pod
from bayplan.snapshot import Snapshot
from bayplan.telemetry.answers import (
    BINDING,
    MAX_NAMES,
    NOW,
    PENDING,
    PLACED,
    Answer,
    BorrowingQueue,
    GangMemberStatus,
    GangStatus,
    NodeRejection,
    QueueShare,
)
from bayplan.telemetry.plugin_timings import PluginTimings

_REASON_OWNER = "why"
_PREDICATE_FLAG = "enablePredicate"
_NOT_BACKFILLED = "it requests no resources, and backfill, which places such pods, is not among the actions"
_NOT_LOOKED_AT = "no session has looked at it yet"


class BatchExplainer:
    def __init__(self, live: BatchRunLoop) -> None:
        self._live = live
        self._snapshot: Snapshot | None = None

    def serves(self, pod: Pod) -> bool:
        return self._live.event_handlers.is_responsible_for(pod)

    def find(self, namespace: str, name: str) -> Pod | None:
        """The pod in its latest version."""
        return self._live.event_handlers.pods.get(f"{namespace}/{name}")

    async def answer(self, pod: Pod, *, now: bool = False) -> Answer:
        """Why the pod is where it is. `now`: run the filters again, whatever the last session found. Only sessions
        decide whether gang and queue let the pod start."""
        job, assumed = self._job(pod), self._live.engine.cache.pod(pod.uid)
        answer = Answer(
            pod=pod.key,
            uid=pod.uid,
            engine="batch",
            scheduler=pod.scheduler_name,
            since=pod.metadata.creation_timestamp,
            decided_at=self._live.last_session_ended_at,
            gang=None if job is None else self._gang(job),
            queue=None if job is None else self._queue(job.queue),
        )
        if pod.spec.node_name:
            return self._placed(replace(answer, state=PLACED, node=pod.spec.node_name), pod)
        if assumed is not None:
            answer = self._placed(replace(answer, state=BINDING, node=assumed.spec.node_name), pod)
            return with_binding_progress(answer, self._live.event_handlers.requests, pod)
        answer = await run_cooperatively(
            self._pending(replace(answer, state=PENDING), pod, job, now=now), self._live.clock
        )
        return with_bind_failures(answer, self._live.event_handlers.requests, pod, otherwise="")

    # results of sessions

    def _job(self, pod: Pod) -> Job | None:
        group = pod.metadata.annotations.get(GROUP_NAME, "")
        return self._live.engine.cluster_state.jobs.get(f"{pod.namespace}/{group}") if group else None

    def _placed(self, answer: Answer, pod: Pod) -> Answer:
        record = self._live.engine.records.latest(pod.key)
        if record is not None and (record.uid, record.node) == (pod.uid, answer.node):
            return with_placement(answer, record)
        text = NO_RECORD if self.serves(pod) else f"{pod.scheduler_name} placed it, which is not served here"
        return replace(answer, sentence=f"{location_text(answer)}; {text}", decided_at=None)

    def _last_answer(self, answer: Answer, pod: Pod, job: Job | None) -> Answer:
        live = self._live
        message = live.last_outcome.waiting.get(pod.key)
        return replace(
            answer,
            sentence=f"{pod.key} stays pending: {self._reason(pod, job, message)}",
            waits_for="the next session",
            attempts=live.failed_sessions.get(pod.key, 0),
            nominated=message.nominated_node if message is not None else "",
        )

    def _reason(self, pod: Pod, job: Job | None, message: PodMessage | None) -> str:
        unreadable = self._live.engine.unreadable_pods.get(pod.uid)
        if unreadable is not None:
            return unreadable[1]
        if GROUP_NAME not in pod.metadata.annotations:
            return NO_POD_GROUP_MESSAGE
        if job is None or not job.has_group:
            return f"there is no PodGroup {pod.namespace}/{pod.metadata.annotations[GROUP_NAME]}"
        if not (message is not None and message.counts) and (sentence := closed_queue_message(self._live.engine, job)):
            return sentence
        waits_for = next(
            (
                why
                for group, why in find_blocked_groups(self._live.engine, self._live.last_outcome)
                if group.key == job.uid
            ),
            "",
        )
        if waits_for:
            return waits_for
        if job.is_pending():
            return f"its group {job.uid} is not enqueued in queue {job.queue} yet"
        if NodeAccountFilter(self._live.engine).is_never_tried(pod):
            return _NOT_BACKFILLED
        return message.message if message is not None and message.message else _NOT_LOOKED_AT

    def _gang(self, job: Job) -> GangStatus:
        waiting = self._live.last_outcome.waiting
        members = [
            GangMemberStatus(pod=task.key, reason=pod_message.message)
            for task in job.pending.values()
            if (pod_message := waiting.get(task.key)) is not None
        ]
        members.sort(key=lambda member: (not member.reason.startswith(("0/", "In hyperNode")), member.pod))
        return GangStatus(
            name=job.uid,
            phase=job.phase,
            least=job.min_available,
            ready=job.ready_task_num,
            tasks=len(job.tasks),
            holding_back=tuple(members[:MAX_NAMES]),
        )

    def _queue(self, name: str) -> QueueShare:
        gauges = self._live.last_outcome.final_gauges
        shown = gauges.get(name, {})
        queue = self._live.engine.cluster_state.queues.get(name)
        return QueueShare(
            name=name,
            share=shown.get("share"),
            allocated=_texts(read_queue_gauges(shown, "allocated")),
            deserved=_texts(read_queue_gauges(shown, "deserved")),
            capability={} if queue is None else _texts(queue.capability),
            borrowers=tuple(
                BorrowingQueue(queue=other, over=over)
                for other in sorted(gauges)
                if other != name and (over := _above_deserved(gauges[other]))
            )[:MAX_NAMES],
        )

    # suggestions

    def _pending(self, answer: Answer, pod: Pod, job: Job | None, *, now: bool) -> Generator[None, None, Answer]:
        answer = self._last_answer(answer, pod, job)
        accounts = NodeAccountFilter(self._live.engine)
        what_if = FilterTrials(
            self._filters(accounts),
            partial(_gate_reason, accounts),
            self._current_snapshot,
            self._live.clock.now,
            accounts.shortages,
        )
        report = what_if.run_filters(pod)
        message = self._live.last_outcome.waiting.get(pod.key)
        current = rejections_of_diagnosis(report.diagnosis)
        feasible = int(report.feasible.sum())
        answer = replace(answer, nodes=report.diagnosis.node_count, feasible=feasible, reasons=current)
        if now:
            answer = replace(answer, source=NOW, sentence=f"{answer.sentence} {_current_answer(report)}")
        elif message is not None:
            answer = replace(answer, reasons=_count_reasons(message.counts, current))
        yield
        found = yield from search_suggestions(what_if, pod)
        return with_suggestions(answer, found, has_nodes=bool(answer.nodes))

    def _filters(self, accounts: NodeAccountFilter) -> FilterPoints:
        """The filters of sessions in their order: node accounts first. Nominated pods of other jobs count only
        there."""
        engine = self._live.engine
        options = next((each for each in engine.configuration.plugins if each.name == PredicatesPlugin.name), None)
        plugins: list[Any] = [accounts]
        if options is not None and options.enabled(_PREDICATE_FLAG):
            plugins += build_filters(
                engine.handle, Arguments(options.arguments, owner=_REASON_OWNER), _REASON_OWNER
            ).values()
        if engine.handle.bind_request_factory is not None:
            plugins.append(cached_plugin(engine.handle, _REASON_OWNER, GIVEN_UP))
        return FilterPoints(
            [each for each in plugins if PRE_FILTER.extended_by(each)],
            [each for each in plugins if FILTER.extended_by(each)],
            PluginCaller(engine.handle.clock, PluginTimings()),
            Nominator(),
        )

    def _current_snapshot(self) -> Snapshot:
        """The current state of the cluster. A session's own snapshot contains its uncommitted changes."""
        cache = self._live.engine.cache
        if self._snapshot is None:
            self._snapshot = cache.snapshot()
        cache.refresh(self._snapshot)
        return self._snapshot


def _current_answer(report: FilterReport) -> str:
    if not report.pre_enqueue_status.ok:
        return f"Current result: {report.pre_enqueue_status.message}"
    count = int(report.feasible.sum())
    if not count:
        return f"Current result: {report.diagnosis.sentence()}"
    return (
        f"Current result: {count} of {report.diagnosis.node_count} nodes would take it, "
        "if its gang and its queue let it start"
    )


def _count_reasons(counts: Mapping[str, int], current: Sequence[NodeRejection]) -> tuple[NodeRejection, ...]:
    """The counts of a session. It does not store node names: they are added if as many nodes have the reason now."""
    known = {each.text: each for each in current}
    found = []
    for text, nodes in sorted(counts.items(), key=lambda each: -each[1]):
        same = known.get(text)
        names = same.names if same is not None and same.nodes == nodes else ()
        found.append(NodeRejection(plugin=same.plugin if same is not None else "", text=text, nodes=nodes, names=names))
    return tuple(found)


def _gate_reason(accounts: NodeAccountFilter, pod: Pod) -> Status:
    if accounts.is_never_tried(pod):
        return unresolvable(_NOT_BACKFILLED)
    gates = [gate.name for gate in pod.spec.scheduling_gates]
    return unresolvable(f"waiting for scheduling gates: [{' '.join(gates)}]") if gates else SUCCESS


def _texts(amounts: Amounts) -> dict[str, str]:
    return {} if amounts.is_empty() else {name: str(amount) for name, amount in amounts.quantities().items()}


def _above_deserved(gauges: Mapping[str, float]) -> dict[str, str]:
    """What a queue has allocated above what it deserves; empty if it deserves nothing in particular."""
    deserved, allocated = read_queue_gauges(gauges, "deserved"), read_queue_gauges(gauges, "allocated")
    if deserved.is_empty():
        return {}
    return {k: v for k, v in _texts(excess_amounts(allocated, deserved)).items() if v != "0"}
