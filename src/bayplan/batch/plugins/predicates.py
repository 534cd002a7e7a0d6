"""The `predicates` plugin: runs kube-scheduler's filter plugins as predicates of a session.

Its event handlers also update the snapshot that these filters and the scorers of `nodeorder` read. Without this plugin
they see the cluster as it was when the session opened.
"""

from __future__ import annotations

from typing import Any, ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.evaluation.commit_filters import CommitFilters
from bayplan.batch.evaluation.framework_adapter import (
    FrameworkFilters,
    FrameworkSignatures,
    cached_plugin,
    limit_affinity_rows,
)
from bayplan.batch.handle import BatchHandle
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.pre_bind_state import PreBindState
from bayplan.batch.session.session import Session
from bayplan.batch.session.simulation import Simulation
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import FILTER
from bayplan.framework.api.status import Status, error
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS

_NODE_STATIC_FILTERS = (
    ("NodeUnschedulable", None),
    ("NodeAffinity", "predicate.NodeAffinityEnable"),
    ("TaintToleration", "predicate.TaintTolerationEnable"),
)
_POD_DEPENDENT_FILTERS = (
    ("NodePorts", "predicate.NodePortsEnable"),
    ("InterPodAffinity", "predicate.PodAffinityEnable"),
    ("NodeVolumeLimits", "predicate.NodeVolumeLimitsEnable"),
    ("VolumeZone", "predicate.VolumeZoneEnable"),
    ("PodTopologySpread", "predicate.PodTopologySpreadEnable"),
    ("VolumeBinding", "predicate.VolumeBindingEnable"),
    ("DynamicResources", None),
)
_PRE_FILTER_ORDER = ("NodeAffinity", *(name for name, _ in _POD_DEPENDENT_FILTERS))
_RESERVE_PLUGINS = ("VolumeBinding", "DynamicResources")
NOT_FILTERED = "not found"
_IGNORED_ARGUMENTS = {
    "predicate.CacheEnable": "tasks of the same class always share their results",
    "predicate.DynamicResourceAllocationEnable": "resource claims are always evaluated; Volcano ignores it, too",
    "volumebinding.weight": "volumes are not scored",
    "volumebinding.shape": "volumes are not scored",
    "dynamicresources.filterTimeoutSeconds": "a search for devices on a node ends after 10s",
}
"""Arguments that Volcano declares, and the reasons why they have no effect here."""


def build_filters(handle: BatchHandle, arguments: Arguments, owner: str) -> dict[str, Any]:
    """Build the enabled framework filters, by name, as sessions use them."""
    names = [
        name
        for name, key in (*_NODE_STATIC_FILTERS, *_POD_DEPENDENT_FILTERS)
        if key is None or arguments.get_bool(key, True)
    ]
    return {name: cached_plugin(handle, owner, name, _settings(name, arguments)) for name in names}


def _settings(name: str, arguments: Arguments) -> dict[str, Any]:
    if name == "InterPodAffinity":
        return {"hardPodAffinityWeight": 0}
    if name == "PodTopologySpread":
        return {"defaultingType": "System"}
    if name == "VolumeBinding":
        return {"bindTimeoutSeconds": arguments.get_int("volumebinding.bindTimeoutSeconds", 600)}
    return {}


class PredicatesPlugin:
    """Runs the framework filters and maintains the cluster state that they read."""

    name = "predicates"
    takes: ClassVar[tuple[Argument, ...]] = (
        *(Argument(key, bool, True) for _, key in (*_NODE_STATIC_FILTERS, *_POD_DEPENDENT_FILTERS) if key is not None),
        Argument("volumebinding.bindTimeoutSeconds", int, 600),
        *(Argument(key, object, no_effect_reason=why) for key, why in _IGNORED_ARGUMENTS.items()),
    )

    def __init__(self, arguments: Arguments, handle: BatchHandle) -> None:
        self._handle = handle
        self._arguments = arguments

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> PredicatesPlugin:
        return cls(arguments, handle)

    def on_session_open(self, session: Session) -> None:
        self._session = session
        plugins = build_filters(self._handle, self._arguments, self.name)
        if "InterPodAffinity" in plugins:
            limit_affinity_rows(plugins["InterPodAffinity"], session.snapshot)
        self._filters = list(plugins.values())
        self._pre_filters = [plugins[name] for name in _PRE_FILTER_ORDER if name in plugins]
        self._reserve_plugins = [plugins[name] for name in _RESERVE_PLUGINS if name in plugins]
        self._signatures = FrameworkSignatures(session, self._filters)
        commit_filters = CommitFilters(
            session,
            [plugin.name for plugin in self._pre_filters],
            list(plugins),
            lambda name: cached_plugin(self._handle, f"{self.name} at commits", name, _settings(name, self._arguments)),
        )
        session.live_checks[self.name] = commit_filters.allow
        self._filtered: set[str] = set()  # tasks for which PreFilter has run, so that Reserve finds its state
        session.add_event_handler(self.name, allocate=self._on_allocate, deallocate=self._on_deallocate)
        session.add_pre_predicate_fn(self.name, self._pre_predicate)
        session.add_predicate_factory(self.name, self._make_filters, self._signatures.signature)
        self._affinity = plugins.get("InterPodAffinity")
        session.add_simulate_add_task_fn(
            self.name, lambda simulation, task: self._update_affinity_state(simulation, task, "add_pod")
        )
        session.add_simulate_remove_task_fn(
            self.name, lambda simulation, task: self._update_affinity_state(simulation, task, "remove_pod")
        )
        session.add_simulate_predicate_fn(self.name, self._simulate_filters)

    def _make_filters(self, task: Task) -> FrameworkFilters:
        return FrameworkFilters(self._session, task, self._pre_filters, self._filters)

    def _pre_predicate(self, task: Task) -> Status | None:
        filters: FrameworkFilters | None = self._session.evaluate_class(task).predicate_object(self.name)
        if filters is None:
            return None
        failure = filters.pre_filter()
        if failure is None:
            self._filtered.add(task.uid)
        return failure

    # Simulation on one node

    def _simulation_cycle(self, simulation: Simulation) -> Cycle | None:
        """The affinity state of a simulation; None if affinity does not apply to the task."""
        if self._affinity is None:
            return None
        cycle: Cycle | None = simulation.state.get(self.name)
        if cycle is None:
            filters: FrameworkFilters | None = self._session.evaluate_class(simulation.task).predicate_object(self.name)
            if filters is None:
                return None
            cycle = simulation.state[self.name] = filters.cycle.clone()
        return None if self._affinity.name in cycle.skip_filter else cycle

    def _update_affinity_state(self, simulation: Simulation, task: Task, method: str) -> Status | None:
        cycle = self._simulation_cycle(simulation)
        if cycle is not None and self._affinity is not None:
            try:
                getattr(self._affinity, method)(cycle, task.info, simulation.node.view)
            except PLUGIN_EXCEPTIONS as fault:
                self._session.record_plugin_fault(self._affinity.name, fault, method)
        return None

    def _simulate_filters(self, simulation: Simulation) -> Status | None:
        """Run InterPodAffinity and shared devices only; the other filters do not change during a simulation."""
        cycle = self._simulation_cycle(simulation)
        reason = "" if cycle is None else self._affinity_reason(cycle, simulation)
        if reason:
            return error(f"failed to filter pod on node {simulation.node.name}: {reason}")
        for pool in self._session.device_pools:
            failure = pool.simulate(simulation)
            if failure is not None:
                return failure
        return None

    def _affinity_reason(self, cycle: Cycle, simulation: Simulation) -> str:
        """Reason why InterPodAffinity rejects the node of a simulation; empty if it does not."""
        assert self._affinity is not None
        try:
            for rejection in self._affinity.filter_nodes(cycle, simulation.node.view.single_row_table):
                if rejection.mask[0]:
                    return str(rejection.reason)
        except PLUGIN_EXCEPTIONS as fault:
            self._session.record_plugin_fault(self._affinity.name, fault, FILTER.key)
        return ""

    # Snapshot updates

    @property
    def _is_replaced(self) -> bool:
        """True if a later tier names the plugin again. Upstream, each instance has a view, and the last one counts."""
        return self._session.plugins.get(self.name) is not self

    def _on_allocate(self, task: Task) -> Status | None:
        row = self._session.snapshot.nodes.index.get(task.node_name)
        if row is None or self._is_replaced:
            return None
        failure = self._reserve(task)
        if failure is not None:
            return failure
        for pool in self._session.device_pools:
            device_failure: Status | None = pool.allocate(task, self._session.nodes.at_row(row))
            if device_failure is not None:
                return device_failure
        self._session.snapshot_changes.add(task, row)
        return None

    def _on_deallocate(self, task: Task) -> None:
        row = self._session.snapshot.nodes.index.get(task.node_name)
        if row is None or self._is_replaced:
            return
        self._unreserve(task)
        for pool in self._session.device_pools:
            if not pool.release(task, self._session.nodes.at_row(row)):
                return
        self._session.snapshot_changes.remove(task, row)

    def _reserve(self, task: Task) -> Status | None:
        """Run Reserve, which needs the state of PreFilter.

        As upstream it fails without that state, also for pods without anything to reserve. Therefore a victim whose
        eviction is undone stays out of this snapshot for the rest of the session.
        """
        if task.uid not in self._filtered:
            return error(NOT_FILTERED)
        if not task.pod.spec.volumes and not task.pod.spec.resource_claims:
            return None
        cycle = self._filters_of(task).cycle
        for plugin in self._reserve_plugins:
            try:
                failure: Status | None = plugin.reserve(cycle, task.node_name)
            except PLUGIN_EXCEPTIONS as fault:
                self._session.record_plugin_fault(plugin.name, fault, "reserve")
                continue
            if failure is not None and not failure.ok:
                return failure
        self._session.pre_binds[task.uid] = PreBindState(self._reserve_plugins, cycle)
        return None

    def _filters_of(self, task: Task) -> FrameworkFilters:
        """The state of PreFilter and Filter from when the task was evaluated.

        It is not refreshed: the row of the task has changed since, and Reserve must not see that.
        """
        filters: FrameworkFilters = self._session.evaluations.of_without_refresh(task).predicate_object(self.name)
        return filters

    def _unreserve(self, task: Task) -> None:
        if task.uid not in self._filtered or not (task.pod.spec.volumes or task.pod.spec.resource_claims):
            return
        self._session.pre_binds.pop(task.uid, None)
        cycle = self._filters_of(task).cycle
        for plugin in reversed(self._reserve_plugins):
            try:
                plugin.unreserve(cycle, task.node_name)
            except PLUGIN_EXCEPTIONS as fault:
                self._session.record_plugin_fault(plugin.name, fault, "unreserve")
