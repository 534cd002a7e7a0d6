"""Answers one question: where does this pod go, and if nowhere, why?

One attempt, in the order people know: PreFilter, Filter (the nominated node first), extenders, PostFilter or
PreScore, Score, choose. Pure decision: nothing is assumed, reserved or written here. The attempt is a generator: it
yields only when an extender has to be asked, so a profile without extenders runs straight through (`decide`), and one
with extenders is driven by whoever can await (`decide_with`).
"""

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
from bayplan.framework.api.plugin import PostFilterAnswer
from bayplan.framework.api.status import (
    SUCCESS,
    Code,
    Status,
    unresolvable,
)
from bayplan.framework.equivalence.class_evaluation import Standing
from bayplan.framework.equivalence.equivalence_classes import Classes
from bayplan.framework.runtime.event_registrations import EXTENDER
from bayplan.framework.runtime.filtering import PreFilterOutcome
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.scoring import Scores
from bayplan.scheduler.cycle.http_extender import (
    Extender,
    ExtenderCall,
    ExtenderFault,
    ExtenderReply,
)
from bayplan.scheduler.cycle.node_sampling import (
    ALL_NODES,
    Sampler,
    Share,
    nodes_to_find,
)
from bayplan.snapshot import IntVector, NodeColumns, NodeTable, RowVector

_PRE_FILTER, _FILTER, _PRE_SCORE, _SCORE = PRE_FILTER.label, FILTER.label, PRE_SCORE.label, SCORE.label
NO_NODES = "no nodes available to schedule pods"

Calls = tuple[ExtenderCall, ...]
"""What is asked at once; the replies come in this order."""

Replies = Sequence[ExtenderReply]
Attempt = Generator[Calls, Replies, "Decision"]
Ask = Callable[[ExtenderCall], Awaitable[ExtenderReply]]
TieBreak = Callable[[NodeColumns, RowVector | Sequence[int]], int]


def first_of(columns: NodeColumns, rows: RowVector | Sequence[int]) -> int:
    """A tie break without chance: the first in the order of the rows. Coarse scores then fill node after node."""
    del columns, rows
    return 0


"""Which of equally good rows: an index into them."""


@dataclass(slots=True)
class Decision:
    """The outcome of one attempt."""

    node: str | None = None
    status: Status = SUCCESS
    diagnosis: Diagnosis | None = None
    nodes: NodeTable | None = None  # the feasible ones
    scores: Scores | None = None  # None: there was nothing to choose from
    nominate: str | None = None  # None: leave the nomination, "": clear it
    victims: tuple[str, ...] = ()
    writes: tuple[object, ...] = ()
    standing: Standing | None = None  # what it was read off, until the next decision; the fields above are empty then
    row: int = -1  # of the node in what it was read off
    is_over: bool = False  # what it was read off is another pod's now

    def let_go(self) -> None:
        """The cluster moves on: whatever is shared with other pods is about to be theirs."""
        if self.standing is not None:
            self.standing, self.is_over = None, True

    def in_detail(self) -> Decision:
        """The decision with everything spelled out that pods like this one share; to be asked before the next one."""
        if self.is_over:
            raise UsageError(
                f"the details of the decision for {self.node} are gone: pods share them, and the next pod has changed "
                "them; ask for in_detail() before anything else is decided, or read the record"
            )
        standing = self.standing
        if standing is None or self.node is None:
            return self
        nodes = standing.snapshot.table.narrowed(standing.feasible)
        scores = standing.scores() if len(nodes) > 1 else None
        return replace(self, diagnosis=standing.diagnosis(), nodes=nodes, scores=scores, standing=None)

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


class Attempts:
    """Makes attempts for pods of one profile."""

    __slots__ = (
        "_filters",
        "_finds_one",
        "_shares",
        "_sought_s",
        "asks_post_filters",
        "classes",
        "extenders",
        "framework",
        "sampler",
        "share",
        "tie_break",
    )

    def __init__(
        self,
        framework: Framework,
        tie_break: TieBreak,
        sampler: Sampler,
        share: Share = ALL_NODES,
        extenders: Sequence[Extender] = (),
        classes: Classes | None = None,
        *,
        groups_preempt: bool = False,
        groups_placed: bool = False,
    ) -> None:
        self.framework = framework
        self.tie_break = tie_break
        self.sampler = sampler
        self.share = share
        self.extenders = extenders
        self.classes = classes  # None: every pod is evaluated in full
        self._filters = bool(framework.profile.at(FILTER))  # where nobody does, Filter is not observed
        self._sought_s = 0.0  # how long it took to find that the pod is evaluated on its own
        self.asks_post_filters = True  # not while something is only tried out
        # Where nobody would compare candidates, the first one is as good as any.
        self._finds_one = not self.framework.scoring.scores_anything and not any(
            extender.config.prioritize_verb or extender.config.filter_verb for extender in self.extenders
        )
        # Extenders and samples look at other nodes each time.
        self._shares = not self.extenders and self.share.percentage is None and not self._finds_one
        preempting = tuple(extender for extender in self.extenders if extender.config.preempt_verb)
        for plugin in self.framework.profile.at(POST_FILTER):
            if hasattr(plugin, "extenders"):
                plugin.extenders = preempting
            if hasattr(plugin, "groups_preempt"):
                plugin.groups_preempt, plugin.groups_placed = groups_preempt, groups_placed

    def decide(self, cycle: Cycle) -> Decision:
        """Run an attempt that needs nobody outside."""
        decision = self._from_others(cycle)
        if decision is not None:
            return decision
        attempt = self._on_its_own(cycle)
        try:
            calls = next(attempt)
        except StopIteration as done:
            decision = done.value
            assert isinstance(decision, Decision)
            return decision
        raise ExtenderFault(
            f"extender {calls[0].extender.name} would have to be asked, and nothing here can call it; "
            "leave `extenders` out of the configuration"
        )

    async def decide_with(self, cycle: Cycle, ask: Ask) -> Decision:
        """Run an attempt, awaiting extenders by `ask`."""
        attempt = self.attempt(cycle)
        try:
            calls = next(attempt)
            while True:
                calls = attempt.send(await asyncio.gather(*map(ask, calls)))
        except StopIteration as done:
            decision: Decision = done.value
            return decision

    def attempt(self, cycle: Cycle) -> Attempt:
        decision = self._from_others(cycle)
        if decision is not None:
            return decision
        return (yield from self._on_its_own(cycle))

    def _from_others(self, cycle: Cycle) -> Decision | None:
        """Begin, and end at once where the pod need not be looked at on its own.

        Whoever shares an evaluation has passed PreFilter and Filter as its founder did: both are observed, and the time
        is Filter's. All other answers of theirs send a pod the long way, which observes them itself.
        """
        self.framework.begin()
        if not (cycle.snapshot.nodes.count if cycle.within is None else len(cycle.within)):
            return Decision(status=unresolvable(NO_NODES), nominate="")
        now_s, points = self.framework.boundary.now_s, self.framework.boundary.points
        start_s = now_s()
        standing = self.standing(cycle)
        took_s = now_s() - start_s
        if standing is None:
            self._sought_s = took_s
            return None
        points.looked_up(took_s, found=standing.was_known and standing.candidates > 0)
        points.passed(_PRE_FILTER)
        if self._filters:
            points.took(_FILTER, took_s)
        return self._from_standing(cycle, standing)

    def _on_its_own(self, cycle: Cycle) -> Attempt:
        outcome = self.framework.filtering.pre_filter(cycle)
        if outcome.status.code is Code.ERROR:
            return Decision(status=outcome.status, nominate="")
        if outcome.status.ok:  # no node is looked for on behalf of others
            self.framework.boundary.points.looked_up(self._sought_s, found=False)
        diagnosis, rows = yield from self._feasible(cycle, outcome)
        broken = _first_error(diagnosis, cycle.snapshot.order)
        if broken is not None:
            return Decision(status=broken, diagnosis=diagnosis, nominate="")
        if not len(rows):
            return (yield from self._nowhere_asking(cycle, diagnosis))
        return (yield from self._choose(cycle, diagnosis, _table_of(cycle, rows)))

    # sharing ----------------------------------------------------------------------------------------------------

    def standing(self, cycle: Cycle) -> Standing | None:
        """What pods like this one know already; None where the pod has to be looked at on its own.

        Nominated pods make a node two different ones, and what is shared is about all nodes.
        """
        if cycle.within is not None:
            return None
        if self.classes is None or not (self._shares or self._covers(len(cycle.snapshot))):
            return None
        if cycle.pod.status.nominated_node_name or self.framework.filtering.has_nominations:
            return None
        return self.classes.standing(cycle)

    def _from_standing(self, cycle: Cycle, standing: Standing) -> Decision:
        standing.lend(cycle)
        if not standing.candidates:
            return self._nowhere(cycle, standing.diagnosis())
        now_s, points = self.framework.boundary.now_s, self.framework.boundary.points
        start_s = now_s()
        columns, best = cycle.snapshot.nodes, standing.best_rows()
        if standing.candidates > 1:
            points.passed(_PRE_SCORE)
            points.took(_SCORE, now_s() - start_s)
        row = int(best[0 if len(best) == 1 else self.tie_break(columns, best)])
        return Decision(columns.names[row], standing=standing, row=row)

    # filtering --------------------------------------------------------------------------------------------------

    def _feasible(
        self, cycle: Cycle, outcome: PreFilterOutcome
    ) -> Generator[Calls, Replies, tuple[Diagnosis, RowVector]]:
        filtering = self.framework.filtering
        nominated = cycle.snapshot.nodes.index.get(cycle.pod.status.nominated_node_name)
        if nominated is not None and cycle.within is not None and nominated not in cycle.within:
            nominated = None
        earlier: Status = SUCCESS
        if nominated is not None and outcome.status.ok:
            unnarrowed, start_s = PreFilterOutcome(), self.framework.boundary.now_s()
            alone = filtering.diagnose(cycle, unnarrowed, only=np.array([nominated], dtype=np.intp))
            self._observe_filter(alone, start_s)
            rows = yield from self._extended(cycle, alone, _rows_that_fit(alone))
            if len(rows):
                return alone, rows
            earlier = alone.status(nominated)
        start_s = self.framework.boundary.now_s()
        diagnosis, way = self._looked_at(cycle, outcome)
        if not outcome.status.rejected:
            self._observe_filter(diagnosis, start_s)
        if nominated is not None and earlier.rejected and not diagnosis.explicit_rows()[nominated]:
            diagnosis.override(nominated, earlier)  # PreFilter left it out, and it was looked at nevertheless
        rows = self._sampled(diagnosis, way)
        rows = yield from self._extended(cycle, diagnosis, rows)
        return diagnosis, rows

    def _observe_filter(self, diagnosis: Diagnosis, start_s: float) -> None:
        """A search along the nodes is over: it counts once, in however many steps it was made."""
        if self._filters:
            code = Code.ERROR if diagnosis.rows_with(Code.ERROR).any() else Code.SUCCESS
            boundary = self.framework.boundary
            boundary.points.took(_FILTER, boundary.now_s() - start_s, code.label)

    def _looked_at(self, cycle: Cycle, outcome: PreFilterOutcome) -> tuple[Diagnosis, RowVector]:
        """What filters say of the candidates, and the way along them.

        With a filter that walks over nodes, and a sample to find, the search ends where the sample is complete; filters
        of whole tables have answered before that could be known.
        """
        filtering, order = self.framework.filtering, cycle.snapshot.order
        if outcome.status.rejected:
            return filtering.diagnose(cycle, outcome), order[:0]
        kept = filtering.candidates(cycle.snapshot.table, outcome)
        for rows in (kept, cycle.within):
            if rows is not None:
                order = order[np.isin(order, rows)]
        way = self.sampler.way(order)
        wanted = self._enough(len(way))
        if wanted >= len(way) or not filtering.one_node_plugins:
            return filtering.diagnose(cycle, outcome, only=cycle.within), way
        step = wanted + 1  # one more than wanted shows where the sample ends
        diagnosis = filtering.diagnose(cycle, outcome, only=np.sort(way[:step]))
        while step < len(way) and len(_rows_that_fit(diagnosis)) <= wanted:
            diagnosis.add(filtering.diagnose(cycle, outcome, only=np.sort(way[step : 2 * step])))
            step *= 2
        return diagnosis, way

    def _sampled(self, diagnosis: Diagnosis, way: RowVector) -> RowVector:
        wanted = self._enough(len(way))
        if wanted < len(way):
            return self.sampler.cut(diagnosis, way, wanted)
        self.sampler.advance(int(diagnosis.explicit_rows().sum()), diagnosis.eligible_count)
        return _rows_that_fit(diagnosis)

    def _covers(self, nodes: int) -> bool:
        """Whether a sample of so many nodes is all of them."""
        return not self.extenders and self._enough(nodes) >= nodes

    def _enough(self, candidates: int) -> int:
        """How many nodes that fit are enough."""
        if self._finds_one:
            return 1
        return candidates if self.share.percentage is None else nodes_to_find(candidates, self.share.percentage)

    def _extended(self, cycle: Cycle, diagnosis: Diagnosis, rows: RowVector) -> Generator[Calls, Replies, RowVector]:
        """Let each interested extender narrow the rows that are left, in order."""
        for extender in self.extenders:
            if not len(rows):
                break
            if not extender.config.filter_verb or not extender.is_interested(cycle.pod):
                continue
            nodes = NodeTable(cycle.snapshot.nodes, rows)
            (reply,) = yield (extender.filter_call(cycle.pod, nodes),)
            try:
                kept, failed = extender.read_filter(reply, nodes)
            except ExtenderFault as fault:
                if extender.config.ignorable:
                    continue
                diagnosis.override(int(rows[0]), Status(Code.ERROR, (str(fault),)))
                return rows[:0]
            if len(kept) < len(rows):
                diagnosis.unschedulable_plugins.add(EXTENDER)
            for row, status in failed.items():
                diagnosis.overrides[row] = status
            rows = kept
        return rows

    # choosing ---------------------------------------------------------------------------------------------------

    def _choose(self, cycle: Cycle, diagnosis: Diagnosis, nodes: NodeTable) -> Generator[Calls, Replies, Decision]:
        if len(nodes) == 1:
            return Decision(nodes.names[0], diagnosis=diagnosis, nodes=nodes)
        scores = self.framework.scoring.score(cycle, nodes)
        if not scores.status.ok:
            return Decision(status=scores.status, diagnosis=diagnosis, nominate="")
        yield from self._prioritized(cycle, nodes, scores)
        return Decision(self.pick(nodes, scores.total), diagnosis=diagnosis, nodes=nodes, scores=scores)

    def _prioritized(self, cycle: Cycle, nodes: NodeTable, scores: Scores) -> Generator[Calls, Replies, None]:
        """Add what extenders think, all asked at once; one that fails is left out."""
        asked = [each for each in self.extenders if each.config.prioritize_verb and each.is_interested(cycle.pod)]
        if not asked:
            return
        replies = yield tuple(extender.prioritize_call(cycle.pod, nodes) for extender in asked)
        for extender, reply in zip(asked, replies, strict=True):
            try:
                scores.total += extender.read_prioritize(reply, nodes)
            except ExtenderFault:
                continue

    def pick(self, nodes: NodeTable, total: IntVector) -> str:
        """The best node; equally good ones are left to the tie break."""
        best = nodes.rows[total == total.max()]
        choice = 0 if len(best) == 1 else self.tie_break(nodes.columns, best)
        return nodes.columns.names[int(best[choice])]

    # failing ----------------------------------------------------------------------------------------------------

    def _nowhere(self, cycle: Cycle, diagnosis: Diagnosis) -> Decision:
        """For pods of a profile without extenders."""
        if not self.asks_post_filters or not self.framework.profile.at(POST_FILTER):
            return _unplaced(diagnosis, _NOTHING_DONE)
        answer = self.framework.post_filter(cycle, diagnosis)
        diagnosis.post_filter_message = answer.status.message
        return _unplaced(diagnosis, answer)

    def _nowhere_asking(self, cycle: Cycle, diagnosis: Diagnosis) -> Attempt:
        if not self.asks_post_filters or not any(each.wants_preemption(cycle.pod) for each in self.extenders):
            return self._nowhere(cycle, diagnosis)
        steps = self.framework.post_filtering(cycle, diagnosis)
        try:
            question = next(steps)
            while True:
                extender = question.extender
                assert isinstance(extender, Extender), "preemption asks those it was given"
                (reply,) = yield (extender.preempt_call(cycle.pod, question.candidates),)
                question = steps.send(extender.read_preempt(reply))
        except StopIteration as done:
            answer: PostFilterAnswer = done.value
            diagnosis.post_filter_message = answer.status.message
            return _unplaced(diagnosis, answer)


_NOTHING_DONE = PostFilterAnswer(SUCCESS, nominate="")


def _unplaced(diagnosis: Diagnosis, answer: PostFilterAnswer) -> Decision:
    return Decision(
        status=Status(Code.UNSCHEDULABLE, (diagnosis.sentence(),)),
        diagnosis=diagnosis,
        nominate=answer.nominate,
        victims=tuple(pod.key for pod in answer.victims),
        writes=answer.writes,
    )


def _table_of(cycle: Cycle, rows: RowVector) -> NodeTable:
    """The rows as a table: the whole one, which needs no copying, where all of them are meant."""
    whole = cycle.snapshot.table
    return whole if len(rows) == len(whole) else NodeTable(cycle.snapshot.nodes, rows)


def _rows_that_fit(diagnosis: Diagnosis) -> RowVector:
    return np.flatnonzero(diagnosis.rows_with(Code.SUCCESS))


def _first_error(diagnosis: Diagnosis, order: RowVector) -> Status | None:
    """The first filter that broke, in the order nodes are visited: it fails the attempt."""
    rows = diagnosis.rows_with(Code.ERROR)
    if not rows.any():
        return None
    return diagnosis.status(int(order[rows[order].argmax()]))
