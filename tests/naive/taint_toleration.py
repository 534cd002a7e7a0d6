"""Naive twin of TaintToleration, one node at a time."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.objects.core import Node
from bayplan.objects.taints import tolerates
from bayplan.plugins.taint_toleration import TaintToleration
from naive.twin import Case, Twin, cases, fits_unless, spread_to_100
from support.builders.framework import FilterResult, unresolvable


def judge(case: Case, node: Node) -> FilterResult:
    for taint in node.spec.taints:
        if taint.effect not in ("NoSchedule", "NoExecute"):
            continue
        if not any(tolerates(toleration, taint) for toleration in case.pod.spec.tolerations):
            return unresolvable("node(s) had untolerated taint(s)")
    return fits_unless()


def scores(case: Case, feasible: Sequence[Node]) -> dict[str, int]:
    counts = {}
    for node in feasible:
        counts[node.name] = 0
        for taint in node.spec.taints:
            if taint.effect != "PreferNoSchedule":
                continue
            covering = [each for each in case.pod.spec.tolerations if each.effect in ("", "PreferNoSchedule")]
            if not any(tolerates(toleration, taint) for toleration in covering):
                counts[node.name] += 1
    return spread_to_100(counts, reverse=True)


TWIN = Twin(TaintToleration, cases("taints tolerations"), judge, scores)
