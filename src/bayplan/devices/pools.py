"""Device pools that a node can use, in the order of the search.

Drivers publish devices in slices; the slices of one pool and generation form the pool. A node sees the slices that are
local to it, those whose selector matches it, and all slices with shared counters. A pool with missing slices
(`incomplete`) or contradictions (`invalid`) gives no devices but is recorded, because "all devices" cannot be
guaranteed while it exists.

The allocator calls it once per node and attempt. Cost: an index is built when slices change, in a few microseconds per
slice, and reuses the unchanged parts; the pools of a node are computed once and cached while its labels stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bayplan.codec.quantity import Quantity, parse_quantity
from bayplan.devices.errors import AllocationError
from bayplan.devices.identity import DeviceId, PoolId
from bayplan.objects.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from bayplan.objects.resource import Device, DeviceTaint, ResourceSlice
from bayplan.objects.selectors.label_selectors import SelectorError
from bayplan.objects.selectors.node_selectors import compile_node_selector
from bayplan.objects.taints import DO_NOT_SCHEDULE

CounterName = tuple[str, str]
"""A counter set and a counter in it."""


class PoolDevice:
    """A device with precomputed values for the search."""

    __slots__ = ("blocking_taints", "counters", "device", "has_policy", "id", "pool", "shareable", "slice", "verdicts")

    def __init__(self, slice_: ResourceSlice, device: Device) -> None:
        spec = slice_.spec
        self.slice = slice_
        self.device = device
        self.pool = PoolId(spec.driver, spec.pool.name)
        self.id = DeviceId(spec.driver, spec.pool.name, device.name)
        self.shareable = bool(device.allow_multiple_allocations)
        self.has_policy = any(capacity.request_policy is not None for capacity in device.capacity.values())
        self.blocking_taints: tuple[DeviceTaint, ...] = tuple(t for t in device.taints if t.effect in DO_NOT_SCHEDULE)
        self.counters: tuple[tuple[CounterName, Quantity], ...] = tuple(
            ((consumption.counter_set, name), parse_quantity(counter.value))
            for consumption in device.consumes_counters
            for name, counter in consumption.counters.items()
        )
        self.verdicts: dict[str, bool] = {}  # result by selector; cached by `selectors`

    def reaches(self, node: Node) -> bool:
        """Whether the node can use the device, where devices have a node selection of their own."""
        if not self.slice.spec.per_device_node_selection:
            return True
        device = self.device
        return _reaches(node, device.node_name, device.all_nodes, device.node_selector)


class PublishedSlice:
    __slots__ = ("devices", "pool", "slice")

    def __init__(self, slice_: ResourceSlice) -> None:
        self.slice = slice_
        self.pool = PoolId(slice_.spec.driver, slice_.spec.pool.name)
        self.devices = tuple(PoolDevice(slice_, device) for device in slice_.spec.devices)

    @property
    def name(self) -> str:
        return self.slice.metadata.name

    @property
    def generation(self) -> int:
        return self.slice.spec.pool.generation

    @property
    def holds_counters(self) -> bool:
        return bool(self.slice.spec.shared_counters)

    @property
    def is_shared(self) -> bool:
        """Whether several nodes may see it."""
        return self.holds_counters or not self.slice.spec.node_name

    def applies_to(self, node: Node) -> bool:
        spec = self.slice.spec
        if spec.shared_counters:
            return True
        try:
            if spec.node_name or spec.all_nodes or spec.node_selector is not None:
                return _reaches(node, spec.node_name, spec.all_nodes, spec.node_selector)
            return bool(spec.per_device_node_selection) and any(device.reaches(node) for device in self.devices)
        except AllocationError as fault:
            raise AllocationError(
                f"gather pool information: failed to perform node selection for slice {self.name}: {fault}"
            ) from fault


class VisiblePool:
    """One pool as one node sees it."""

    __slots__ = ("counters", "devices", "elsewhere", "id", "incomplete", "invalid")

    def __init__(
        self,
        pool_id: PoolId,
        *,
        devices: tuple[PoolDevice, ...] = (),
        elsewhere: tuple[PoolDevice, ...] = (),
        counters: Mapping[CounterName, Quantity] | None = None,
        incomplete: bool = False,
        invalid: bool = False,
    ) -> None:
        self.id = pool_id
        self.devices = devices
        self.elsewhere = elsewhere  # devices for other nodes, which consume the same counters
        self.counters: Mapping[CounterName, Quantity] = counters or {}
        self.incomplete = incomplete
        self.invalid = invalid

    @property
    def usable(self) -> bool:
        return not (self.incomplete or self.invalid)

    @property
    def has_binding_conditions(self) -> bool:
        """Whether some device must become ready after its allocation; such pools are tried last."""
        return any(device.device.binding_conditions for device in self.devices)


class NodePools:
    """All pools that a node sees, in the order of the search."""

    __slots__ = ("any_invalid", "by_id", "devices", "labels", "pool_ids", "pools")

    def __init__(self, pools: Iterable[VisiblePool], labels: Mapping[str, str], pool_ids: Iterable[PoolId]) -> None:
        self.pools = tuple(sorted(pools, key=lambda pool: (pool.has_binding_conditions, pool.id)))
        self.devices = tuple(device for pool in self.pools if pool.usable for device in pool.devices)
        self.by_id = {pool.id: pool for pool in self.pools}
        self.any_invalid = any(pool.invalid for pool in self.pools)
        self.labels = labels
        self.pool_ids = frozenset(pool_ids)  # all pools with slices for the node, also those that are being replaced


class PoolIndex:
    """All slices of the cluster, indexed by node and pool."""

    def __init__(self, slices: Iterable[ResourceSlice], previous: PoolIndex | None = None) -> None:
        known = previous._slices if previous is not None else {}
        self._slices: dict[str, PublishedSlice] = {}
        self._local: dict[str, list[PublishedSlice]] = {}
        self._shared: list[PublishedSlice] = []
        self._by_pool: dict[PoolId, list[PublishedSlice]] = {}
        self._seen: dict[str, NodePools] = {}
        for slice_ in sorted(slices, key=lambda item: item.metadata.name):
            published = known.get(slice_.metadata.name)
            if published is None or published.slice is not slice_:
                published = PublishedSlice(slice_)
            self._index_slice(published)
        if previous is not None:
            self._reuse(previous)

    def _reuse(self, previous: PoolIndex) -> None:
        """Reuse the cached pools of nodes, except where a slice that may apply to them has changed."""
        before, now = previous._slices, self._slices
        names = [name for name in before.keys() | now.keys() if before.get(name) is not now.get(name)]
        changed = [item for name in names for item in (before.get(name), now.get(name)) if item is not None]
        if any(item.is_shared for item in changed):
            return
        local, pools = {item.slice.spec.node_name for item in changed}, {item.pool for item in changed}
        for name, seen in previous._seen.items():
            if name not in local and pools.isdisjoint(seen.pool_ids):
                self._seen[name] = seen

    def _index_slice(self, published: PublishedSlice) -> None:
        self._slices[published.name] = published
        self._by_pool.setdefault(published.pool, []).append(published)
        if published.is_shared:
            self._shared.append(published)
        else:
            self._local.setdefault(published.slice.spec.node_name or "", []).append(published)

    def pools_for(self, node: Node) -> NodePools:
        """The pools that the node sees; raises `AllocationError` for a slice with an invalid node selector."""
        seen = self._seen.get(node.name)
        if seen is None or seen.labels != node.labels:
            newest = self._gather(node)
            pools = filter(None, (self._pool(pool_id, slices) for pool_id, slices in newest.items()))
            seen = self._seen[node.name] = NodePools(pools, node.labels, newest)
        return seen

    def _gather(self, node: Node) -> dict[PoolId, list[PublishedSlice]]:
        """The slices for the node, of each pool those of the newest generation."""
        newest: dict[PoolId, list[PublishedSlice]] = {}
        for published in (*self._local.get(node.name, ()), *self._shared):
            if not published.applies_to(node):
                continue
            same_pool = newest.setdefault(published.pool, [])
            if same_pool and published.generation > same_pool[0].generation:
                same_pool.clear()
            if not same_pool or published.generation == same_pool[0].generation:
                same_pool.append(published)
        return newest

    def _pool(self, pool_id: PoolId, slices: list[PublishedSlice]) -> VisiblePool | None:
        """The pool of the slices for a node; None if a newer generation, not for this node, replaces it."""
        expected, generation = slices[0].slice.spec.pool.resource_slice_count, slices[0].generation
        if len(slices) == expected:
            return build_pool(pool_id, slices, ())
        everything = self._by_pool[pool_id]
        if any(other.generation > generation for other in everything):
            return None
        current = [other for other in everything if other.generation == generation]
        if len(current) != expected:
            return VisiblePool(pool_id, incomplete=True)
        here = {mate.name for mate in slices}
        return build_pool(pool_id, slices, [other for other in current if other.name not in here])


def build_pool(pool_id: PoolId, slices: list[PublishedSlice], elsewhere: Sequence[PublishedSlice]) -> VisiblePool:
    """A complete pool from its slices for the node (`slices`) and its slices elsewhere; it may be invalid."""
    ordered = sorted(slices, key=lambda published: published.name)
    devices = tuple(device for published in ordered if not published.holds_counters for device in published.devices)
    counters = _counters(ordered)
    other_devices = tuple(device for other in elsewhere for device in other.devices)
    all_devices = (*(device for published in ordered for device in published.devices), *other_devices)
    if (
        counters is None
        or _has_duplicate_names(devices)
        or not all(_counters_exist(device, counters) for device in all_devices)
    ):
        return VisiblePool(pool_id, invalid=True)
    return VisiblePool(
        pool_id,
        devices=devices,
        elsewhere=other_devices,
        counters={(name, counter): value for name, values in counters.items() for counter, value in values.items()},
    )


def _counters(slices: Iterable[PublishedSlice]) -> dict[str, dict[str, Quantity]] | None:
    """The counter sets by name; None if two have the same name."""
    sets = [shared for mate in slices for shared in mate.slice.spec.shared_counters]
    named = {
        shared.name: {name: parse_quantity(counter.value) for name, counter in shared.counters.items()}
        for shared in sets
    }
    return named if len(named) == len(sets) else None


def _has_duplicate_names(devices: Sequence[PoolDevice]) -> bool:
    return len({device.id for device in devices}) != len(devices)


def _counters_exist(device: PoolDevice, counters: Mapping[str, Mapping[str, Quantity]]) -> bool:
    return all(
        consumption.counter_set in counters and consumption.counters.keys() <= counters[consumption.counter_set].keys()
        for consumption in device.device.consumes_counters
    )


def _reaches(node: Node, node_name: str | None, all_nodes: bool | None, selector: NodeSelector | None) -> bool:
    """Evaluate the three node selections; the first that is set counts."""
    if node_name:
        return node.name == node_name
    if all_nodes:
        return True
    if selector is None:
        return False
    try:
        return compile_node_selector(selector).check().matches(node.labels, node.name)
    except SelectorError as fault:
        raise AllocationError(f"failed to parse node selector {_as_go(selector)}: {fault.reason}") from fault


def _as_go(selector: NodeSelector) -> str:
    """The selector in upstream's message: Go's format of the struct."""
    terms = "".join(f"{_term_as_go(term)}," for term in selector.node_selector_terms)
    return f"&NodeSelector{{NodeSelectorTerms:[]NodeSelectorTerm{{{terms}}},}}"


def _term_as_go(term: NodeSelectorTerm) -> str:
    expressions, fields = _requirements_as_go(term.match_expressions), _requirements_as_go(term.match_fields)
    return f"NodeSelectorTerm{{MatchExpressions:{expressions},MatchFields:{fields},}}"


def _requirements_as_go(requirements: Iterable[NodeSelectorRequirement]) -> str:
    listed = "".join(
        f"NodeSelectorRequirement{{Key:{item.key},Operator:{item.operator},Values:[{' '.join(item.values)}],}},"
        for item in requirements
    )
    return f"[]NodeSelectorRequirement{{{listed}}}"
