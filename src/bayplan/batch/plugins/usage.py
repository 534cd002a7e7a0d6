"""The `usage` plugin: filters and scores nodes by measured load instead of requests.

The load is collected between sessions (`batch.node_usage`). A measurement older than five minutes counts as unknown:
such a node is not rejected and scores 0. Nothing here depends on the task. Cost: two columns, computed once a session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.evaluation.node_points import NODE_STATIC, same_for_all
from bayplan.batch.model.nodes import FloatVector, Nodes
from bayplan.batch.model.tasks import Task
from bayplan.batch.node_usage.metrics_sources import PERIOD
from bayplan.batch.session.session import Session
from bayplan.framework.api.plugin import MAX_SCORE, Rejection

FRESH_FOR_S = 5 * 60.0
CPU_TOO_BUSY = "the CPU load of the node exceeds the upper limit."
MEMORY_TOO_BUSY = "the memory load of the node exceeds the upper limit."


class UsagePlugin:
    """Rejects nodes whose measured load is above a threshold, and prefers the least loaded of the remaining nodes."""

    name = "usage"
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument("usage.weight", int, 5),
        Argument("cpu.weight", int, 1),
        Argument("memory.weight", int, 1),
        Argument("thresholds", dict[str, Any], fields=(Argument("cpu", int, 0), Argument("mem", int, 0))),
    )

    def __init__(self, arguments: Arguments) -> None:
        self._weight = arguments.get_int("usage.weight", 5)
        self._cpu_weight = arguments.get_int("cpu.weight", 1)
        self._memory_weight = arguments.get_int("memory.weight", 1)
        self._cpu_limit, self._memory_limit = _thresholds(arguments)

    def on_session_open(self, session: Session) -> None:
        self._measure(session.nodes)
        session.add_predicate_nodes_fn(self.name, self._reject_busy, signature=same_for_all, depends_on=NODE_STATIC)
        session.add_node_order_nodes_fn(self.name, self._score, signature=same_for_all, depends_on=NODE_STATIC)

    def _measure(self, nodes: Nodes) -> None:
        """Build the columns of measured load; NaN means unknown."""
        self._cpu, self._memory = np.full(len(nodes), np.nan), np.full(len(nodes), np.nan)
        self._fresh = np.zeros(len(nodes), dtype=np.bool_)
        index = nodes.snapshot.nodes.index
        for name, usage in nodes.usage.items():
            row = index.get(name)
            if row is None or usage.age_s > FRESH_FOR_S:
                continue
            self._fresh[row] = True
            self._cpu[row] = usage.cpu.get(PERIOD, np.nan)
            self._memory[row] = usage.memory.get(PERIOD, np.nan)

    def _reject_busy(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:  # noqa: ARG002
        rows = nodes.rows
        cpu = self._fresh[rows] & (np.nan_to_num(self._cpu[rows]) > self._cpu_limit)
        memory = self._fresh[rows] & (np.nan_to_num(self._memory[rows]) > self._memory_limit)
        yield Rejection(cpu, CPU_TOO_BUSY, resolvable=False)
        yield Rejection(memory & ~cpu, MEMORY_TOO_BUSY, resolvable=False)

    def _score(self, task: Task, nodes: Nodes) -> FloatVector:  # noqa: ARG002
        rows = nodes.rows
        cpu, memory = self._cpu[rows], self._memory[rows]
        weights = float(self._cpu_weight + self._memory_weight)
        idle = (100.0 - cpu) / 100.0 * self._cpu_weight + (100.0 - memory) / 100.0 * self._memory_weight
        with np.errstate(divide="ignore", invalid="ignore"):  # if all weights are 0, no score is comparable
            score = idle / weights * float(MAX_SCORE * self._weight)
        known = self._fresh[rows] & ~np.isnan(cpu) & ~np.isnan(memory)
        return np.where(known, score, 0.0)


def _thresholds(arguments: Arguments) -> tuple[float, float]:
    """Limits of cpu and memory in percent. The default is 80; a value that is not a whole number becomes 0."""
    given = arguments.get("thresholds", object)
    if given is not None and not isinstance(given, Mapping):
        arguments.warn(f"thresholds {given!r} is not a map such as {{cpu: 80, mem: 80}}; 80 is used for both")
    limits = Arguments(given if isinstance(given, Mapping) else {}, owner=arguments.owner)
    cpu = limits.get_int("cpu", 0) if "cpu" in limits else 80
    memory = limits.get_int("mem", 0) if "mem" in limits else 80
    for sentence in limits.warnings:
        arguments.warn(sentence.removeprefix(f"{arguments.owner}: ") + " as threshold")
    return float(cpu), float(memory)
