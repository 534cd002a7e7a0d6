"""Which pods of lower priority would have to go, on which node, for a pod to fit? The fewest that matter least.

Asked by `suggesting`. Preemption's own dry run answers, whether or not the pod may preempt, so that what is suggested
is what preemption would do. It takes all weaker pods of a node away first, which may be one too many: a pod that has to
be near one of them. There the few combinations of few pods are tried one by one.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import combinations

from bayplan.explain.what_if import FilterReport, FilterTrials, SearchProgress
from bayplan.framework.preemption.dry_run import DryRun, pick_one_node, resolvable_rows
from bayplan.framework.preemption.victims import Victims, compile_budgets
from bayplan.objects.core import Pod
from bayplan.objects.pod_relaxations import EVICTION, SuggestedChange, pod_term_paths
from bayplan.objects.workloads import PodDisruptionBudget

_MAX_CANDIDATES = 32
"""Candidates to choose from."""
_ROWS_PER_SLICE = 16
_MAX_PODS_TO_COMBINE = 6
"""Of so many weaker pods on a node all combinations are tried."""


def cheapest_eviction(
    what_if: FilterTrials, pod: Pod, effort: SearchProgress
) -> Generator[None, None, SuggestedChange | None]:
    """The eviction that costs least; none where no eviction from one node helps."""
    look = what_if.run_filters(pod)
    if not look.pre_enqueue_status.ok or look.diagnosis.pre_filter_message:
        return None
    rows = resolvable_rows(look.diagnosis, look.cycle.snapshot)
    if what_if.filters.is_row_local(look.cycle):
        found = _dry_run(what_if, look).search(rows, wanted=_MAX_CANDIDATES, offset=0).candidates
        return _select_candidate(what_if, look, found)
    names = [look.diagnosis.names[row] for row in rows]
    for start in range(0, len(names), _ROWS_PER_SLICE):
        if start:
            yield
            look = what_if.run_filters(pod)
        found = {}
        dry_run = _dry_run(what_if, look)
        for name in names[start : start + _ROWS_PER_SLICE]:
            row = look.cycle.snapshot.nodes.index.get(name)
            victims = None if row is None else _victims(what_if, look, dry_run, row, effort)
            if victims is not None:
                found[name] = victims
        if found:
            return _select_candidate(what_if, look, found)
    return None


def _dry_run(what_if: FilterTrials, look: FilterReport) -> DryRun:
    budgets = compile_budgets(what_if.catalog.table(PodDisruptionBudget).values())
    return DryRun(look.cycle, what_if.filters, budgets, what_if.now())


def _victims(
    what_if: FilterTrials, look: FilterReport, dry_run: DryRun, row: int, effort: SearchProgress
) -> Victims | None:
    found = dry_run.victims_on(row)
    if isinstance(found, Victims):
        return found
    return _smallest_victim_set(what_if, look, row, effort) if pod_term_paths(look.cycle.pod) else None


def _smallest_victim_set(what_if: FilterTrials, look: FilterReport, row: int, effort: SearchProgress) -> Victims | None:
    """The fewest weaker pods of a row without which the pod fits there; none where they are too many to try."""
    nodes, filters = look.cycle.snapshot.nodes, what_if.filters
    weaker = [info for info in nodes.pods[row] if info.priority < look.cycle.info.priority]
    if len(weaker) > _MAX_PODS_TO_COMBINE:
        effort.truncated = True
        return None
    for size in range(1, len(weaker)):
        for some in combinations(weaker, size):
            trial, fork = look.cycle.clone(), nodes.fork([row])
            told = all(filters.remove_pod(trial, fork, info).ok for info in some)
            if told and filters.filter_fork(trial, fork).ok:
                return Victims(tuple(info.pod for info in some))
    return None


def _select_candidate(
    what_if: FilterTrials, look: FilterReport, candidates: dict[str, Victims]
) -> SuggestedChange | None:
    if not candidates:
        return None
    node = pick_one_node(candidates, look.cycle.snapshot, what_if.now())
    return SuggestedChange(kind=EVICTION, evict=tuple(pod.key for pod in candidates[node].pods), node=node)
