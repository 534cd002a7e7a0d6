"""How many devices of a class does each node see, and how many of them are taken?

Asked by the scorers of resources for an extended resource that a DeviceClass stands behind; hardly anybody configures
one. Every published slice counts, also one of a pool that is incomplete: this is a score, not an allocation.
Cost: one mask of nodes a slice (a device, where devices say for themselves which nodes reach them).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bayplan.devices.errors import DeviceError
from bayplan.devices.pools import PoolDevice, PublishedSlice
from bayplan.devices.selectors import DeviceSelectors
from bayplan.framework.api.handle import Handle
from bayplan.objects.core import NodeSelector
from bayplan.objects.resource import DeviceClass, ResourceSlice
from bayplan.objects.selectors.node_selectors import compile_node_selector
from bayplan.snapshot import BoolVector, IntVector, NodeTable
from bayplan.snapshot.selector_masks import node_selector_mask


class DeviceTotals:
    """Counts devices on whole tables; slices are prepared once a change."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._selectors = DeviceSelectors()
        self._revision = -1
        self._slices: tuple[PublishedSlice, ...] = ()

    def of(self, device_class: DeviceClass, nodes: NodeTable) -> tuple[IntVector, IntVector]:
        """For each entry the devices of the class, and those that somebody holds; zeros where they cannot be told."""
        self._handle.devices.sync(self._handle.catalog)
        total = np.zeros(len(nodes), dtype=np.int64)
        taken = np.zeros(len(nodes), dtype=np.int64)
        unclear = np.zeros(len(nodes), dtype=np.bool_)
        for published in self._published():
            for devices, mask, broken in _visible(published, nodes):
                unclear |= broken
                if not mask.any():
                    continue
                try:
                    found = [device for device in devices if self._selectors.in_class(device_class, device)]
                except DeviceError:
                    unclear |= mask
                    continue
                total[mask] += len(found)
                taken[mask] += sum(self._handle.devices.in_use.is_allocated(device.id) for device in found)
        total[unclear] = taken[unclear] = 0
        return total, taken

    def _published(self) -> tuple[PublishedSlice, ...]:
        revision = self._handle.catalog.revision(ResourceSlice)
        if revision != self._revision:
            known = {published.name: published for published in self._slices}
            self._slices = tuple(
                published
                if (published := known.get(item.name)) is not None and published.slice is item
                else PublishedSlice(item)
                for item in self._handle.catalog.resource_slices.values()
            )
            self._revision = revision
        return self._slices


def _visible(
    published: PublishedSlice, nodes: NodeTable
) -> Iterable[tuple[tuple[PoolDevice, ...], BoolVector, BoolVector]]:
    """Devices, the entries that reach them, and the entries for which that cannot be told."""
    spec = published.slice.spec
    if not spec.per_device_node_selection:
        mask, broken = _entries_reached(nodes, spec.node_name, spec.all_nodes, spec.node_selector, otherwise=True)
        yield published.devices, mask, broken
        return
    for each in published.devices:
        device = each.device
        mask, broken = _entries_reached(
            nodes, device.node_name, device.all_nodes, device.node_selector, otherwise=False
        )
        yield (each,), mask, broken


def _entries_reached(
    nodes: NodeTable, node_name: str | None, all_nodes: bool | None, selector: NodeSelector | None, *, otherwise: bool
) -> tuple[BoolVector, BoolVector]:
    """Entries that a place names (`otherwise` where it names none), and entries for which a malformed selector leaves
    it open."""
    nobody = np.zeros(len(nodes), dtype=np.bool_)
    if all_nodes:
        return ~nobody, nobody
    if node_name:
        return nodes.where_named((node_name,)), nobody
    if selector is None:
        return np.full(len(nodes), otherwise, dtype=np.bool_), nobody
    matcher = compile_node_selector(selector)
    return (nobody, ~nobody) if matcher.errors else (node_selector_mask(nodes, matcher), nobody)
