"""Counts the devices of a DeviceClass on each node, in total and allocated.

Used to score an extended resource that a DeviceClass provides, which few users configure. Every published slice counts,
also of an incomplete pool: this is a score, not an allocation. Cost: one node mask for each slice, or for each device
if devices select nodes themselves.
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
    """Counts devices on whole tables. Slices are prepared once after a change."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._selectors = DeviceSelectors()
        self._revision = -1
        self._slices: tuple[PublishedSlice, ...] = ()

    def of(self, device_class: DeviceClass, nodes: NodeTable) -> tuple[IntVector, IntVector]:
        """Return the devices of the class and the allocated ones for each entry; zeros if they are unknown."""
        self._handle.devices.sync(self._handle.catalog)
        total = np.zeros(len(nodes), dtype=np.int64)
        allocated = np.zeros(len(nodes), dtype=np.int64)
        unknown = np.zeros(len(nodes), dtype=np.bool_)
        for published in self._published_slices():
            for devices, mask, unknown_mask in _visible(published, nodes):
                unknown |= unknown_mask
                if not mask.any():
                    continue
                try:
                    class_devices = [device for device in devices if self._selectors.in_class(device_class, device)]
                except DeviceError:
                    unknown |= mask
                    continue
                total[mask] += len(class_devices)
                allocated[mask] += sum(self._handle.devices.in_use.is_allocated(device.id) for device in class_devices)
        total[unknown] = allocated[unknown] = 0
        return total, allocated

    def _published_slices(self) -> tuple[PublishedSlice, ...]:
        revision = self._handle.catalog.revision(ResourceSlice)
        if revision != self._revision:
            cached = {published.name: published for published in self._slices}
            self._slices = tuple(
                published
                if (published := cached.get(item.name)) is not None and published.slice is item
                else PublishedSlice(item)
                for item in self._handle.catalog.resource_slices.values()
            )
            self._revision = revision
        return self._slices


def _visible(
    published: PublishedSlice, nodes: NodeTable
) -> Iterable[tuple[tuple[PoolDevice, ...], BoolVector, BoolVector]]:
    """Yield devices, the entries that can access them, and the entries for which access is unknown."""
    spec = published.slice.spec
    if not spec.per_device_node_selection:
        mask, unknown_mask = _reachable_entries(nodes, spec.node_name, spec.all_nodes, spec.node_selector, default=True)
        yield published.devices, mask, unknown_mask
        return
    for each in published.devices:
        device = each.device
        mask, unknown_mask = _reachable_entries(
            nodes, device.node_name, device.all_nodes, device.node_selector, default=False
        )
        yield (each,), mask, unknown_mask


def _reachable_entries(
    nodes: NodeTable, node_name: str | None, all_nodes: bool | None, selector: NodeSelector | None, *, default: bool
) -> tuple[BoolVector, BoolVector]:
    """Return the entries that a slice or device selects (`default` without a selection).

    The second mask contains the entries for which a malformed selector leaves it unknown.
    """
    no_entries = np.zeros(len(nodes), dtype=np.bool_)
    if all_nodes:
        return ~no_entries, no_entries
    if node_name:
        return nodes.where_named((node_name,)), no_entries
    if selector is None:
        return np.full(len(nodes), default, dtype=np.bool_), no_entries
    matcher = compile_node_selector(selector)
    return (no_entries, ~no_entries) if matcher.errors else (node_selector_mask(nodes, matcher), no_entries)
