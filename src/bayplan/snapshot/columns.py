"""Nodes as columns: allocatable and requested amounts, flags and pods of each row.

The cache owns one mutable `NodeColumns`. A snapshot owns another one that copies changed rows (`copy_rows`). Preemption
and nominated pods work on a `fork` of a few rows. All three change rows with the same `add_pod` and `remove_pod`. Rows
are dense: when a node is removed, the last row takes its place. Matrices are resources by rows, because readers need
one resource on all rows at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.codec.quantity import int64
from bayplan.objects.core import Node
from bayplan.objects.ports import HostPort
from bayplan.objects.resources import allocatable_amounts
from bayplan.objects.taints import without_times
from bayplan.snapshot.intern_tables import BoolVector, IdVector, InternTables, IntVector
from bayplan.snapshot.labels import LabelColumns
from bayplan.snapshot.pod_info import FLOAT_EXACT_LIMIT, REQUESTS_OFFSET, PodInfo

COMPILED = not __file__.endswith(".py")
_IMAGE_COLUMNS_BYTES = 64 << 20

IntMatrix = npt.NDArray[np.int64]
_Rows = int | npt.NDArray[np.intp]

_MAX_ROWS_IN_PLACE = 4
"""Up to this many rows are copied one by one, more of them column by column."""


# ten for each node, without references that the garbage collector must follow
class ImageState(msgspec.Struct, frozen=True, gc=False):
    """An image as one row last saw it. The node count is stale by design, as in kube-scheduler: scores depend on it."""

    size_bytes: int
    node_count: int


class NodeColumns:
    """Rows of nodes with their pods, ports and images."""

    def __init__(self, vocabulary: InternTables, *, capacity: int = 16) -> None:
        self.vocabulary = vocabulary
        self.count = 0
        self.nodes: list[Node] = []
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.pods: list[list[PodInfo]] = []
        self.ports: list[set[HostPort]] = []
        self.images: list[dict[str, ImageState]] = []
        self.port_rows: dict[tuple[str, int], dict[int, set[str]]] = {}
        self._image_rows: dict[str, dict[int, ImageState]] | None = {}  # None: built on demand
        self.images_version = 0  # changes with the images that any row shows
        self._image_columns: dict[str, IntMatrix] = {}
        self.labels = LabelColumns(self.nodes)
        self._set_amount_views(np.zeros((REQUESTS_OFFSET + 2 * len(vocabulary.resources), capacity), dtype=np.int64))
        self.all_small = True  # false after an amount was negative or at least `FLOAT_EXACT_LIMIT`
        self._upper_bound = 0  # upper bound of the requested amounts on any row
        self.unschedulable: BoolVector = np.zeros(capacity, dtype=np.bool_)
        self.taint_ids: IdVector = np.zeros(capacity, dtype=np.intp)
        self.feature_ids: IdVector = np.zeros(capacity, dtype=np.intp)

    def __len__(self) -> int:
        return self.count

    def _set_amount_views(self, amounts: IntMatrix) -> None:
        """Set the amounts matrix and its views. One matrix holds all amounts, so copying a row is one operation."""
        usage = REQUESTS_OFFSET + (len(amounts) - REQUESTS_OFFSET) // 2
        self._amounts = amounts
        self._usage = amounts[:usage]  # amounts that pods change
        self._cells: IntMatrix = self._usage  # the same, for compiled code
        self.nonzero: IntMatrix = amounts[0:2]
        self.pod_count: IntVector = amounts[2]
        self.requested: IntMatrix = amounts[REQUESTS_OFFSET:usage]
        self.allocatable: IntMatrix = amounts[usage:]

    def add_row(self, node: Node) -> int:
        """Add a row for `node` without pods."""
        row = self.count
        self._reserve_rows(row + 1)
        self.count += 1
        self.nodes.append(node)
        self.names.append(node.name)
        self.index[node.name] = row
        self.pods.append([])
        self.ports.append(set())
        self.images.append({})
        self._clear_row(row)
        self.taint_ids[row] = self.vocabulary.taints.acquire(without_times(node.spec.taints))
        self.feature_ids[row] = self.vocabulary.features.acquire(frozenset(node.status.declared_features))
        self._set_node_columns(row, node)
        return row

    def set_node(self, row: int, node: Node) -> None:
        """Set another version of the node of this row."""
        taints, features = self.vocabulary.taints, self.vocabulary.features
        new_taints = taints.acquire(without_times(node.spec.taints))
        new_features = features.acquire(frozenset(node.status.declared_features))
        taints.release(int(self.taint_ids[row]))
        features.release(int(self.feature_ids[row]))
        self.taint_ids[row], self.feature_ids[row] = new_taints, new_features
        self._set_node_columns(row, node)

    def drop_row(self, row: int) -> int:
        """Remove a row. The last row moves into its place. Returns the row that moved (equal to `row`: none)."""
        self.vocabulary.taints.release(int(self.taint_ids[row]))
        self.vocabulary.features.release(int(self.feature_ids[row]))
        last = self.count - 1
        if row != last:
            self._copy_row(self, last, row)
        self.truncate(last)
        return last

    def truncate(self, count: int) -> None:
        """Drop every row from `count` on."""
        for row in range(count, self.count):
            self._index_ports(row, frozenset())
            self.set_images(row, {})
            if self.index.get(self.names[row]) == row:
                del self.index[self.names[row]]
        del self.nodes[count:], self.names[count:], self.pods[count:], self.ports[count:], self.images[count:]
        self.count = min(self.count, count)

    def copy_rows(self, source: NodeColumns, rows: Mapping[int, dict[str, ImageState]]) -> None:
        """Copy these rows from `source`, with the given images."""
        self._reserve_resources()
        for row in rows:
            if row == self.count:
                self._append_copy(source, row)
        if len(rows) <= _MAX_ROWS_IN_PLACE:
            for row in rows:
                self._copy_numbers(source, row, row)
        else:
            where = np.fromiter(rows, np.intp, len(rows))
            self._copy_numbers(source, where, where)
        for row, images in rows.items():
            self._copy_lists(source, row, row)
            self.set_images(row, images)

    def _append_copy(self, source: NodeColumns, row: int) -> None:
        self._reserve_rows(row + 1)
        self.count += 1
        self.nodes.append(source.nodes[row])
        self.names.append(source.names[row])
        self.pods.append([])
        self.ports.append(set())
        self.images.append({})
        self.labels.put(row, source.nodes[row])

    def copy_pods(self, source: NodeColumns, row: int) -> None:
        """Copy only the pods of a row and the amounts that they change, for a row with the same node."""
        usage = source._usage
        if len(usage) > len(self._usage):
            self._reserve_resources()
        self._usage[: len(usage), row] = usage[:, row]
        self.all_small, self._upper_bound = source.all_small, source._upper_bound
        if source.ports[row] or self.ports[row]:
            self._index_ports(row, source.ports[row])
        self.pods[row] = source.pods[row].copy()

    def fork(self, rows: list[int], *, pods: list[list[PodInfo]] | None = None) -> NodeColumns:
        """Copy some rows for free modification, with the same ids. `pods`: lists that replace the copied ones."""
        forked = NodeColumns.__new__(NodeColumns)
        where = np.array(rows, dtype=np.intp)
        forked.vocabulary = self.vocabulary
        forked.count = len(rows)
        forked.nodes = [self.nodes[row] for row in rows]
        forked.names = [self.names[row] for row in rows]
        forked.index = {name: position for position, name in enumerate(forked.names)}
        forked.pods = [list(self.pods[row]) for row in rows] if pods is None else pods
        forked.ports = [set()] * len(rows)
        forked.images = [self.images[row] for row in rows]  # replaced, never modified: no copy needed
        forked.port_rows = {}
        forked._image_rows = None
        forked.images_version = self.images_version
        forked._image_columns = {}
        forked.labels = self.labels.fork(forked.nodes, where)
        forked._set_amount_views(self._amounts[:, where])
        forked.all_small, forked._upper_bound = self.all_small, self._upper_bound
        forked.unschedulable = self.unschedulable[where]
        forked.taint_ids = self.taint_ids[where]
        forked.feature_ids = self.feature_ids[where]
        for position, row in enumerate(rows):
            if self.ports[row]:
                forked._index_ports(position, self.ports[row])
        return forked

    @property
    def image_rows(self) -> dict[str, dict[int, ImageState]]:
        """For each image the rows that have it. A fork builds this on demand."""
        if self._image_rows is None:
            self._image_rows = {}
            for row, images in enumerate(self.images):
                for name, state in images.items():
                    self._image_rows.setdefault(name, {})[row] = state
        return self._image_rows

    def set_images(self, row: int, images: dict[str, ImageState]) -> None:
        """Set the images of a row with their counts."""
        old_images = self.images[row]
        if old_images is images or old_images == images:
            return
        self.images_version += 1
        for name in old_images.keys() - images.keys():
            rows = self.image_rows[name]
            del rows[row]
            if not rows:
                del self.image_rows[name]
            if name in self._image_columns:
                self._image_columns[name][:, row] = 0
        image_rows, columns = self.image_rows, self._image_columns
        for name, state in images.items():
            states_by_row = image_rows.get(name)
            if states_by_row is None:
                states_by_row = image_rows[name] = {}
            states_by_row[row] = state
            if name in columns:
                columns[name][:, row] = state.size_bytes, state.node_count
        self.images[row] = images

    def image_column(self, name: str) -> IntMatrix | None:
        """Return sizes and counts of one image by row; None if no row has it. Built on demand."""
        states = self.image_rows.get(name)
        if not states:
            return None
        column = self._image_columns.get(name)
        if column is None:
            column = np.zeros((2, len(self.pod_count)), dtype=np.int64)
            if len(self._image_columns) * column.nbytes >= _IMAGE_COLUMNS_BYTES:
                self._image_columns.clear()
            self._image_columns[name] = column
            rows = np.fromiter(states, np.intp, len(states))
            first = next(iter(states.values()))
            if all(state == first for state in states.values()):
                column[0, rows], column[1, rows] = first.size_bytes, first.node_count
            else:
                column[0, rows] = [state.size_bytes for state in states.values()]
                column[1, rows] = [state.node_count for state in states.values()]
        return column

    def add_pod(self, row: int, info: PodInfo) -> None:
        self.pods[row].append(info)
        self.count_pod(row, info)

    def count_pod(self, row: int, info: PodInfo) -> None:
        """Count a pod on a row. The caller maintains the list of pods."""
        row_amounts = info.row_amounts(self.vocabulary)
        if len(row_amounts.amounts) > len(self._usage):
            self._reserve_resources()
        if COMPILED:  # compiled, adding numbers is faster than NumPy
            amount_tuple = row_amounts.amount_tuple
            for index in range(len(amount_tuple)):
                self._cells[index, row] += amount_tuple[index]
        else:
            column = self._usage[: len(row_amounts.amounts), row]
            column += row_amounts.amounts  # wraps around at 64 bits, as Go's int64 does
        self._upper_bound += row_amounts.upper_bound
        if self._upper_bound >= FLOAT_EXACT_LIMIT:
            self._recompute_upper_bound()
        for port in info.host_ports:
            self._take_port(row, port)

    def set_pod(self, row: int, info: PodInfo) -> None:
        """Add a pod to a row of a snapshot. The list is copied, because callers may hold the old one."""
        self.pods[row] = self.pods[row].copy()
        self.add_pod(row, info)

    def replace_pod(self, row: int, old_info: PodInfo, info: PodInfo) -> None:
        """Replace a pod by a version with equal amounts and ports, as a removal followed by an addition."""
        pods = self.pods[row]
        if pods[-1] is not old_info:
            pods[self._position(row, old_info)] = pods[-1]
        pods[-1] = info

    def remove_pod(self, row: int, info: PodInfo) -> None:
        """Remove a pod from a row. The last pod moves to its position, which the order of victims depends on."""
        pods = self.pods[row]
        position = self._position(row, info)
        removed = pods[position]
        pods[position] = pods[-1]
        pods.pop()
        amounts = removed.row_amounts(self.vocabulary).amounts
        if len(amounts) > len(self._usage):
            self._reserve_resources()
        self._usage[: len(amounts), row] -= amounts
        for port in removed.host_ports:
            self._free_port(row, port)

    def _position(self, row: int, info: PodInfo) -> int:
        uid = info.uid
        for position, other in enumerate(self.pods[row]):
            if other.uid == uid:
                return position
        raise LookupError(f"pod {info.key} is not among the pods of row {row}")

    def count_pods(
        self, rows: npt.NDArray[np.intp], pods: IntVector | int, requests: IntMatrix, nonzero: IntMatrix
    ) -> None:
        """Count many pods at once: a sum for each of these rows, each row once. Negative sums remove pods.

        The caller maintains the lists of pods and ports.
        """
        self._reserve_resources()
        self.pod_count[rows] += pods
        self.all_small = False  # such a fork is never scored
        self.requested[: len(requests), rows] += requests
        self.nonzero[:, rows] += nonzero

    def set_ports_used(self, row: int, info: PodInfo, *, taken: bool) -> None:
        """Add or remove the host ports of a pod that is counted by `count_pods`."""
        for port in info.host_ports:
            (self._take_port if taken else self._free_port)(row, port)

    def amounts_key(self, row: int) -> bytes:
        """Return a key that is equal for rows with equal allocatable and requested amounts."""
        return self._amounts[:, row].tobytes()

    def _recompute_upper_bound(self) -> None:
        """Compute the upper bound again: the sum of the added amounts has reached the limit."""
        usage = self._usage[:, : self.count]
        self._upper_bound = int(usage.max(initial=0))
        if self._upper_bound >= FLOAT_EXACT_LIMIT // 2 or usage.min(initial=0) < 0:
            self.all_small = False
            self._upper_bound = 0

    def _exact_amount(self, amount: int) -> int:
        """Return an amount that a float may not hold exactly, as an int64 of Go."""
        self.all_small = False
        return int64(amount)

    def _take_port(self, row: int, port: HostPort) -> None:
        row_ports = self.ports[row]
        if row_ports:
            row_ports.add(port)
        else:  # rows of a fork may share one empty set
            self.ports[row] = {port}
        self.port_rows.setdefault((port.protocol, port.port), {}).setdefault(row, set()).add(port.address)

    def _free_port(self, row: int, port: HostPort) -> None:
        # A set, not a count: of two pods with one port, either frees it. kube-scheduler does the same.
        self.ports[row].discard(port)
        rows = self.port_rows.get((port.protocol, port.port))
        if rows is None or row not in rows:
            return
        rows[row].discard(port.address)
        if not rows[row]:
            del rows[row]
            if not rows:
                del self.port_rows[port.protocol, port.port]

    def _index_ports(self, row: int, ports: set[HostPort] | frozenset[HostPort]) -> None:
        row_ports = self.ports[row]
        for port in row_ports - ports:
            self._free_port(row, port)
        for port in ports - row_ports:
            self._take_port(row, port)

    def _set_node_columns(self, row: int, node: Node) -> None:
        """Set everything of a row that comes from the node object alone."""
        self.nodes[row] = node
        self.unschedulable[row] = node.spec.unschedulable
        index = self.vocabulary.resources.index
        amounts = [(index(name), amount) for name, amount in allocatable_amounts(node.status.allocatable).items()]
        self._reserve_resources()
        self.allocatable[:, row] = 0
        for resource, amount in amounts:
            self.allocatable[resource, row] = amount if 0 <= amount < FLOAT_EXACT_LIMIT else self._exact_amount(amount)
        self.labels.put(row, node)

    def _copy_row(self, source: NodeColumns, origin: int, row: int) -> None:
        """Copy row `origin` of `source` to `row`, without images."""
        self._reserve_resources()
        self._copy_numbers(source, origin, row)
        self._copy_lists(source, origin, row)
        if source is self:
            self.set_images(row, dict(self.images[origin]))

    def _copy_numbers(self, source: NodeColumns, origin: _Rows, row: _Rows) -> None:
        resources = source.allocatable.shape[0]
        self.allocatable[:resources, row] = source.allocatable[:, origin]
        self._usage[: len(source._usage), row] = source._usage[:, origin]
        self.all_small &= source.all_small
        self._upper_bound = source._upper_bound
        self.unschedulable[row] = source.unschedulable[origin]
        self.taint_ids[row] = source.taint_ids[origin]
        self.feature_ids[row] = source.feature_ids[origin]

    def _copy_lists(self, source: NodeColumns, origin: int, row: int) -> None:
        if self.ports[row] or source.ports[origin]:
            self._index_ports(row, source.ports[origin])
        self.pods[row] = source.pods[origin].copy()
        node = source.nodes[origin]
        if self.nodes[row] is not node:
            self.nodes[row] = node
            self.labels.put(row, node)
        elif self.names[row] == node.name and self.index.get(node.name) == row:
            return
        self._rename(row, node.name)

    def _rename(self, row: int, name: str) -> None:
        old = self.names[row]
        if old != name and self.index.get(old) == row:
            del self.index[old]
        self.names[row] = name
        self.index[name] = row

    def _clear_row(self, row: int) -> None:
        self._usage[:, row] = 0

    def _reserve_rows(self, rows: int) -> None:
        capacity = len(self.pod_count)
        if rows <= capacity:
            return
        capacity_needed = max(rows, 2 * capacity)
        self._set_amount_views(_resize(self._amounts, capacity_needed))
        self._image_columns.clear()
        self.unschedulable = np.resize(self.unschedulable, capacity_needed)
        self.taint_ids = np.resize(self.taint_ids, capacity_needed)
        self.feature_ids = np.resize(self.feature_ids, capacity_needed)

    def _reserve_resources(self) -> None:
        missing = len(self.vocabulary.resources.names) - len(self.allocatable)
        if missing > 0:
            rows = np.zeros((missing, self.allocatable.shape[1]), dtype=np.int64)
            self._set_amount_views(np.concatenate((self._usage, rows, self.allocatable, rows)))


def _resize(matrix: IntMatrix, columns: int) -> IntMatrix:
    resized = np.zeros((matrix.shape[0], columns), dtype=np.int64)
    resized[:, : matrix.shape[1]] = matrix
    return resized
