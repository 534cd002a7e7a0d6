"""Answers one question: where does this pod go, and if nowhere, why?

One attempt, in the order people know: PreFilter, Filter (the nominated node first), extenders, PostFilter or PreScore,
Score, choose. Pure decision: nothing is assumed, reserved or written here. The attempt is a generator: it yields only
when an extender has to be asked, so a profile without extenders runs straight through (`schedule_pod`), and one with
extenders is driven by whoever can await (`schedule_pod_with_extenders`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bayplan.errors import UsageError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.extension_points import (
    FILTER,
    POST_FILTER,
    PRE_FILTER,
    PRE_SCORE,
    SCORE,
)
from bayplan.framework.api.plugin import PostFilterResult
from bayplan.framework.api.status import (
    SUCCESS,
    Code,
    Status,
    unresolvable,
)
from bayplan.framework.equivalence.class_evaluation import ClassEvaluation
from bayplan.framework.equivalence.equivalence_classes import EquivalenceClasses
from bayplan.framework.runtime.event_registrations import EXTENDER_REJECTOR
from bayplan.framework.runtime.filtering import PreFilterSummary
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.scoring import TotalScores
from bayplan.scheduler.cycle.http_extender import (
    ExtenderCall,
    ExtenderError,
    ExtenderReply,
    HttpExtender,
)
from bayplan.scheduler.cycle.node_sampling import (
    SAMPLE_ALL_NODES,
    NodeSampler,
    SampleSize,
    num_feasible_nodes_to_find,
)
from bayplan.snapshot import IntVector, NodeColumns, NodeTable, RowVector

_PRE_FILTER, _FILTER, _PRE_SCORE, _SCORE = (
    PRE_FILTER.metric_label,
    FILTER.metric_label,
    PRE_SCORE.metric_label,
    SCORE.metric_label,
)
NO_NODES = "no nodes available to schedule pods"

ExtenderCalls = tuple[ExtenderCall, ...]
"""What is asked at once; the replies come in this order."""

ExtenderReplies = Sequence[ExtenderReply]
AttemptSteps = Generator[ExtenderCalls, ExtenderReplies, "SchedulingDecision"]
CallExtender = Callable[[ExtenderCall], Awaitable[ExtenderReply]]
TieBreak = Callable[[NodeColumns, RowVector | Sequence[int]], int]


def first_row(columns: NodeColumns, rows: RowVector | Sequence[int]) -> int:
    """A tie break without chance: the first in the order of the rows. Coarse scores then fill node after node."""
    del columns, rows
    return 0


"""Which of equally good rows: an index into them."""


@dataclass(slots=True)
class SchedulingDecision:
    """The outcome of one attempt."""

    node: str | None = None
    status: Status = SUCCESS
    diagnosis: Diagnosis | None = None
    nodes: NodeTable | None = None  # the feasible ones
    scores: TotalScores | None = None  # None: there was nothing to choose from
    nominated_node_name: str | None = None  # None: leave the nomination, "": clear it
    victims: tuple[str, ...] = ()
    writes: tuple[object, ...] = ()
    class_evaluation: ClassEvaluation | None = (
        None  # what it was read off, until the next decision; the fields above are empty then
    )
    row: int = -1  # of the node in what it was read off
    is_stale: bool = False  # what it was read off is another pod's now

    def release(self) -> None:
        """The cluster moves on: whatever is shared with other pods is about to be theirs."""
        if self.class_evaluation is not None:
            self.class_evaluation, self.is_stale = None, True

    def with_details(self) -> SchedulingDecision:
        """The decision with everything spelled out that pods like this one share; to be asked before the next one."""
        if self.is_stale:
            raise UsageError(
                f"the details of the decision for {self.node} are gone: pods share them, and the next pod has changed "
                "them; ask for in_detail() before anything else is decided, or read the record"
            )
        standing = self.class_evaluation
        if standing is None or self.node is None:
            return self
        nodes = standing.snapshot.table.restricted_to(standing.feasible)
        scores = standing.scores() if len(nodes) > 1 else None
        return replace(self, diagnosis=standing.diagnosis(), nodes=nodes, scores=scores, class_evaluation=None)

    @property
    def rejectors(self) -> tuple[frozenset[str], frozenset[str]]:
        """Who rejected the pod, and of those who waits for something outside; nobody where something went wrong."""
        if not self.status.rejected:
            return frozenset(), frozenset()
        if self.diagnosis is None:
            return frozenset(filter(None, (self.status.plugin,))), frozenset()
        return frozenset(self.diagnosis.unschedulable_plugins), frozenset(self.diagnosis.pending_plugins)

    @property
    def message(self) -> str:
        """What the FailedScheduling event says."""
        return self.status.message


class SchedulingCycle:
    """Makes attempts for pods of one profile."""

    __slots__ = (
        "_filters",
        "_finds_one",
        "_shares",
        "_sought_s",
        "classes",
        "extenders",
        "framework",
        "runs_post_filters",
        "sample_size",
        "sampler",
        "tie_break",
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
    ) -> None:
        self.framework = framework
        self.tie_break = tie_break
        self.sampler = sampler
        self.sample_size = share
        self.extenders = extenders
        self.classes = classes  # None: every pod is evaluated in full
        self._filters = bool(framework.profile.at(FILTER))  # where nobody does, Filter is not observed
        self._sought_s = 0.0  # how long it took to find that the pod is evaluated on its own
        self.runs_post_filters = True  # not while something is only tried out
        # Where nobody would compare candidates, the first one is as good as any.
        self._finds_one = not self.framework.score_points.has_score_plugins and not any(
            extender.config.prioritize_verb or extender.config.filter_verb for extender in self.extenders
        )
        # Extenders and samples look at other nodes each time.
        self._shares = not self.extenders and self.sample_size.percentage is None and not self._finds_one
        preempting = tuple(extender for extender in self.extenders if extender.config.preempt_verb)
        for plugin in self.framework.profile.at(POST_FILTER):
            if hasattr(plugin, "extenders"):
                plugin.extenders = preempting
            if hasattr(plugin, "groups_preempt"):
                plugin.groups_preempt, plugin.groups_placed = groups_preempt, groups_placed

    def schedule_pod(self, cycle: Cycle) -> SchedulingDecision:
        """Run an attempt that needs nobody outside."""
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
            f"extender {calls[0].extender.name} would have to be asked, and nothing here can call it; "
            "leave `extenders` out of the configuration"
        )

    async def schedule_pod_with_extenders(self, cycle: Cycle, ask: CallExtender) -> SchedulingDecision:
        """Run an attempt, awaiting extenders by `ask`."""
        attempt = self.attempt_steps(cycle)
        try:
            calls = next(attempt)
            while True:
                calls = attempt.send(await asyncio.gather(*map(ask, calls)))
        except StopIteration as done:
            decision: SchedulingDecision = done.value
            return decision

    def attempt_steps(self, cycle: Cycle) -> AttemptSteps:
        decision = self._decide_from_class(cycle)
        if decision is not None:
            return decision
        return (yield from self._full_attempt(cycle))

    def _decide_from_class(self, cycle: Cycle) -> SchedulingDecision | None:
        """Begin, and end at once where the pod need not be looked at on its own.

        Whoever shares an evaluation has passed PreFilter and Filter as its founder did: both are observed, and the time
        is Filter's. All other answers of theirs send a pod the long way, which observes them itself.
        """
        self.framework.begin_attempt()
        if not (cycle.snapshot.nodes.count if cycle.allowed_rows is None else len(cycle.allowed_rows)):
            return SchedulingDecision(status=unresolvable(NO_NODES), nominated_node_name="")
        now_s, points = self.framework.plugin_caller.now_s, self.framework.plugin_caller.points
        start_s = now_s()
        standing = self.class_evaluation(cycle)
        took_s = now_s() - start_s
        if standing is None:
            self._sought_s = took_s
            return None
        points.observe_class_lookup(took_s, found=standing.was_cached and standing.candidates > 0)
        points.observe_skipped(_PRE_FILTER)
        if self._filters:
            points.observe(_FILTER, took_s)
        return self._decision_from_class(cycle, standing)

    def _full_attempt(self, cycle: Cycle) -> AttemptSteps:
        outcome = self.framework.filter_points.pre_filter(cycle)
        if outcome.status.code is Code.ERROR:
            return SchedulingDecision(status=outcome.status, nominated_node_name="")
        if outcome.status.ok:  # no node is looked for on behalf of others
            self.framework.plugin_caller.points.observe_class_lookup(self._sought_s, found=False)
        diagnosis, rows = yield from self._feasible(cycle, outcome)
        broken = _first_error(diagnosis, cycle.snapshot.order)
        if broken is not None:
            return SchedulingDecision(status=broken, diagnosis=diagnosis, nominated_node_name="")
        if not len(rows):
            return (yield from self._no_feasible_node_steps(cycle, diagnosis))
        return (yield from self._choose(cycle, diagnosis, _table_of(cycle, rows)))

    # sharing ----------------------------------------------------------------------------------------------------

    def class_evaluation(self, cycle: Cycle) -> ClassEvaluation | None:
        """What pods like this one know already; None where the pod has to be looked at on its own.

        Nominated pods make a node two different ones, and what is shared is about all nodes.
        """
        if cycle.allowed_rows is not None:
            return None
        if self.classes is None or not (self._shares or self._samples_all(len(cycle.snapshot))):
            return None
        if cycle.pod.status.nominated_node_name or self.framework.filter_points.has_nominations:
            return None
        return self.classes.class_evaluation(cycle)

    def _decision_from_class(self, cycle: Cycle, standing: ClassEvaluation) -> SchedulingDecision:
        standing.lend_state(cycle)
        if not standing.candidates:
            return self._no_feasible_node(cycle, standing.diagnosis())
        now_s, points = self.framework.plugin_caller.now_s, self.framework.plugin_caller.points
        start_s = now_s()
        columns, best = cycle.snapshot.nodes, standing.best_rows()
        if standing.candidates > 1:
            points.observe_skipped(_PRE_SCORE)
            points.observe(_SCORE, now_s() - start_s)
        row = int(best[0 if len(best) == 1 else self.tie_break(columns, best)])
        return SchedulingDecision(columns.names[row], class_evaluation=standing, row=row)

    # filtering --------------------------------------------------------------------------------------------------

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
        diagnosis, way = self._filter_in_visit_order(cycle, outcome)
        if not outcome.status.rejected:
            self._observe_filter(diagnosis, start_s)
        if nominated is not None and earlier.rejected and not diagnosis.explicit_rows()[nominated]:
            diagnosis.override(nominated, earlier)  # PreFilter left it out, and it was looked at nevertheless
        rows = self._take_sample(diagnosis, way)
        rows = yield from self._run_extender_filters(cycle, diagnosis, rows)
        return diagnosis, rows

    def _observe_filter(self, diagnosis: Diagnosis, start_s: float) -> None:
        """A search along the nodes is over: it counts once, in however many steps it was made."""
        if self._filters:
            code = Code.ERROR if diagnosis.rows_with(Code.ERROR).any() else Code.SUCCESS
            boundary = self.framework.plugin_caller
            boundary.points.observe(_FILTER, boundary.now_s() - start_s, code.label)

    def _filter_in_visit_order(self, cycle: Cycle, outcome: PreFilterSummary) -> tuple[Diagnosis, RowVector]:
        """What filters say of the candidates, and the way along them.

        With a filter that walks over nodes, and a sample to find, the search ends where the sample is complete; filters
        of whole tables have answered before that could be known.
        """
        filtering, order = self.framework.filter_points, cycle.snapshot.order
        if outcome.status.rejected:
            return filtering.run_filters(cycle, outcome), order[:0]
        kept = filtering.candidates(cycle.snapshot.table, outcome)
        for rows in (kept, cycle.allowed_rows):
            if rows is not None:
                order = order[np.isin(order, rows)]
        way = self.sampler.visit_order(order)
        wanted = self._feasible_nodes_wanted(len(way))
        if wanted >= len(way) or not filtering.per_node_plugins:
            return filtering.run_filters(cycle, outcome, only=cycle.allowed_rows), way
        step = wanted + 1  # one more than wanted shows where the sample ends
        diagnosis = filtering.run_filters(cycle, outcome, only=np.sort(way[:step]))
        while step < len(way) and len(_feasible_rows(diagnosis)) <= wanted:
            diagnosis.add(filtering.run_filters(cycle, outcome, only=np.sort(way[step : 2 * step])))
            step *= 2
        return diagnosis, way

    def _take_sample(self, diagnosis: Diagnosis, way: RowVector) -> RowVector:
        wanted = self._feasible_nodes_wanted(len(way))
        if wanted < len(way):
            return self.sampler.take_sample(diagnosis, way, wanted)
        self.sampler.advance(int(diagnosis.explicit_rows().sum()), diagnosis.eligible_count)
        return _feasible_rows(diagnosis)

    def _samples_all(self, nodes: int) -> bool:
        """Whether a sample of so many nodes is all of them."""
        return not self.extenders and self._feasible_nodes_wanted(nodes) >= nodes

    def _feasible_nodes_wanted(self, candidates: int) -> int:
        """How many nodes that fit are enough."""
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
        """Let each interested extender narrow the rows that are left, in order."""
        for extender in self.extenders:
            if not len(rows):
                break
            if not extender.config.filter_verb or not extender.is_interested(cycle.pod):
                continue
            nodes = NodeTable(cycle.snapshot.nodes, rows)
            (reply,) = yield (extender.filter_call(cycle.pod, nodes),)
            try:
                kept, failed = extender.parse_filter(reply, nodes)
            except ExtenderError as fault:
                if extender.config.ignorable:
                    continue
                diagnosis.override(int(rows[0]), Status(Code.ERROR, (str(fault),)))
                return rows[:0]
            if len(kept) < len(rows):
                diagnosis.unschedulable_plugins.add(EXTENDER_REJECTOR)
            for row, status in failed.items():
                diagnosis.overrides[row] = status
            rows = kept
        return rows

    # choosing ---------------------------------------------------------------------------------------------------

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
        """Add what extenders think, all asked at once; one that fails is left out."""
        asked = [each for each in self.extenders if each.config.prioritize_verb and each.is_interested(cycle.pod)]
        if not asked:
            return
        replies = yield tuple(extender.prioritize_call(cycle.pod, nodes) for extender in asked)
        for extender, reply in zip(asked, replies, strict=True):
            try:
                scores.total += extender.parse_prioritize(reply, nodes)
            except ExtenderError:
                continue

    def pick(self, nodes: NodeTable, total: IntVector) -> str:
        """The best node; equally good ones are left to the tie break."""
        best = nodes.rows[total == total.max()]
        choice = 0 if len(best) == 1 else self.tie_break(nodes.columns, best)
        return nodes.columns.names[int(best[choice])]

    # failing ----------------------------------------------------------------------------------------------------

    def _no_feasible_node(self, cycle: Cycle, diagnosis: Diagnosis) -> SchedulingDecision:
        """For pods of a profile without extenders."""
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
                assert isinstance(extender, HttpExtender), "preemption asks those it was given"
                (reply,) = yield (extender.preempt_call(cycle.pod, question.candidates),)
                question = steps.send(extender.parse_preempt(reply))
        except StopIteration as done:
            answer: PostFilterResult = done.value
            diagnosis.post_filter_message = answer.status.message
            return _unschedulable_decision(diagnosis, answer)


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
    """The rows as a table: the whole one, which needs no copying, where all of them are meant."""
    whole = cycle.snapshot.table
    return whole if len(rows) == len(whole) else NodeTable(cycle.snapshot.nodes, rows)


def _feasible_rows(diagnosis: Diagnosis) -> RowVector:
    return np.flatnonzero(diagnosis.rows_with(Code.SUCCESS))


def _first_error(diagnosis: Diagnosis, order: RowVector) -> Status | None:
    """The first filter that broke, in the order nodes are visited: it fails the attempt."""
    rows = diagnosis.rows_with(Code.ERROR)
    if not rows.any():
        return None
    return diagnosis.status(int(order[rows[order].argmax()]))
