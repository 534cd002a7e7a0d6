"""Which pods of lower priority would have to go, on which node, for a pod to fit? The fewest that matter least.

Asked by `suggesting`. Preemption's own dry run answers, whether or not the pod may preempt, so that what is suggested
is what preemption would do. It takes all weaker pods of a node away first, which may be one too many: a pod that has to
be near one of them. There the few combinations of few pods are tried one by one.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import combinations

from bayplan.explain.what_if import Effort, Look, WhatIf
from bayplan.framework.preemption.dry_run import DryRun, cheapest, resolvable_rows
from bayplan.framework.preemption.victims import Victims, budgets_of
from bayplan.objects.core import Pod
from bayplan.objects.pod_relaxations import EVICTION, Change, pod_terms
from bayplan.objects.workloads import PodDisruptionBudget

_ENOUGH = 32
"""Candidates to choose from."""
_ROWS_A_TURN = 16
_FEW_PODS = 6
"""Of so many weaker pods on a node all combinations are tried."""


def cheapest_eviction(what_if: WhatIf, pod: Pod, effort: Effort) -> Generator[None, None, Change | None]:
    """The eviction that costs least; none where no eviction from one node helps."""
    look = what_if.look(pod)
    if not look.gate.ok or look.diagnosis.pre_filter_message:
        return None
    rows = resolvable_rows(look.diagnosis, look.cycle.snapshot)
    if what_if.filters.keeps_to_rows(look.cycle):
        found = _dry_run(what_if, look).search(rows, wanted=_ENOUGH, offset=0).candidates
        return _chosen(what_if, look, found)
    names = [look.diagnosis.names[row] for row in rows]
    for start in range(0, len(names), _ROWS_A_TURN):
        if start:
            yield
            look = what_if.look(pod)
        found = {}
        dry_run = _dry_run(what_if, look)
        for name in names[start : start + _ROWS_A_TURN]:
            row = look.cycle.snapshot.nodes.index.get(name)
            victims = None if row is None else _victims(what_if, look, dry_run, row, effort)
            if victims is not None:
                found[name] = victims
        if found:
            return _chosen(what_if, look, found)
    return None


def _dry_run(what_if: WhatIf, look: Look) -> DryRun:
    budgets = budgets_of(what_if.catalog.table(PodDisruptionBudget).values())
    return DryRun(look.cycle, what_if.filters, budgets, what_if.now())


def _victims(what_if: WhatIf, look: Look, dry_run: DryRun, row: int, effort: Effort) -> Victims | None:
    found = dry_run.victims_on(row)
    if isinstance(found, Victims):
        return found
    return _some_of(what_if, look, row, effort) if pod_terms(look.cycle.pod) else None


def _some_of(what_if: WhatIf, look: Look, row: int, effort: Effort) -> Victims | None:
    """The fewest weaker pods of a row without which the pod fits there; none where they are too many to try."""
    nodes, filters = look.cycle.snapshot.nodes, what_if.filters
    weaker = [info for info in nodes.pods[row] if info.priority < look.cycle.info.priority]
    if len(weaker) > _FEW_PODS:
        effort.cut_short = True
        return None
    for size in range(1, len(weaker)):
        for some in combinations(weaker, size):
            trial, fork = look.cycle.clone(), nodes.fork([row])
            told = all(filters.remove_pod(trial, fork, info).ok for info in some)
            if told and filters.judge(trial, fork).ok:
                return Victims(tuple(info.pod for info in some))
    return None


def _chosen(what_if: WhatIf, look: Look, candidates: dict[str, Victims]) -> Change | None:
    if not candidates:
        return None
    node = cheapest(candidates, look.cycle.snapshot, what_if.now())
    return Change(kind=EVICTION, evict=tuple(pod.key for pod in candidates[node].pods), node=node)
