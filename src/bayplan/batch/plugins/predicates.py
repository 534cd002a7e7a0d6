"""Where may a pod run at all? The pod engine's filters, as predicates of a session.

Its handlers also keep the snapshot that these filters and the scorers of `nodeorder` read: without this plugin they
see the cluster as it was when the session opened.
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
    "predicate.CacheEnable": "tasks that are alike always share their answers",
    "predicate.DynamicResourceAllocationEnable": "claims are always looked at; Volcano reads it nowhere, either",
    "volumebinding.weight": "volumes are not scored",
    "volumebinding.shape": "volumes are not scored",
    "dynamicresources.filterTimeoutSeconds": "a search for devices on a node ends after 10s",
}
"""Names that Volcano declares, and why nothing depends on them."""


def build_filters(handle: BatchHandle, arguments: Arguments, owner: str) -> dict[str, Any]:
    """The framework's filters that are switched on, by name, as sessions have them."""
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
    """Filters of the framework, and the state of the cluster that they look at."""

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
        self._reserving = [plugins[name] for name in _RESERVE_PLUGINS if name in plugins]
        self._alike = FrameworkSignatures(session, self._filters)
        live = CommitFilters(
            session,
            [plugin.name for plugin in self._pre_filters],
            list(plugins),
            lambda name: cached_plugin(self._handle, f"{self.name} at commits", name, _settings(name, self._arguments)),
        )
        session.live_checks[self.name] = live.allow
        self._filtered: set[str] = set()  # tasks for which PreFilter has run, so that Reserve finds its state
        session.add_event_handler(self.name, allocate=self._allocated, deallocate=self._deallocated)
        session.add_pre_predicate_fn(self.name, self._pre_predicate)
        session.add_predicate_factory(self.name, self._make, self._alike.signature)
        self._affinity = plugins.get("InterPodAffinity")
        session.add_simulate_add_task_fn(
            self.name, lambda trial, task: self._update_affinity_state(trial, task, "add_pod")
        )
        session.add_simulate_remove_task_fn(
            self.name, lambda trial, task: self._update_affinity_state(trial, task, "remove_pod")
        )
        session.add_simulate_predicate_fn(self.name, self._simulate)

    def _make(self, task: Task) -> FrameworkFilters:
        return FrameworkFilters(self._session, task, self._pre_filters, self._filters)

    def _pre_predicate(self, task: Task) -> Status | None:
        filters: FrameworkFilters | None = self._session.evaluate_class(task).predicate_object(self.name)
        if filters is None:
            return None
        refused = filters.pre_filter()
        if refused is None:
            self._filtered.add(task.uid)
        return refused

    # trials on one node ------------------------------------------------------------------------------------------

    def _trial(self, trial: Simulation) -> Cycle | None:
        """The state of affinity in a trial; None where it does not concern the task."""
        if self._affinity is None:
            return None
        cycle: Cycle | None = trial.state.get(self.name)
        if cycle is None:
            filters: FrameworkFilters | None = self._session.evaluate_class(trial.task).predicate_object(self.name)
            if filters is None:
                return None
            cycle = trial.state[self.name] = filters.cycle.clone()
        return None if self._affinity.name in cycle.skip_filter else cycle

    def _update_affinity_state(self, trial: Simulation, task: Task, method: str) -> Status | None:
        cycle = self._trial(trial)
        if cycle is not None and self._affinity is not None:
            try:
                getattr(self._affinity, method)(cycle, task.info, trial.node.view)
            except PLUGIN_EXCEPTIONS as fault:
                self._session.record_plugin_fault(self._affinity.name, fault, method)
        return None

    def _simulate(self, trial: Simulation) -> Status | None:
        """Affinity and shared devices alone: the rest is as it was when the node was looked at."""
        cycle = self._trial(trial)
        reason = "" if cycle is None else self._affinity_reason(cycle, trial)
        if reason:
            return error(f"failed to filter pod on node {trial.node.name}: {reason}")
        for pool in self._session.device_pools:
            refused = pool.simulate(trial)
            if refused is not None:
                return refused
        return None

    def _affinity_reason(self, cycle: Cycle, trial: Simulation) -> str:
        """Why affinity refuses the node of a trial; empty where it does not."""
        assert self._affinity is not None
        try:
            for rejection in self._affinity.filter_nodes(cycle, trial.node.view.single_row_table):
                if rejection.mask[0]:
                    return str(rejection.reason)
        except PLUGIN_EXCEPTIONS as fault:
            self._session.record_plugin_fault(self._affinity.name, fault, FILTER.key)
        return ""

    # the view of the cluster ------------------------------------------------------------------------------------

    @property
    def _replaced(self) -> bool:
        """A tier further down names the plugin again: upstream each has a view of its own, the last one is asked."""
        return self._session.plugins.get(self.name) is not self

    def _allocated(self, task: Task) -> Status | None:
        row = self._session.snapshot.nodes.index.get(task.node_name)
        if row is None or self._replaced:
            return None
        refused = self._reserve(task)
        if refused is not None:
            return refused
        for pool in self._session.device_pools:
            objection: Status | None = pool.allocate(task, self._session.nodes.at_row(row))
            if objection is not None:
                return objection
        self._session.snapshot_changes.add(task, row)
        return None

    def _deallocated(self, task: Task) -> None:
        row = self._session.snapshot.nodes.index.get(task.node_name)
        if row is None or self._replaced:
            return
        self._unreserve(task)
        for pool in self._session.device_pools:
            if not pool.release(task, self._session.nodes.at_row(row)):
                return
        self._session.snapshot_changes.remove(task, row)

    def _reserve(self, task: Task) -> Status | None:
        """Reserve needs what PreFilter left. Upstream it fails without, also for pods that have nothing to reserve:
        a victim whose eviction is undone stays out of this view for the rest of the session."""
        if task.uid not in self._filtered:
            return error(NOT_FILTERED)
        if not task.pod.spec.volumes and not task.pod.spec.resource_claims:
            return None
        cycle = self._filters_of(task).cycle
        for plugin in self._reserving:
            try:
                refused: Status | None = plugin.reserve(cycle, task.node_name)
            except PLUGIN_EXCEPTIONS as fault:
                self._session.record_plugin_fault(plugin.name, fault, "reserve")
                continue
            if refused is not None and not refused.ok:
                return refused
        self._session.pre_binds[task.uid] = PreBindState(self._reserving, cycle)
        return None

    def _filters_of(self, task: Task) -> FrameworkFilters:
        """What PreFilter and Filter left when the task was looked at: the row that it is on has changed since, and
        Reserve is not to see that."""
        filters: FrameworkFilters = self._session.evaluations.of_without_refresh(task).predicate_object(self.name)
        return filters

    def _unreserve(self, task: Task) -> None:
        if task.uid not in self._filtered or not (task.pod.spec.volumes or task.pod.spec.resource_claims):
            return
        self._session.pre_binds.pop(task.uid, None)
        cycle = self._filters_of(task).cycle
        for plugin in reversed(self._reserving):
            try:
                plugin.unreserve(cycle, task.node_name)
            except PLUGIN_EXCEPTIONS as fault:
                self._session.record_plugin_fault(plugin.name, fault, "unreserve")
