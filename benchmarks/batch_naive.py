"""What does the same session take when every plugin is asked about every node, for every task?

The engine and its plugins are the measured ones, without what saves questions: tasks that are alike share no answers,
nothing is foreseen about victims, and every hypernode is tried. The decisions are the same, which the tests of the
benchmarks hold against each other. Each workload runs so for a few pods, and the time is scaled up to all of them; for
an opening it is the first of all, on which nothing is known yet. Cost: some seconds a workload.
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
"""Pods on which the plain way is measured."""


@contextmanager
def asked_plainly() -> Iterator[None]:
    """While the block runs, sessions save no question."""
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


def plain_us(workload: BatchWorkload, nodes: int, pods: int, found: Measured) -> float:
    """What a round takes so, for all pods."""
    if found.cold is not None:
        return found.cold.p50_us
    few = min(pods, FEW)
    with asked_plainly():
        plain = workload.measure(nodes, few, 1).rounds
    return (plain.cpu_p50_us or plain.p50_us) * pods / few
