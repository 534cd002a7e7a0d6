"""Allocatable and allocated amounts of the scored resources.

Used by the two plugins that score resources, once in each attempt. They use the same resources and differ in the
requests of pods: one adds default requests for containers without requests, the other does not. Cost: columns are
returned without a copy; only resources that devices provide are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bayplan.devices.classes import ExtendedResourceClasses
from bayplan.framework.api.handle import Handle
from bayplan.objects.resources import CPU, EPHEMERAL_STORAGE, MEMORY, is_dra_extended_resource_name, is_scalar_resource
from bayplan.plugins.node_resources.device_totals import DeviceTotals
from bayplan.plugins.node_resources.float_columns import FloatColumns, RowsChanged
from bayplan.plugins.node_resources.resource_specs import ResourceSpec
from bayplan.snapshot import IntVector, NodeInfo, NodeTable

Demand = tuple[int, ...]
"""The requests of the pod, in the order of the configured resources."""


class ResourceColumn(NamedTuple):
    """One resource on all rows of a table. A row with `allocatable` 0 does not have it."""

    weight: int
    allocatable: IntVector
    allocated: IntVector
    demand: int

    @property
    def requested(self) -> IntVector:
        """The allocated amount including the pod."""
        return self.allocated + self.demand


ResourceCell = tuple[int, int, int, int]
"""One resource on one row: weight, allocatable, allocated, demand."""

_FIXED = {CPU: 0, MEMORY: 1, EPHEMERAL_STORAGE: 2}
"""Resources that every cluster has, with the number of their column."""

_WITH_DEFAULT_REQUEST = {CPU: 0, MEMORY: 1}
"""Resources with a column of requests including defaults, with its number."""


class ResourceColumns:
    """The configured resources of one plugin."""

    def __init__(self, specs: Sequence[ResourceSpec], handle: Handle, *, use_default_requests: bool) -> None:
        self._specs = tuple(specs)
        self._use_default_requests = use_default_requests
        self._only_fixed = all(spec.name in _FIXED for spec in self._specs)
        self._classes = ExtendedResourceClasses(handle.catalog)
        self._devices = DeviceTotals(handle)

    def float_columns(self, changed: RowsChanged | None = None) -> FloatColumns | None:
        """Return the resources as floats, if every cluster has them."""
        if not self._only_fixed:
            return None
        numbers = [_FIXED[spec.name] for spec in self._specs]
        return FloatColumns(
            numbers,
            [self._use_default_requests and spec.name in _WITH_DEFAULT_REQUEST for spec in self._specs],
            changed,
        )

    def demand(self, requests: Mapping[str, int]) -> Demand:
        return tuple(requests.get(spec.name, 0) for spec in self._specs)

    def of(self, nodes: NodeTable, demand: Demand) -> Iterator[ResourceColumn]:
        """Yield the columns of the resources that count for a pod: extended resources only if the pod requests them."""
        for spec, amount in zip(self._specs, demand, strict=True):
            if amount or not is_scalar_resource(spec.name):
                allocatable, allocated = self._columns(nodes, spec.name)
                yield ResourceColumn(spec.weight, allocatable, allocated, amount)

    def with_demand(self, nodes: NodeTable, demand: Demand) -> Iterator[ResourceCell]:
        """Yield the sums over all rows, as if they were one node. Devices do not count here."""
        for spec, amount in zip(self._specs, demand, strict=True):
            if amount or not is_scalar_resource(spec.name):
                allocatable, allocated = self._node_columns(nodes, spec.name)
                has_resource = allocatable != 0
                yield spec.weight, int(allocatable.sum()), int(allocated[has_resource].sum()), amount

    def at(self, node: NodeInfo, demand: Demand) -> list[ResourceCell] | None:
        """Return the cells of one row; None if devices may provide a resource, which only columns support."""
        if not self._only_fixed:
            return self._cells(node, demand)
        columns, row = node.columns, node.row
        allocatable, nonzero_requests = (
            columns.allocatable,
            columns.nonzero if self._use_default_requests else columns.requested,
        )
        cells = []
        for spec, amount in zip(self._specs, demand, strict=True):
            number = _FIXED[spec.name]
            allocated = nonzero_requests if number < 2 else columns.requested  # both matrices use these numbers
            cells.append((spec.weight, allocatable.item(number, row), allocated.item(number, row), amount))
        return cells

    def _cells(self, node: NodeInfo, demand: Demand) -> list[ResourceCell] | None:
        columns, row = node.columns, node.row
        cells = []
        for spec, amount in zip(self._specs, demand, strict=True):
            name = spec.name
            if name in _WITH_DEFAULT_REQUEST and self._use_default_requests:
                allocated = columns.nonzero.item(_WITH_DEFAULT_REQUEST[name], row)
            elif name in _FIXED:
                allocated = node.requested(name)
            elif not is_scalar_resource(name):
                continue  # no node has it
            elif amount == 0:
                continue
            elif is_dra_extended_resource_name(name) and name in self._classes.get():
                return None
            else:
                allocated = node.requested(name)
            cells.append((spec.weight, node.allocatable(name), allocated, amount))
        return cells

    def _columns(self, nodes: NodeTable, name: str) -> tuple[IntVector, IntVector]:
        allocatable, allocated = self._node_columns(nodes, name)
        if name in _FIXED or not is_scalar_resource(name):
            return allocatable, allocated
        return self._add_devices(nodes, name, allocatable, allocated)

    def _node_columns(self, nodes: NodeTable, name: str) -> tuple[IntVector, IntVector]:
        """Return the amounts of the nodes themselves, without devices."""
        if self._use_default_requests and name == CPU:
            return nodes.allocatable(CPU), nodes.nonzero_cpu
        if self._use_default_requests and name == MEMORY:
            return nodes.allocatable(MEMORY), nodes.nonzero_memory
        if name in _FIXED:
            return nodes.allocatable(name), nodes.requested(name)
        if not is_scalar_resource(name):  # `pods` and invalid names: no node has any
            zeros = np.zeros(len(nodes), dtype=np.int64)
            return zeros, zeros
        return nodes.allocatable(name), nodes.requested(name)

    def _add_devices(
        self, nodes: NodeTable, name: str, allocatable: IntVector, allocated: IntVector
    ) -> tuple[IntVector, IntVector]:
        """Add devices on rows that do not have the resource themselves."""
        device_class = self._classes.get().get(name) if is_dra_extended_resource_name(name) else None
        if device_class is None:
            return allocatable, allocated
        total, allocated_devices = self._devices.of(device_class, nodes)
        from_devices = (allocatable == 0) & (total > 0)
        return np.where(from_devices, total, allocatable), np.where(from_devices, allocated_devices, allocated)
