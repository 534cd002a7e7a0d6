"""Scheduling cycle: decides where one pod goes, or why it fits nowhere, and assumes it on its node.

`run` has the steps in the order of kube-scheduler's `schedulingCycle`. First the decision: PreFilter, Filter (the
nominated node first), extenders, PostFilter or PreScore, Score, selection. It changes nothing. Then assume, Reserve and
Permit. The binding cycle follows. The decision is a generator that yields only when an extender has to be called. A
profile without extenders runs it straight through (`schedule_pod`). A profile with extenders awaits each call
(`schedule_pod_with_extenders`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.extension_points import FILTER, POST_FILTER, PRE_FILTER, PRE_SCORE, SCORE
from bayplan.framework.api.plugin import PostFilterResult
from bayplan.framework.api.status import SUCCESS, Code, Status, unresolvable
from bayplan.framework.equivalence.class_evaluation import ClassEvaluation
from bayplan.framework.equivalence.equivalence_classes import EquivalenceClasses
from bayplan.framework.runtime.event_registrations import EXTENDER_REJECTOR
from bayplan.framework.runtime.filtering import PreFilterSummary
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.scoring import TotalScores
from bayplan.scheduler.cycle.http_extender import ExtenderCall, ExtenderError, ExtenderReply, HttpExtender
from bayplan.scheduler.cycle.node_sampling import SAMPLE_ALL_NODES, NodeSampler, SampleSize, num_feasible_nodes_to_find
from bayplan.scheduler.cycle.schedule_result import AssumedPod, ScheduleResult, SchedulingDecision, single_node_status
from bayplan.scheduler.plugin_handle import EngineHandle
from bayplan.snapshot import IntVector, NodeColumns, NodeTable, RowVector

_PRE_FILTER, _FILTER, _PRE_SCORE, _SCORE = (
    PRE_FILTER.metric_label,
    FILTER.metric_label,
    PRE_SCORE.metric_label,
    SCORE.metric_label,
)
NO_NODES = "no nodes available to schedule pods"

ExtenderCalls = tuple[ExtenderCall, ...]
"""Calls that are sent concurrently; the replies come in this order."""

ExtenderReplies = Sequence[ExtenderReply]
AttemptSteps = Generator[ExtenderCalls, ExtenderReplies, "SchedulingDecision"]
CallExtender = Callable[[ExtenderCall], Awaitable[ExtenderReply]]
TieBreak = Callable[[NodeColumns, RowVector | Sequence[int]], int]
"""Which of equally good rows: an index into them."""


def first_row(columns: NodeColumns, rows: RowVector | Sequence[int]) -> int:
    """A deterministic tie break: the first row. Coarse scores then fill node after node."""
    del columns, rows
    return 0


class SchedulingCycle:
    """Runs scheduling attempts for pods of one profile."""

    __slots__ = (
        "_filters",
        "_finds_one",
        "_lookup_s",
        "_shares",
        "classes",
        "extenders",
        "framework",
        "handle",
        "runs_post_filters",
        "sample_size",
        "sampler",
        "tie_break",
        "waiting_assumed",
    )

    def __init__(
        self,
        framework: Framework,
        tie_break: TieBreak,
        sampler: NodeSampler,
        share: SampleSize = SAMPLE_ALL_NODES,
        extenders: Sequence[HttpExtender] = (),
        classes: EquivalenceClasses | None = None,
        *,
        groups_preempt: bool = False,
        groups_placed: bool = False,
        handle: EngineHandle,
        waiting_assumed: dict[str, AssumedPod],
    ) -> None:
        self.framework = framework
        self.handle = handle
        self.waiting_assumed = waiting_assumed  # by uid: pods that wait at Permit
        self.tie_break = tie_break
        self.sampler = sampler
        self.sample_size = share
        self.extenders = extenders
        self.classes = classes  # None: every pod is evaluated in full
        self._filters = bool(framework.profile.at(FILTER))  # without filter plugins, Filter is not observed
        self._lookup_s = 0.0  # how long it took to find that the pod is evaluated on its own
        self.runs_post_filters = True  # False during a dry run
        # Without score plugins and extenders that compare candidates, the first feasible node is chosen.
        self._finds_one = not self.framework.score_points.has_score_plugins and not any(
            extender.config.prioritize_verb or extender.config.filter_verb for extender in self.extenders
        )
        # With extenders or sampling, each attempt evaluates different nodes.
        self._shares = not self.extenders and self.sample_size.percentage is None and not self._finds_one
        preempting = tuple(extender for extender in self.extenders if extender.config.preempt_verb)
        for plugin in self.framework.profile.at(POST_FILTER):
            if hasattr(plugin, "extenders"):
                plugin.extenders = preempting
            if hasattr(plugin, "groups_preempt"):
                plugin.groups_preempt, plugin.groups_placed = groups_preempt, groups_placed

    def run(self, cycle: Cycle) -> ScheduleResult:
        """Run all steps of a cycle that needs no extender."""
        return self.prepare_for_binding(cycle, self.schedule_pod(cycle))

    async def run_with_extenders(self, cycle: Cycle, call_extender: CallExtender) -> ScheduleResult:
        """Run all steps; `call_extender` sends the calls to extenders."""
        return self.prepare_for_binding(cycle, await self.schedule_pod_with_extenders(cycle, call_extender))

    # schedulePod: PreFilter, Filter, extenders, Score

    def schedule_pod(self, cycle: Cycle) -> SchedulingDecision:
        """Run an attempt that needs no extender."""
        decision = self._decide_from_class(cycle)
        if decision is not None:
            return decision
        attempt = self._full_attempt(cycle)
        try:
            calls = next(attempt)
        except StopIteration as done:
            decision = done.value
            assert isinstance(decision, SchedulingDecision)
            return decision
        raise ExtenderError(
            f"extender {calls[0].extender.name} is configured, and this process cannot call extenders; "
            "leave `extenders` out of the configuration"
        )

    async def schedule_pod_with_extenders(self, cycle: Cycle, call_extender: CallExtender) -> SchedulingDecision:
        """Run an attempt; `call_extender` sends the calls to extenders."""
        attempt = self.attempt_steps(cycle)
        try:
            calls = next(attempt)
            while True:
                calls = attempt.send(await asyncio.gather(*map(call_extender, calls)))
        except StopIteration as done:
            decision: SchedulingDecision = done.value
            return decision

    def attempt_steps(self, cycle: Cycle) -> AttemptSteps:
        decision = self._decide_from_class(cycle)
        if decision is not None:
            return decision
        return (yield from self._full_attempt(cycle))

    def _decide_from_class(self, cycle: Cycle) -> SchedulingDecision | None:
        """Start the attempt. Returns a decision if the pod's equivalence class has a shared evaluation.

        Such a pod has passed PreFilter and Filter with the first pod of its class: both are observed, and the time
        counts as Filter's. Any other outcome of the class leads to a full attempt, which observes them itself.
        """
        self.framework.begin_attempt()
        if not (cycle.snapshot.nodes.count if cycle.allowed_rows is None else len(cycle.allowed_rows)):
            return SchedulingDecision(status=unresolvable(NO_NODES), nominated_node_name="")
        now_s, points = self.framework.plugin_caller.now_s, self.framework.plugin_caller.points
        start_s = now_s()
        evaluation = self.class_evaluation(cycle)
        took_s = now_s() - start_s
        if evaluation is None:
            self._lookup_s = took_s
            return None
        points.observe_class_lookup(took_s, found=evaluation.was_cached and evaluation.candidates > 0)
        points.observe_skipped(_PRE_FILTER)
        if self._filters:
            points.observe(_FILTER, took_s)
        return self._decision_from_class(cycle, evaluation)

    def _full_attempt(self, cycle: Cycle) -> AttemptSteps:
        outcome = self.framework.filter_points.pre_filter(cycle)
        if outcome.status.code is Code.ERROR:
            return SchedulingDecision(status=outcome.status, nominated_node_name="")
        if outcome.status.ok:  # the pod's class has no shared evaluation
            self.framework.plugin_caller.points.observe_class_lookup(self._lookup_s, found=False)
        diagnosis, rows = yield from self._feasible(cycle, outcome)
        broken = _first_error(diagnosis, cycle.snapshot.order)
        if broken is not None:
            return SchedulingDecision(status=broken, diagnosis=diagnosis, nominated_node_name="")
        if not len(rows):
            return (yield from self._no_feasible_node_steps(cycle, diagnosis))
        return (yield from self._choose(cycle, diagnosis, _table_of(cycle, rows)))

    # shared evaluations

    def class_evaluation(self, cycle: Cycle) -> ClassEvaluation | None:
        """The shared evaluation of the pod's equivalence class; None if the pod is evaluated on its own.

        Nominated pods need two filter runs on their nodes, and a shared evaluation covers all nodes.
        """
        if cycle.allowed_rows is not None:
            return None
        if self.classes is None or not (self._shares or self._samples_all(len(cycle.snapshot))):
            return None
        if cycle.pod.status.nominated_node_name or self.framework.filter_points.has_nominations:
            return None
        return self.classes.class_evaluation(cycle)

    def _decision_from_class(self, cycle: Cycle, evaluation: ClassEvaluation) -> SchedulingDecision:
        evaluation.lend_state(cycle)
        if not evaluation.candidates:
            return self._no_feasible_node(cycle, evaluation.diagnosis())
        now_s, points = self.framework.plugin_caller.now_s, self.framework.plugin_caller.points
        start_s = now_s()
        columns, best = cycle.snapshot.nodes, evaluation.best_rows()
        if evaluation.candidates > 1:
            points.observe_skipped(_PRE_SCORE)
            points.observe(_SCORE, now_s() - start_s)
        row = int(best[0 if len(best) == 1 else self.tie_break(columns, best)])
        return SchedulingDecision(columns.names[row], class_evaluation=evaluation, row=row)

    # Filter

    def _feasible(
        self, cycle: Cycle, outcome: PreFilterSummary
    ) -> Generator[ExtenderCalls, ExtenderReplies, tuple[Diagnosis, RowVector]]:
        filtering = self.framework.filter_points
        nominated = cycle.snapshot.nodes.index.get(cycle.pod.status.nominated_node_name)
        if nominated is not None and cycle.allowed_rows is not None and nominated not in cycle.allowed_rows:
            nominated = None
        earlier: Status = SUCCESS
        if nominated is not None and outcome.status.ok:
            unnarrowed, start_s = PreFilterSummary(), self.framework.plugin_caller.now_s()
            alone = filtering.run_filters(cycle, unnarrowed, only=np.array([nominated], dtype=np.intp))
            self._observe_filter(alone, start_s)
            rows = yield from self._run_extender_filters(cycle, alone, _feasible_rows(alone))
            if len(rows):
                return alone, rows
            earlier = alone.status(nominated)
        start_s = self.framework.plugin_caller.now_s()
        diagnosis, visit_order = self._filter_in_visit_order(cycle, outcome)
        if not outcome.status.rejected:
            self._observe_filter(diagnosis, start_s)
        if nominated is not None and earlier.rejected and not diagnosis.explicit_rows()[nominated]:
            diagnosis.override(nominated, earlier)  # PreFilter excluded the node, but it was evaluated as nominated
        rows = self._take_sample(diagnosis, visit_order)
        rows = yield from self._run_extender_filters(cycle, diagnosis, rows)
        return diagnosis, rows

    def _observe_filter(self, diagnosis: Diagnosis, start_s: float) -> None:
        """Observe Filter once for a search, however many steps it took."""
        if self._filters:
            code = Code.ERROR if diagnosis.rows_with(Code.ERROR).any() else Code.SUCCESS
            plugin_caller = self.framework.plugin_caller
            plugin_caller.points.observe(_FILTER, plugin_caller.now_s() - start_s, code.label)

    def _filter_in_visit_order(self, cycle: Cycle, outcome: PreFilterSummary) -> tuple[Diagnosis, RowVector]:
        """Run the filters on the candidates; return the diagnosis and the candidates in visit order.

        With a plugin that evaluates one node at a time, and a sample size, the search ends when the sample is complete.
        Otherwise all candidates are evaluated: column filters have no earlier end.
        """
        filtering, order = self.framework.filter_points, cycle.snapshot.order
        if outcome.status.rejected:
            return filtering.run_filters(cycle, outcome), order[:0]
        candidates = filtering.candidates(cycle.snapshot.table, outcome)
        for rows in (candidates, cycle.allowed_rows):
            if rows is not None:
                order = order[np.isin(order, rows)]
        visit_order = self.sampler.visit_order(order)
        wanted = self._feasible_nodes_wanted(len(visit_order))
        if wanted >= len(visit_order) or not filtering.per_node_plugins:
            return filtering.run_filters(cycle, outcome, only=cycle.allowed_rows), visit_order
        step = wanted + 1  # one more than wanted: the next feasible row ends the sample
        diagnosis = filtering.run_filters(cycle, outcome, only=np.sort(visit_order[:step]))
        while step < len(visit_order) and len(_feasible_rows(diagnosis)) <= wanted:
            diagnosis.add(filtering.run_filters(cycle, outcome, only=np.sort(visit_order[step : 2 * step])))
            step *= 2
        return diagnosis, visit_order

    def _take_sample(self, diagnosis: Diagnosis, visit_order: RowVector) -> RowVector:
        wanted = self._feasible_nodes_wanted(len(visit_order))
        if wanted < len(visit_order):
            return self.sampler.take_sample(diagnosis, visit_order, wanted)
        self.sampler.advance(int(diagnosis.explicit_rows().sum()), diagnosis.eligible_count)
        return _feasible_rows(diagnosis)

    def _samples_all(self, nodes: int) -> bool:
        return not self.extenders and self._feasible_nodes_wanted(nodes) >= nodes

    def _feasible_nodes_wanted(self, candidates: int) -> int:
        if self._finds_one:
            return 1
        return (
            candidates
            if self.sample_size.percentage is None
            else num_feasible_nodes_to_find(candidates, self.sample_size.percentage)
        )

    def _run_extender_filters(
        self, cycle: Cycle, diagnosis: Diagnosis, rows: RowVector
    ) -> Generator[ExtenderCalls, ExtenderReplies, RowVector]:
        """Let each interested extender filter the remaining rows, in order."""
        for extender in self.extenders:
            if not len(rows):
                break
            if not extender.config.filter_verb or not extender.is_interested(cycle.pod):
                continue
            nodes = NodeTable(cycle.snapshot.nodes, rows)
            (reply,) = yield (extender.filter_call(cycle.pod, nodes),)
            try:
                remaining, failed = extender.parse_filter(reply, nodes)
            except ExtenderError as fault:
                if extender.config.ignorable:
                    continue
                diagnosis.override(int(rows[0]), Status(Code.ERROR, (str(fault),)))
                return rows[:0]
            if len(remaining) < len(rows):
                diagnosis.unschedulable_plugins.add(EXTENDER_REJECTOR)
            for row, status in failed.items():
                diagnosis.overrides[row] = status
            rows = remaining
        return rows

    # Score and selection

    def _choose(
        self, cycle: Cycle, diagnosis: Diagnosis, nodes: NodeTable
    ) -> Generator[ExtenderCalls, ExtenderReplies, SchedulingDecision]:
        if len(nodes) == 1:
            return SchedulingDecision(nodes.names[0], diagnosis=diagnosis, nodes=nodes)
        scores = self.framework.score_points.score(cycle, nodes)
        if not scores.status.ok:
            return SchedulingDecision(status=scores.status, diagnosis=diagnosis, nominated_node_name="")
        yield from self._add_extender_scores(cycle, nodes, scores)
        return SchedulingDecision(self.pick(nodes, scores.total), diagnosis=diagnosis, nodes=nodes, scores=scores)

    def _add_extender_scores(
        self, cycle: Cycle, nodes: NodeTable, scores: TotalScores
    ) -> Generator[ExtenderCalls, ExtenderReplies, None]:
        """Add the scores of the extenders, which are called concurrently. A failed extender adds nothing."""
        scorers = [each for each in self.extenders if each.config.prioritize_verb and each.is_interested(cycle.pod)]
        if not scorers:
            return
        replies = yield tuple(extender.prioritize_call(cycle.pod, nodes) for extender in scorers)
        for extender, reply in zip(scorers, replies, strict=True):
            try:
                scores.total += extender.parse_prioritize(reply, nodes)
            except ExtenderError:
                continue

    def pick(self, nodes: NodeTable, total: IntVector) -> str:
        """The node with the highest score; the tie break picks one of several."""
        best = nodes.rows[total == total.max()]
        choice = 0 if len(best) == 1 else self.tie_break(nodes.columns, best)
        return nodes.columns.names[int(best[choice])]

    # PostFilter

    def _no_feasible_node(self, cycle: Cycle, diagnosis: Diagnosis) -> SchedulingDecision:
        """Run PostFilter for a profile without extenders that support preemption."""
        if not self.runs_post_filters or not self.framework.profile.at(POST_FILTER):
            return _unschedulable_decision(diagnosis, _NO_POST_FILTER)
        answer = self.framework.post_filter(cycle, diagnosis)
        diagnosis.post_filter_message = answer.status.message
        return _unschedulable_decision(diagnosis, answer)

    def _no_feasible_node_steps(self, cycle: Cycle, diagnosis: Diagnosis) -> AttemptSteps:
        if not self.runs_post_filters or not any(each.supports_preemption(cycle.pod) for each in self.extenders):
            return self._no_feasible_node(cycle, diagnosis)
        steps = self.framework.post_filter_steps(cycle, diagnosis)
        try:
            question = next(steps)
            while True:
                extender = question.extender
                assert isinstance(extender, HttpExtender), "preemption calls only the extenders of this profile"
                (reply,) = yield (extender.preempt_call(cycle.pod, question.candidates),)
                question = steps.send(extender.parse_preempt(reply))
        except StopIteration as done:
            answer: PostFilterResult = done.value
            diagnosis.post_filter_message = answer.status.message
            return _unschedulable_decision(diagnosis, answer)

    # assume, Reserve, Permit

    def prepare_for_binding(self, cycle: Cycle, decision: SchedulingDecision) -> ScheduleResult:
        """Assume the pod and run Reserve and Permit. A refusal undoes all of it. A pod without a node is nominated."""
        if decision.nominated_node_name is not None:
            self.handle.nominator.nominate(cycle.info, decision.nominated_node_name)
        if decision.node is None:
            return ScheduleResult(decision, decision.status)
        info, cache = cycle.info.bound_to(decision.node), self.handle.cache
        cache.assume(info)
        try:
            return self._reserve_and_permit(AssumedPod(self.framework, cycle, info.pod), decision)
        except BaseException:  # an interrupt or a bug: in either case the pod must not stay counted on the node
            cache.forget(info.pod)
            raise

    def _reserve_and_permit(self, assumed: AssumedPod, decision: SchedulingDecision) -> ScheduleResult:
        handle, binding_points, cycle = self.handle, self.framework.binding_points, assumed.cycle
        node_name = assumed.pod.spec.node_name
        handle.nominator.delete_nomination(assumed.pod.metadata.uid)
        status = binding_points.reserve(cycle, node_name)
        if not status.ok:
            handle.cache.forget(assumed.pod)
            return ScheduleResult(decision, single_node_status(status))
        permit = binding_points.permit(cycle, node_name)
        if not permit.status.ok:
            assumed.end_trial(handle.cache)
            return ScheduleResult(decision, single_node_status(permit.status))
        if permit.waits:
            handle.waiting_pods.add(assumed.pod, permit.waits, handle.clock.monotonic_s())
            self.waiting_assumed[assumed.pod.uid] = assumed
        return ScheduleResult(decision, status, permit.waits, assumed)


_NO_POST_FILTER = PostFilterResult(SUCCESS, nominated_node_name="")


def _unschedulable_decision(diagnosis: Diagnosis, answer: PostFilterResult) -> SchedulingDecision:
    return SchedulingDecision(
        status=Status(Code.UNSCHEDULABLE, (diagnosis.sentence(),)),
        diagnosis=diagnosis,
        nominated_node_name=answer.nominated_node_name,
        victims=tuple(pod.key for pod in answer.victims),
        writes=answer.writes,
    )


def _table_of(cycle: Cycle, rows: RowVector) -> NodeTable:
    """The rows as a table. All rows give the snapshot's own table, without a copy."""
    whole = cycle.snapshot.table
    return whole if len(rows) == len(whole) else NodeTable(cycle.snapshot.nodes, rows)


def _feasible_rows(diagnosis: Diagnosis) -> RowVector:
    return np.flatnonzero(diagnosis.rows_with(Code.SUCCESS))


def _first_error(diagnosis: Diagnosis, order: RowVector) -> Status | None:
    """The first filter error in visit order. It fails the attempt."""
    rows = diagnosis.rows_with(Code.ERROR)
    if not rows.any():
        return None
    return diagnosis.status(int(order[rows[order].argmax()]))
