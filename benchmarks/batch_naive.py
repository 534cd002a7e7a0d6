"""Time of the same session when every plugin evaluates every node for every task.

The engine and its plugins are the measured ones, without what saves evaluations: no result is shared between equal
tasks, no victims are precomputed, and every hypernode is tried. The decisions are equal, which the tests of the
benchmarks check. Each workload runs in this way for a few pods, and the time is scaled up to all of them. For a session
opening it is the first one, on an empty cache. Cost: some seconds a workload.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from bayplan.batch.actions import row_orders, victim_search
from bayplan.batch.actions.topology_allocate import TopologyAllocator
from bayplan.batch.evaluation.task_class_evaluation import TaskClassEvaluations
from benchmarks.batch_clusters import GANG
from benchmarks.batch_workloads import BatchWorkload, Measured

FEW = 2 * GANG
"""Pods for which the naive session is measured."""


@contextmanager
def disable_caches() -> Iterator[None]:
    """Disable the caches of sessions inside the block."""
    with ExitStack() as stack:
        for owner, name, instead in (
            (TaskClassEvaluations, "_key", lambda _, task: task.uid),
            (TopologyAllocator, "_try_ranked_hypernodes", lambda *_: None),
            (row_orders, "ROWS_BEFORE_NARROWING", sys.maxsize),
            (victim_search, "is_cacheable", lambda _: False),
            (victim_search.ExhaustedRows, "rows", lambda *_: set()),
        ):
            stack.enter_context(patch.object(owner, name, instead))
        yield


def naive_us_of(workload: BatchWorkload, nodes: int, pods: int, found: Measured) -> float:
    """Time of a naive round, scaled to all pods."""
    if found.cold is not None:
        return found.cold.p50_us
    few = min(pods, FEW)
    with disable_caches():
        plain = workload.measure(nodes, few, 1).rounds
    return (plain.cpu_p50_us or plain.p50_us) * pods / few
