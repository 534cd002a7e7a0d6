"""Which nodes have room for the pod, and which are filled as the profile likes it?

Asked at Filter by every pod, and at Score. Cost: one comparison of columns for each resource that the pod asks for,
and a few integer operations for each resource that is scored.

Also asked at PlacementScore, once for each set of nodes that can take a pod group as a whole: the fuller the better.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from bayplan.config.field_errors import FieldPath, aggregate
from bayplan.devices.classes import ExtendedResourceClasses
from bayplan.errors import ConfigError
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.events import (
    ActionType,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    queue_hint_if,
)
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import Placement, Rejection, amounts_local
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
"""Resources and amounts, in the order in which reasons are given."""

RequestTuple = tuple[tuple[str, int], ...]
"""The same as a value."""

REQUESTS: StateKey[RequestList] = StateKey("PreFilterNodeResourcesFit")
"""What the pod must find free."""
SCORED_REQUESTS: StateKey[Demand] = StateKey("PreScoreNodeResourcesFit")


def insufficient(resource: str) -> str:
    return f"Insufficient {resource}"


class NodeResourcesFit:
    """Keeps pods off nodes without room for them, and scores nodes by how full they would be."""

    name = "NodeResourcesFit"
    depends_on = amounts_local
    ARGS = fit_args.ARGS

    def __init__(self, args: NodeResourcesFitArgs, handle: Handle) -> None:
        self._ignored = frozenset(args.ignored_resources)
        self._ignored_groups = frozenset(args.ignored_resource_groups)
        self._classes = ExtendedResourceClasses(handle.catalog)
        self._handle = handle
        self._columns = ResourceColumns(args.strategy.resources, handle, guess=True)
        self._scorer = allocation_scorer(args.strategy)
        self._fullest = most_allocated_scorer()
        self._mirror = self._columns.float_columns()
        self._room = MinimumFree()
        self._weights = [spec.weight for spec in args.strategy.resources]
        self._offer: NodeCapacityChange | None = None  # of the node event that was asked about last

    @property
    def cured_by(self) -> tuple[ClusterEventWithHint, ...]:
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
        """None where devices may stand in for a resource: then answers depend on more than columns."""
        requests = filter_requests(pod)
        if any(amount and self._has_class(name) for name, amount in requests.items()):
            return None
        return frozenset(requests.items()), self._columns.demand(fit_score_requests(pod))

    def pre_filter(self, cycle: Cycle) -> Status | None:
        cycle.put(REQUESTS, self._checked(cycle.info.cached(filter_requests)))
        return None

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        requests = cycle.find(REQUESTS)
        if requests is None:
            text = f'error reading "{REQUESTS.name}" from cycleState: not found'
            yield Rejection.from_error(nodes, text)
            return
        room = self._room if nodes.is_all_of(cycle.snapshot) else None
        if room is not None:
            room.follow(cycle.snapshot)
        if room is None or room.of(nodes.columns, _PODS) < 1:
            yield Rejection(nodes.pod_count + 1 > nodes.allocatable(PODS), TOO_MANY_PODS)
        for name, amount in requests:
            number = nodes.columns.vocabulary.resources.find(name)
            known = 0 <= number < len(nodes.columns.requested)  # others may have named it since these columns were made
            if room is None or not known or amount > room.of(nodes.columns, number):
                yield from self._lacking_mask(name, amount, nodes)

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        """The same for one node: for bringing what is known of a few rows up to date."""
        requests = cycle.find(REQUESTS)
        if requests is None:
            return error(f'error reading "{REQUESTS.name}" from cycleState: not found')
        reasons = []
        never = False
        columns, row = node.columns, node.row
        find = columns.vocabulary.resources.find
        if columns.pod_count.item(row) + 1 > columns.allocatable.item(_PODS, row):
            reasons.append(TOO_MANY_PODS)
        for name, amount in requests:
            number = find(name)
            known = 0 <= number < columns.allocatable.shape[0]
            allocatable = columns.allocatable.item(number, row) if known else 0
            requested = columns.requested.item(number, row) if known else 0
            if amount > allocatable - requested and not (allocatable <= 0 and self._has_class(name)):
                reasons.append(insufficient(name))
                never |= amount > allocatable
        if not reasons:
            return None
        return Status(Code.UNRESOLVABLE if never else Code.UNSCHEDULABLE, reasons)

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status | None:  # noqa: ARG002
        cycle.put(SCORED_REQUESTS, self._demand(cycle))
        return None

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        demand = cycle.find(SCORED_REQUESTS)
        if demand is None:  # PreScore is off in this profile
            demand = self._demand(cycle)
        if self._mirror is not None and nodes.is_all_of(cycle.snapshot) and self._mirror.follow(cycle.snapshot):
            scores = self._scorer.score_floats(self._mirror, demand, self._weights)
            if scores is not None:
                return scores
        return self._scorer.score(self._columns.of(nodes, demand), len(nodes))

    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        """The same for one node."""
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
        """How full the nodes will be together. Whatever is liked of single nodes, groups are to leave few gaps."""
        members = {pod.key: pod for pod in pod_group_members(self._handle, cycle, group)}
        asked = [self._columns.demand(fit_score_requests(members[key])) for key in assigned if key in members]
        together = tuple(map(sum, zip(self._columns.demand({}), *asked, strict=True)))
        nodes = NodeTable(cycle.snapshot.nodes, cycle.snapshot.rows_named(placement.node_names))
        return self._fullest.score_one(self._columns.with_demand(nodes, together))

    def _demand(self, cycle: Cycle) -> Demand:
        return self._columns.demand(cycle.info.cached(fit_score_requests))

    def _checked(self, requests: Mapping[str, int]) -> RequestList:
        """The requests that a node must have room for."""
        others = [name for name in requests if name not in _FIRST]
        if others:
            others = sorted(name for name in others if not self._ignores(name))
        return [(name, requests[name]) for name in (*_FIRST, *others) if requests.get(name)]

    def _has_class(self, name: str) -> bool:
        """Whether devices may stand behind a resource."""
        return name not in _FIRST and name in self._classes.get()

    def _ignores(self, name: str) -> bool:
        if not (self._ignored or self._ignored_groups) or not is_extended_resource_name(name):
            return False
        return name in self._ignored or name.partition("/")[0] in self._ignored_groups

    def _lacking_mask(self, name: str, amount: int, nodes: NodeTable) -> Iterator[Rejection]:
        """Nodes without room, apart from each other: those that others could make room on, and those too small."""
        allocatable = nodes.allocatable(name)
        short: BoolVector = amount > allocatable - nodes.requested(name)
        if self._has_class(name):  # devices serve it where the node itself has none
            short = short & (allocatable > 0)
        if not short.any():
            return
        never = short & (amount > allocatable)
        yield Rejection(short & ~never, insufficient(name))
        yield Rejection(never, insufficient(name), resolvable=False)

    def _hint_on_node_change(
        self, demands: RequestTuple, old: KubeObject | None, new: KubeObject | None
    ) -> QueueingHint:
        """A node came or grew, and the pod would fit on it if it were empty. Ignored resources are not ignored here."""
        offer = self._offer
        if offer is None or offer.new is not new or offer.old is not old:
            offer = self._offer = NodeCapacityChange.of(old, new)
        offered = offer.amounts
        served = False
        for name, amount in demands:
            there = offered.get(name, 0)
            if amount > there:
                if there > 0 or not self._has_class(name):
                    return QueueingHint.SKIP
                served = True
        if offered.get(PODS, 0) < 1:
            return QueueingHint.SKIP
        grown = offer.grown
        return queue_hint_if(grown is None or served or PODS in grown or any(name in grown for name, _ in demands))


@dataclass(frozen=True, slots=True)
class NodeCapacityChange:
    """What a node that came or changed has, and of what it has more than before; None: all of it is new."""

    old: KubeObject | None
    new: KubeObject | None
    amounts: Mapping[str, int]
    grown: frozenset[str] | None

    @classmethod
    def of(cls, old: KubeObject | None, new: KubeObject | None) -> NodeCapacityChange:
        assert isinstance(new, Node)
        amounts = allocatable_amounts(new.status.allocatable)
        if not isinstance(old, Node):
            return cls(old, new, amounts, None)
        before = allocatable_amounts(old.status.allocatable)
        grown = frozenset(name for name, amount in amounts.items() if amount > before.get(name, 0))
        return cls(old, new, amounts, grown)


def requested_amounts(pod: Pod) -> RequestTuple:
    """What the pod needs a node to have."""
    return tuple(sorted((name, amount) for name, amount in filter_requests(pod).items() if amount))


def named_resources(pod: Pod) -> tuple[frozenset[str], ...]:
    """The resources that the pod takes from a node, those that its parts name, and those that it names as a whole."""
    spec = pod.spec
    lists = [each.resources.requests for each in (*spec.containers, *spec.init_containers)]
    taken = frozenset(name for name, amount in accounted_requests(pod).items() if amount)
    whole = frozenset(spec.resources.requests) if spec.resources is not None else frozenset()
    return taken, frozenset().union(spec.overhead, *lists), whole


def hint_on_pod_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """A pod that had a place went, or asks for less of something that this pod asks for."""
    assert isinstance(old, Pod)
    if not isinstance(new, Pod):
        return queue_hint_if(bool(old.spec.node_name or old.status.nominated_node_name))
    if new.uid == pod.uid:
        return QueueingHint.QUEUE
    if not new.spec.node_name:
        return QueueingHint.SKIP
    before, after = accounted_requests(old), accounted_requests(new)
    wanted = (name for name, amount in accounted_requests(pod).items() if amount)
    return queue_hint_if(any(before.get(name, 0) > after.get(name, 0) for name in wanted))


def hint_on_device_class_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """A class came, or was given another resource name, that this pod asks for."""
    assert isinstance(new, DeviceClass)
    requests = pod_requests(pod)
    serves = new.spec.extended_resource_name
    if isinstance(old, DeviceClass):
        return queue_hint_if((old.spec.extended_resource_name or "") != (serves or "") and serves in requests)
    return queue_hint_if(DEVICE_CLASS_PREFIX + new.name in requests or serves in requests)
