"""Do the filters still agree, now that others have changed the cluster? Asked at a commit, of the nodes chosen alone.

A session works on the cluster as it was when it opened. Room, host ports and promises are checked by the outbox. What
others changed besides (a cordon, a taint, a label, a pod with anti-affinity, the counts of a spread, volumes) is seen
by the filters of `predicates`, which are asked once more here, on the cluster of the moment. Tasks that wait for
victims to go are left out: they are looked at again before they are bound. Cost: where nobody in sight has terms about
other pods, one question for each class of tasks, about its rows; else one a task.
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
    """The filters of a session, on another snapshot than its own."""

    def __init__(
        self, session: Session, pre_filters: Sequence[str], filters: Sequence[str], built: PluginBuilder
    ) -> None:
        self._session = session
        self._names = (pre_filters, filters)
        self._built = built
        self._plugins: dict[str, Any] = {}  # made when others turn out to use the cache too, which most never do

    def allow(self, live: LiveSnapshot, tasks: Sequence[Task]) -> bool:
        """Whether every task that is to be bound may still go where it was put."""
        placed = [task for task in tasks if task.status is TaskStatus.ALLOCATED]
        if not self._plugins:
            self._plugins = {name: self._built(name) for name in dict.fromkeys((*self._names[0], *self._names[1]))}
        if AFFINITY in self._plugins:
            limit_affinity_rows(self._plugins[AFFINITY], live.snapshot)
        if live.snapshot.pods.affinity_users or any(map(_depends_on_other_pods, placed)):
            with live.with_added(placed) as each:
                return all(self._passes_filters(live.snapshot, task, [row]) for task, row in each)
        alike: dict[int, list[Task]] = {}
        for task in placed:
            alike.setdefault(self._session.templates.template_number(task), []).append(task)
        index = live.snapshot.nodes.index
        return all(
            self._passes_filters(live.snapshot, group[0], sorted({index[task.node_name] for task in group}))
            for group in alike.values()
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
    """Whether it matters to the task, or through it to the next one, who else is there."""
    spec = task.pod.spec
    return bool(
        task.info.affinity is not None
        or spec.topology_spread_constraints
        or spec.volumes
        or spec.resource_claims
        or task.info.host_ports
    )
