"""Filters nodes by free resources, and scores them by their allocation.

Filter runs for every pod. Cost: one comparison of columns for each requested resource, and a few integer operations for
each scored resource.

PlacementScore runs once for each set of nodes that fits a pod group: fuller sets score higher.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from bayplan.codec.field_errors import FieldPath, aggregate
from bayplan.devices.classes import ExtendedResourceClasses
from bayplan.errors import ConfigError
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint, queue_hint_if
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import Placement, Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, amounts_local
from bayplan.framework.api.status import Code, Status, error
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.resource import DeviceClass
from bayplan.objects.resources import (
    CPU,
    DEVICE_CLASS_PREFIX,
    EPHEMERAL_STORAGE,
    MEMORY,
    PODS,
    accounted_requests,
    allocatable_amounts,
    filter_requests,
    fit_score_requests,
    is_extended_resource_name,
    pod_requests,
)
from bayplan.plugins.node_resources import fit_args
from bayplan.plugins.node_resources.allocation_strategies import allocation_scorer, most_allocated_scorer
from bayplan.plugins.node_resources.fit_args import NodeResourcesFitArgs
from bayplan.plugins.node_resources.float_columns import MinimumFree
from bayplan.plugins.node_resources.resource_columns import Demand, ResourceColumns
from bayplan.plugins.pod_group_members import PodGroupName, pod_group_members
from bayplan.snapshot import BoolVector, IntVector, NodeInfo, NodeTable
from bayplan.snapshot.intern_tables import FIXED_RESOURCES

_PODS = FIXED_RESOURCES.index(PODS)
TOO_MANY_PODS = "Too many pods"
_FIRST = (CPU, MEMORY, EPHEMERAL_STORAGE)

RequestList = list[tuple[str, int]]
"""Resources and amounts, in the order of the reasons."""

RequestTuple = tuple[tuple[str, int], ...]
"""The same, hashable."""

REQUESTS: StateKey[RequestList] = StateKey("PreFilterNodeResourcesFit")
"""The requests that must be free on a node."""
SCORED_REQUESTS: StateKey[Demand] = StateKey("PreScoreNodeResourcesFit")


def insufficient(resource: str) -> str:
    return f"Insufficient {resource}"


class NodeResourcesFit:
    """Keeps pods off nodes without enough free resources, and scores nodes by their allocation."""

    name = "NodeResourcesFit"
    traits = PluginTraits(depends_on=amounts_local)
    ARGS = fit_args.ARGS

    def __init__(self, args: NodeResourcesFitArgs, handle: Handle) -> None:
        self._ignored = frozenset(args.ignored_resources)
        self._ignored_groups = frozenset(args.ignored_resource_groups)
        self._classes = ExtendedResourceClasses(handle.catalog)
        self._handle = handle
        self._columns = ResourceColumns(args.strategy.resources, handle, use_default_requests=True)
        self._scorer = allocation_scorer(args.strategy)
        self._placement_scorer = most_allocated_scorer()
        self._float_columns = self._columns.float_columns()
        self._minimum_free = MinimumFree()
        self._weights = [spec.weight for spec in args.strategy.resources]
        self._last_change: NodeCapacityChange | None = None  # the change of the last node event

    @property
    def events_to_register(self) -> tuple[ClusterEventWithHint, ...]:
        return (
            ClusterEventWithHint(
                EventResource.POD,
                ActionType.DELETE | ActionType.UPDATE_POD_SCALE_DOWN,
                hint_on_pod_change,
                hint_key=named_resources,
            ),
            ClusterEventWithHint.with_hint_key(
                EventResource.NODE,
                ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE,
                requested_amounts,
                self._hint_on_node_change,
            ),
            ClusterEventWithHint(
                EventResource.DEVICE_CLASS,
                ActionType.ADD | ActionType.UPDATE,
                hint_on_device_class_change,
                hint_key=named_resources,
            ),
        )

    @classmethod
    def factory(cls, args: NodeResourcesFitArgs, handle: Handle) -> NodeResourcesFit:
        errors = cls.ARGS.validate(args, FieldPath())
        if errors:
            raise ConfigError(aggregate(errors), stage="profile")
        return cls(args, handle)

    def signature(self, pod: Pod) -> Hashable | None:
        """None if a DeviceClass may provide a resource: answers then depend on more than columns."""
        requests = filter_requests(pod)
        if any(amount and self._has_class(name) for name, amount in requests.items()):
            return None
        return frozenset(requests.items()), self._columns.demand(fit_score_requests(pod))

    def pre_filter(self, cycle: Cycle) -> Status | None:
        cycle.put(REQUESTS, self._required_requests(cycle.info.cached(filter_requests)))
        return None

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        requests = cycle.find(REQUESTS)
        if requests is None:
            text = f'error reading "{REQUESTS.name}" from cycleState: not found'
            yield Rejection.from_error(nodes, text)
            return
        minimum_free = self._minimum_free if nodes.is_all_of(cycle.snapshot) else None
        if minimum_free is not None:
            minimum_free.follow(cycle.snapshot)
        if minimum_free is None or minimum_free.of(nodes.columns, _PODS) < 1:
            yield Rejection(nodes.pod_count + 1 > nodes.allocatable(PODS), TOO_MANY_PODS)
        for name, amount in requests:
            number = nodes.columns.vocabulary.resources.find(name)
            # a resource may have been added after these columns were built
            is_known = 0 <= number < len(nodes.columns.requested)
            if minimum_free is None or not is_known or amount > minimum_free.of(nodes.columns, number):
                yield from self._insufficient_rejections(name, amount, nodes)

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        """Filter one node, to update a few rows."""
        requests = cycle.find(REQUESTS)
        if requests is None:
            return error(f'error reading "{REQUESTS.name}" from cycleState: not found')
        reasons = []
        exceeds_allocatable = False
        columns, row = node.columns, node.row
        find = columns.vocabulary.resources.find
        if columns.pod_count.item(row) + 1 > columns.allocatable.item(_PODS, row):
            reasons.append(TOO_MANY_PODS)
        for name, amount in requests:
            number = find(name)
            is_known = 0 <= number < columns.allocatable.shape[0]
            allocatable = columns.allocatable.item(number, row) if is_known else 0
            requested = columns.requested.item(number, row) if is_known else 0
            if amount > allocatable - requested and not (allocatable <= 0 and self._has_class(name)):
                reasons.append(insufficient(name))
                exceeds_allocatable |= amount > allocatable
        if not reasons:
            return None
        return Status(Code.UNRESOLVABLE if exceeds_allocatable else Code.UNSCHEDULABLE, reasons)

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        cycle.put(SCORED_REQUESTS, self._demand(cycle))
        return None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        demand = cycle.find(SCORED_REQUESTS)
        if demand is None:  # PreScore is disabled in this profile
            demand = self._demand(cycle)
        if (
            self._float_columns is not None
            and nodes.is_all_of(cycle.snapshot)
            and self._float_columns.follow(cycle.snapshot)
        ):
            scores = self._scorer.score_floats(self._float_columns, demand, self._weights)
            if scores is not None:
                return scores
        return self._scorer.score(self._columns.of(nodes, demand), len(nodes))

    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        demand = cycle.find(SCORED_REQUESTS)
        if demand is None:
            demand = self._demand(cycle)
        cells = self._columns.at(node, demand)
        if cells is None:
            return int(self.score_nodes(cycle, node.single_row_table)[0])
        return self._scorer.score_one(cells)

    def score_placement(
        self, cycle: Cycle, group: PodGroupName, placement: Placement, assigned: Mapping[str, str]
    ) -> int:
        """Score how full the nodes will be together.

        The strategy applies to single nodes; groups should leave few gaps.
        """
        members = {pod.key: pod for pod in pod_group_members(self._handle, cycle, group)}
        demands = [self._columns.demand(fit_score_requests(members[key])) for key in assigned if key in members]
        total_demand = tuple(map(sum, zip(self._columns.demand({}), *demands, strict=True)))
        nodes = NodeTable(cycle.snapshot.nodes, cycle.snapshot.rows_named(placement.node_names))
        return self._placement_scorer.score_one(self._columns.with_demand(nodes, total_demand))

    def _demand(self, cycle: Cycle) -> Demand:
        return self._columns.demand(cycle.info.cached(fit_score_requests))

    def _required_requests(self, requests: Mapping[str, int]) -> RequestList:
        other_names = [name for name in requests if name not in _FIRST]
        if other_names:
            other_names = sorted(name for name in other_names if not self._ignores(name))
        return [(name, requests[name]) for name in (*_FIRST, *other_names) if requests.get(name)]

    def _has_class(self, name: str) -> bool:
        """Whether a DeviceClass may provide a resource."""
        return name not in _FIRST and name in self._classes.get()

    def _ignores(self, name: str) -> bool:
        if not (self._ignored or self._ignored_groups) or not is_extended_resource_name(name):
            return False
        return name in self._ignored or name.partition("/")[0] in self._ignored_groups

    def _insufficient_rejections(self, name: str, amount: int, nodes: NodeTable) -> Iterator[Rejection]:
        """Yield the nodes without enough free, split by whether evictions can help or the node is too small."""
        allocatable = nodes.allocatable(name)
        insufficient_rows: BoolVector = amount > allocatable - nodes.requested(name)
        if self._has_class(name):  # devices provide it if the node does not have it
            insufficient_rows = insufficient_rows & (allocatable > 0)
        if not insufficient_rows.any():
            return
        exceeds_allocatable = insufficient_rows & (amount > allocatable)
        yield Rejection(insufficient_rows & ~exceeds_allocatable, insufficient(name))
        yield Rejection(exceeds_allocatable, insufficient(name), resolvable=False)

    def _hint_on_node_change(
        self, requests: RequestTuple, old: KubeObject | None, new: KubeObject | None
    ) -> QueueingHint:
        """A node was added or grew, and the pod fits if it is empty.

        Ignored resources are checked here, as upstream.
        """
        change = self._last_change
        if change is None or change.new is not new or change.old is not old:
            change = self._last_change = NodeCapacityChange.of(old, new)
        amounts = change.amounts
        from_devices = False
        for name, amount in requests:
            available = amounts.get(name, 0)
            if amount > available:
                if available > 0 or not self._has_class(name):
                    return QueueingHint.SKIP
                from_devices = True
        if amounts.get(PODS, 0) < 1:
            return QueueingHint.SKIP
        increased = change.increased
        return queue_hint_if(
            increased is None or from_devices or PODS in increased or any(name in increased for name, _ in requests)
        )


@dataclass(frozen=True, slots=True)
class NodeCapacityChange:
    """Allocatable resources of an added or changed node, and those that increased; None: all are new."""

    old: KubeObject | None
    new: KubeObject | None
    amounts: Mapping[str, int]
    increased: frozenset[str] | None

    @classmethod
    def of(cls, old: KubeObject | None, new: KubeObject | None) -> NodeCapacityChange:
        assert isinstance(new, Node)
        amounts = allocatable_amounts(new.status.allocatable)
        if not isinstance(old, Node):
            return cls(old, new, amounts, None)
        before = allocatable_amounts(old.status.allocatable)
        increased = frozenset(name for name, amount in amounts.items() if amount > before.get(name, 0))
        return cls(old, new, amounts, increased)


def requested_amounts(pod: Pod) -> RequestTuple:
    return tuple(sorted((name, amount) for name, amount in filter_requests(pod).items() if amount))


def named_resources(pod: Pod) -> tuple[frozenset[str], ...]:
    """Return the resources that the pod requests in total, in its containers and at pod level."""
    spec = pod.spec
    container_requests = [each.resources.requests for each in (*spec.containers, *spec.init_containers)]
    requested_names = frozenset(name for name, amount in accounted_requests(pod).items() if amount)
    pod_level = frozenset(spec.resources.requests) if spec.resources is not None else frozenset()
    return requested_names, frozenset().union(spec.overhead, *container_requests), pod_level


def hint_on_pod_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """A pod with a node was deleted, or reduced a request for a resource that this pod requests."""
    assert isinstance(old, Pod)
    if not isinstance(new, Pod):
        return queue_hint_if(bool(old.spec.node_name or old.status.nominated_node_name))
    if new.uid == pod.uid:
        return QueueingHint.QUEUE
    if not new.spec.node_name:
        return QueueingHint.SKIP
    before, after = accounted_requests(old), accounted_requests(new)
    requested = (name for name, amount in accounted_requests(pod).items() if amount)
    return queue_hint_if(any(before.get(name, 0) > after.get(name, 0) for name in requested))


def hint_on_device_class_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """A DeviceClass was added, or got another resource name, that this pod requests."""
    assert isinstance(new, DeviceClass)
    requests = pod_requests(pod)
    resource_name = new.spec.extended_resource_name
    if isinstance(old, DeviceClass):
        return queue_hint_if(
            (old.spec.extended_resource_name or "") != (resource_name or "") and resource_name in requests
        )
    return queue_hint_if(DEVICE_CLASS_PREFIX + new.name in requests or resource_name in requests)
