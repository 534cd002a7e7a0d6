"""Where may a pod run at all? The pod engine's filters, as predicates of a session.

Its handlers also keep the snapshot that these filters and the scorers of `nodeorder` read: without this plugin they
see the cluster as it was when the session opened.
"""

from __future__ import annotations

from typing import Any, ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.evaluation.commit_filters import LiveFilters
from bayplan.batch.evaluation.framework_adapter import (
    Alike,
    Filters,
    built,
    listen,
)
from bayplan.batch.handle import BatchHandle
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.pre_bind_state import PreBinding
from bayplan.batch.session.session import Session
from bayplan.batch.session.simulation import Simulation
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import FILTER
from bayplan.framework.api.status import Status, error
from bayplan.framework.runtime.plugin_call import FAULTS

_STABLE = (
    ("NodeUnschedulable", None),
    ("NodeAffinity", "predicate.NodeAffinityEnable"),
    ("TaintToleration", "predicate.TaintTolerationEnable"),
)
_OTHERS = (
    ("NodePorts", "predicate.NodePortsEnable"),
    ("InterPodAffinity", "predicate.PodAffinityEnable"),
    ("NodeVolumeLimits", "predicate.NodeVolumeLimitsEnable"),
    ("VolumeZone", "predicate.VolumeZoneEnable"),
    ("PodTopologySpread", "predicate.PodTopologySpreadEnable"),
    ("VolumeBinding", "predicate.VolumeBindingEnable"),
    ("DynamicResources", None),
)
_PRE_FILTER_ORDER = ("NodeAffinity", *(name for name, _ in _OTHERS))
_RESERVING = ("VolumeBinding", "DynamicResources")
NOT_FILTERED = "not found"
_NOT_READ = {
    "predicate.CacheEnable": "tasks that are alike always share their answers",
    "predicate.DynamicResourceAllocationEnable": "claims are always looked at; Volcano reads it nowhere, either",
    "volumebinding.weight": "volumes are not scored",
    "volumebinding.shape": "volumes are not scored",
    "dynamicresources.filterTimeoutSeconds": "a search for devices on a node ends after 10s",
}
"""Names that Volcano declares, and why nothing depends on them."""


def built_filters(handle: BatchHandle, arguments: Arguments, owner: str) -> dict[str, Any]:
    """The framework's filters that are switched on, by name, as sessions have them."""
    names = [name for name, key in (*_STABLE, *_OTHERS) if key is None or arguments.get_bool(key, True)]
    return {name: built(handle, owner, name, _settings(name, arguments)) for name in names}


def _settings(name: str, arguments: Arguments) -> dict[str, Any]:
    if name == "InterPodAffinity":
        return {"hardPodAffinityWeight": 0}
    if name == "PodTopologySpread":
        return {"defaultingType": "System"}
    if name == "VolumeBinding":
        return {"bindTimeoutSeconds": arguments.get_int("volumebinding.bindTimeoutSeconds", 600)}
    return {}


class Predicates:
    """Filters of the framework, and the state of the cluster that they look at."""

    name = "predicates"
    takes: ClassVar[tuple[Argument, ...]] = (
        *(Argument(key, bool, True) for _, key in (*_STABLE, *_OTHERS) if key is not None),
        Argument("volumebinding.bindTimeoutSeconds", int, 600),
        *(Argument(key, object, idle=why) for key, why in _NOT_READ.items()),
    )

    def __init__(self, arguments: Arguments, handle: BatchHandle) -> None:
        self._handle = handle
        self._arguments = arguments

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> Predicates:
        return cls(arguments, handle)

    def on_session_open(self, session: Session) -> None:
        self._session = session
        plugins = built_filters(self._handle, self._arguments, self.name)
        if "InterPodAffinity" in plugins:
            listen(plugins["InterPodAffinity"], session.snapshot)
        self._filters = list(plugins.values())
        self._pre_filters = [plugins[name] for name in _PRE_FILTER_ORDER if name in plugins]
        self._reserving = [plugins[name] for name in _RESERVING if name in plugins]
        self._alike = Alike(session, self._filters)
        live = LiveFilters(
            session,
            [plugin.name for plugin in self._pre_filters],
            list(plugins),
            lambda name: built(self._handle, f"{self.name} at commits", name, _settings(name, self._arguments)),
        )
        session.live_checks[self.name] = live.allow
        self._filtered: set[str] = set()  # tasks for which PreFilter has run, so that Reserve finds its state
        session.add_event_handler(self.name, allocate=self._allocated, deallocate=self._deallocated)
        session.add_pre_predicate_fn(self.name, self._pre_predicate)
        session.add_predicate_maker(self.name, self._make, self._alike.signature)
        self._affinity = plugins.get("InterPodAffinity")
        session.add_simulate_add_task_fn(self.name, lambda trial, task: self._shift(trial, task, "add_pod"))
        session.add_simulate_remove_task_fn(self.name, lambda trial, task: self._shift(trial, task, "remove_pod"))
        session.add_simulate_predicate_fn(self.name, self._simulate)

    def _make(self, task: Task) -> Filters:
        return Filters(self._session, task, self._pre_filters, self._filters)

    def _pre_predicate(self, task: Task) -> Status | None:
        filters: Filters | None = self._session.prospect(task).part(self.name)
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
            filters: Filters | None = self._session.prospect(trial.task).part(self.name)
            if filters is None:
                return None
            cycle = trial.state[self.name] = filters.cycle.clone()
        return None if self._affinity.name in cycle.skip_filter else cycle

    def _shift(self, trial: Simulation, task: Task, method: str) -> Status | None:
        cycle = self._trial(trial)
        if cycle is not None and self._affinity is not None:
            try:
                getattr(self._affinity, method)(cycle, task.info, trial.node.view)
            except FAULTS as fault:
                self._session.blame(self._affinity.name, fault, method)
        return None

    def _simulate(self, trial: Simulation) -> Status | None:
        """Affinity and shared devices alone: the rest is as it was when the node was looked at."""
        cycle = self._trial(trial)
        reason = "" if cycle is None else self._objection(cycle, trial)
        if reason:
            return error(f"failed to filter pod on node {trial.node.name}: {reason}")
        for pool in self._session.device_pools:
            refused = pool.simulate(trial)
            if refused is not None:
                return refused
        return None

    def _objection(self, cycle: Cycle, trial: Simulation) -> str:
        """Why affinity refuses the node of a trial; empty where it does not."""
        assert self._affinity is not None
        try:
            for rejection in self._affinity.filter_nodes(cycle, trial.node.view.alone):
                if rejection.mask[0]:
                    return str(rejection.reason)
        except FAULTS as fault:
            self._session.blame(self._affinity.name, fault, FILTER.key)
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
            objection: Status | None = pool.allocate(task, self._session.nodes.at(row))
            if objection is not None:
                return objection
        self._session.view.add(task, row)
        return None

    def _deallocated(self, task: Task) -> None:
        row = self._session.snapshot.nodes.index.get(task.node_name)
        if row is None or self._replaced:
            return
        self._unreserve(task)
        for pool in self._session.device_pools:
            if not pool.release(task, self._session.nodes.at(row)):
                return
        self._session.view.remove(task, row)

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
            except FAULTS as fault:
                self._session.blame(plugin.name, fault, "reserve")
                continue
            if refused is not None and not refused.ok:
                return refused
        self._session.pre_binds[task.uid] = PreBinding(self._reserving, cycle)
        return None

    def _filters_of(self, task: Task) -> Filters:
        """What PreFilter and Filter left when the task was looked at: the row that it is on has changed since, and
        Reserve is not to see that."""
        filters: Filters = self._session.prospects.as_left(task).part(self.name)
        return filters

    def _unreserve(self, task: Task) -> None:
        if task.uid not in self._filtered or not (task.pod.spec.volumes or task.pod.spec.resource_claims):
            return
        self._session.pre_binds.pop(task.uid, None)
        cycle = self._filters_of(task).cycle
        for plugin in reversed(self._reserving):
            try:
                plugin.unreserve(cycle, task.node_name)
            except FAULTS as fault:
                self._session.blame(plugin.name, fault, "unreserve")
