"""Filters at commit: checks chosen nodes again after another engine changed the cluster.

A session uses the cluster state as of its opening. `SessionCommit` checks resources, host ports and nominations. The
filters of `predicates` detect all other changes (a cordon, a taint, a label, a pod with anti-affinity, spread counts,
volumes). They run once more here, on the current cluster state. Pipelined tasks are left out: they are checked again
before they are bound. Cost: one call per class of tasks while no pod has terms about other pods; otherwise one call per
task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bayplan.batch.evaluation.framework_adapter import AFFINITY, is_not_applicable, limit_affinity_rows
from bayplan.batch.model.snapshot_changes import LiveSnapshot
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import FILTER, PRE_FILTER
from bayplan.framework.api.plugin import PreFilterResult
from bayplan.framework.api.status import Code
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS, to_status
from bayplan.snapshot import NodeTable, Snapshot

PluginBuilder = Callable[[str], Any]


class CommitFilters:
    """The filters of a session, on a snapshot of the current cluster state."""

    def __init__(
        self, session: Session, pre_filters: Sequence[str], filters: Sequence[str], build_plugin: PluginBuilder
    ) -> None:
        self._session = session
        self._names = (pre_filters, filters)
        self._build_plugin = build_plugin
        self._plugins: dict[str, Any] = {}  # built when another engine turns out to use the cache, which is rare

    def allow(self, live: LiveSnapshot, tasks: Sequence[Task]) -> bool:
        """Whether every allocated task still passes the filters on its node."""
        placed = [task for task in tasks if task.status is TaskStatus.ALLOCATED]
        if not self._plugins:
            self._plugins = {
                name: self._build_plugin(name) for name in dict.fromkeys((*self._names[0], *self._names[1]))
            }
        if AFFINITY in self._plugins:
            limit_affinity_rows(self._plugins[AFFINITY], live.snapshot)
        if live.snapshot.pods.affinity_users or any(map(_depends_on_other_pods, placed)):
            with live.with_added(placed) as each:
                return all(self._passes_filters(live.snapshot, task, [row]) for task, row in each)
        by_template: dict[int, list[Task]] = {}
        for task in placed:
            by_template.setdefault(self._session.templates.template_number(task), []).append(task)
        index = live.snapshot.nodes.index
        return all(
            self._passes_filters(live.snapshot, group[0], sorted({index[task.node_name] for task in group}))
            for group in by_template.values()
        )

    def _passes_filters(self, snapshot: Snapshot, task: Task, rows: Sequence[int]) -> bool:
        cycle = Cycle(task.info, snapshot)
        pre_filters, filters = self._names
        if not all(self._run_pre_filter(cycle, name) for name in pre_filters):
            return False
        table = NodeTable(snapshot.nodes, np.array(rows, dtype=np.intp))
        return not any(self._rejects(cycle, name, table) for name in filters if name not in cycle.skip_filter)

    def _run_pre_filter(self, cycle: Cycle, name: str) -> bool:
        plugin = self._plugins[name]
        try:
            if is_not_applicable(plugin, cycle):
                cycle.skip_filter.add(name)
                return True
            answer = plugin.pre_filter(cycle)
            status = to_status(None if isinstance(answer, PreFilterResult) else answer, name, PRE_FILTER)
        except PLUGIN_EXCEPTIONS as fault:
            self._session.record_plugin_fault(name, fault, PRE_FILTER.key)
            cycle.skip_filter.add(name)
            return True
        if status.code is Code.SKIP:
            cycle.skip_filter.add(name)
            return True
        return status.ok

    def _rejects(self, cycle: Cycle, name: str, table: NodeTable) -> bool:
        try:
            return any(bool(each.mask.any()) for each in self._plugins[name].filter_nodes(cycle, table))
        except PLUGIN_EXCEPTIONS as fault:
            self._session.record_plugin_fault(name, fault, FILTER.key)
            return False


def _depends_on_other_pods(task: Task) -> bool:
    """Whether the task, or the next one through it, depends on the other pods of the cluster."""
    spec = task.pod.spec
    return bool(
        task.info.affinity is not None
        or spec.topology_spread_constraints
        or spec.volumes
        or spec.resource_claims
        or task.info.host_ports
    )
