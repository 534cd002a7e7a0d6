"""How much of each scored resource do the nodes have, and how much of it will be taken with the pod there?

Asked by the two plugins that score resources, once an attempt each. They agree on which resources count and differ in
what they take as given to pods: one guesses for containers that ask for nothing, the other does not.
Cost: columns are returned as they are; only a resource that devices stand behind is counted.
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
"""What the pod asks for, in the order of the configured resources."""


class ResourceColumn(NamedTuple):
    """One resource on all rows of a table. Where `allocatable` is 0 the row does not have it."""

    weight: int
    allocatable: IntVector
    allocated: IntVector
    demand: int

    @property
    def requested(self) -> IntVector:
        """What will be taken once the pod is there."""
        return self.allocated + self.demand


ResourceCell = tuple[int, int, int, int]
"""The same on one row: weight, allocatable, allocated, demand."""

_FIXED = {CPU: 0, MEMORY: 1, EPHEMERAL_STORAGE: 2}
"""Resources that every cluster has, by the number of their column."""

_WITH_DEFAULT_REQUEST = {CPU: 0, MEMORY: 1}
"""Resources with a column of guesses for containers that ask for nothing, by its number."""


class ResourceColumns:
    """The configured resources of one plugin."""

    def __init__(self, specs: Sequence[ResourceSpec], handle: Handle, *, guess: bool) -> None:
        self._specs = tuple(specs)
        self._guess = guess
        self._only_fixed = all(spec.name in _FIXED for spec in self._specs)
        self._classes = ExtendedResourceClasses(handle.catalog)
        self._devices = DeviceTotals(handle)

    def float_columns(self, changed: RowsChanged | None = None) -> FloatColumns | None:
        """The resources as floats, where these are resources that every cluster has."""
        if not self._only_fixed:
            return None
        numbers = [_FIXED[spec.name] for spec in self._specs]
        return FloatColumns(
            numbers, [self._guess and spec.name in _WITH_DEFAULT_REQUEST for spec in self._specs], changed
        )

    def demand(self, requests: Mapping[str, int]) -> Demand:
        return tuple(requests.get(spec.name, 0) for spec in self._specs)

    def of(self, nodes: NodeTable, demand: Demand) -> Iterator[ResourceColumn]:
        """The resources that count for a pod: not those of other people's domains that it does not ask for."""
        for spec, amount in zip(self._specs, demand, strict=True):
            if amount or not is_scalar_resource(spec.name):
                allocatable, allocated = self._columns(nodes, spec.name)
                yield ResourceColumn(spec.weight, allocatable, allocated, amount)

    def with_demand(self, nodes: NodeTable, demand: Demand) -> Iterator[ResourceCell]:
        """The same of all rows together, as if they were one node. Devices stand in for nothing here."""
        for spec, amount in zip(self._specs, demand, strict=True):
            if amount or not is_scalar_resource(spec.name):
                allocatable, allocated = self._resource_on_node(nodes, spec.name)
                there = allocatable != 0
                yield spec.weight, int(allocatable.sum()), int(allocated[there].sum()), amount

    def at(self, node: NodeInfo, demand: Demand) -> list[ResourceCell] | None:
        """The same for one row, as plain numbers; None where devices may stand in, which only columns can say."""
        if not self._only_fixed:
            return self._cells(node, demand)
        columns, row = node.columns, node.row
        allocatable, guessed = columns.allocatable, columns.nonzero if self._guess else columns.requested
        cells = []
        for spec, amount in zip(self._specs, demand, strict=True):
            number = _FIXED[spec.name]
            allocated = guessed if number < 2 else columns.requested  # guesses are numbered alike
            cells.append((spec.weight, allocatable.item(number, row), allocated.item(number, row), amount))
        return cells

    def _cells(self, node: NodeInfo, demand: Demand) -> list[ResourceCell] | None:
        columns, row = node.columns, node.row
        cells = []
        for spec, amount in zip(self._specs, demand, strict=True):
            name = spec.name
            if name in _WITH_DEFAULT_REQUEST and self._guess:
                allocated = columns.nonzero.item(_WITH_DEFAULT_REQUEST[name], row)
            elif name in _FIXED:
                allocated = node.requested(name)
            elif not is_scalar_resource(name):
                continue  # nobody has any of it
            elif amount == 0:
                continue
            elif is_dra_extended_resource_name(name) and name in self._classes.get():
                return None
            else:
                allocated = node.requested(name)
            cells.append((spec.weight, node.allocatable(name), allocated, amount))
        return cells

    def _columns(self, nodes: NodeTable, name: str) -> tuple[IntVector, IntVector]:
        allocatable, allocated = self._resource_on_node(nodes, name)
        if name in _FIXED or not is_scalar_resource(name):
            return allocatable, allocated
        return self._with_devices(nodes, name, allocatable, allocated)

    def _resource_on_node(self, nodes: NodeTable, name: str) -> tuple[IntVector, IntVector]:
        """What nodes have by themselves."""
        if self._guess and name == CPU:
            return nodes.allocatable(CPU), nodes.nonzero_cpu
        if self._guess and name == MEMORY:
            return nodes.allocatable(MEMORY), nodes.nonzero_memory
        if name in _FIXED:
            return nodes.allocatable(name), nodes.requested(name)
        if not is_scalar_resource(name):  # `pods` and names that mean nothing: no node has any
            nothing = np.zeros(len(nodes), dtype=np.int64)
            return nothing, nothing
        return nodes.allocatable(name), nodes.requested(name)

    def _with_devices(
        self, nodes: NodeTable, name: str, allocatable: IntVector, allocated: IntVector
    ) -> tuple[IntVector, IntVector]:
        """Devices stand in on rows that do not have the resource by themselves."""
        device_class = self._classes.get().get(name) if is_dra_extended_resource_name(name) else None
        if device_class is None:
            return allocatable, allocated
        total, taken = self._devices.of(device_class, nodes)
        counted = (allocatable == 0) & (total > 0)
        return np.where(counted, total, allocatable), np.where(counted, taken, allocated)
