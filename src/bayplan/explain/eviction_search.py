"""Finds the cheapest eviction that makes a pod fit: which pods of lower priority, on which node.

Called by `suggestions`. Uses preemption's own dry run, whether or not the pod may preempt, so that the suggestion is
what preemption would do. The dry run removes all weaker pods of a node first, which may remove too many for a pod that
has to be near one of them. For such pods the combinations of a few weaker pods are tried one by one.
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
"""Number of candidate nodes to choose from."""
_ROWS_PER_SLICE = 16
_MAX_PODS_TO_COMBINE = 6
"""Up to this many weaker pods on a node, all combinations are tried."""


def cheapest_eviction(
    what_if: FilterTrials, pod: Pod, effort: SearchProgress
) -> Generator[None, None, SuggestedChange | None]:
    """The eviction with the lowest cost; None if no eviction from one node helps."""
    report = what_if.run_filters(pod)
    if not report.pre_enqueue_status.ok or report.diagnosis.pre_filter_message:
        return None
    rows = resolvable_rows(report.diagnosis, report.cycle.snapshot)
    if what_if.filters.is_row_local(report.cycle):
        found = _dry_run(what_if, report).search(rows, max_candidates=_MAX_CANDIDATES, offset=0).candidates
        return _select_candidate(what_if, report, found)
    names = [report.diagnosis.names[row] for row in rows]
    for start in range(0, len(names), _ROWS_PER_SLICE):
        if start:
            yield
            report = what_if.run_filters(pod)
        found = {}
        dry_run = _dry_run(what_if, report)
        for name in names[start : start + _ROWS_PER_SLICE]:
            row = report.cycle.snapshot.nodes.index.get(name)
            victims = None if row is None else _victims(what_if, report, dry_run, row, effort)
            if victims is not None:
                found[name] = victims
        if found:
            return _select_candidate(what_if, report, found)
    return None


def _dry_run(what_if: FilterTrials, report: FilterReport) -> DryRun:
    budgets = compile_budgets(what_if.catalog.table(PodDisruptionBudget).values())
    return DryRun(report.cycle, what_if.filters, budgets, what_if.now())


def _victims(
    what_if: FilterTrials, report: FilterReport, dry_run: DryRun, row: int, effort: SearchProgress
) -> Victims | None:
    found = dry_run.victims_on(row)
    if isinstance(found, Victims):
        return found
    return _smallest_victim_set(what_if, report, row, effort) if pod_term_paths(report.cycle.pod) else None


def _smallest_victim_set(
    what_if: FilterTrials, report: FilterReport, row: int, effort: SearchProgress
) -> Victims | None:
    """The smallest set of weaker pods of a row without which the pod fits; None if there are too many to try."""
    nodes, filters = report.cycle.snapshot.nodes, what_if.filters
    weaker = [info for info in nodes.pods[row] if info.priority < report.cycle.info.priority]
    if len(weaker) > _MAX_PODS_TO_COMBINE:
        effort.truncated = True
        return None
    for size in range(1, len(weaker)):
        for victims in combinations(weaker, size):
            trial, fork = report.cycle.clone(), nodes.fork([row])
            is_ok = all(filters.remove_pod(trial, fork, info).ok for info in victims)
            if is_ok and filters.filter_fork(trial, fork).ok:
                return Victims(tuple(info.pod for info in victims))
    return None


def _select_candidate(
    what_if: FilterTrials, report: FilterReport, candidates: dict[str, Victims]
) -> SuggestedChange | None:
    if not candidates:
        return None
    node = pick_one_node(candidates, report.cycle.snapshot, what_if.now())
    return SuggestedChange(kind=EVICTION, evict=tuple(pod.key for pod in candidates[node].pods), node=node)
