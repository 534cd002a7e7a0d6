"""Nodes as columns: what is allocatable, requested and flagged on each row, and which pods are there.

The cache keeps one `NodeColumns` that it changes; a snapshot keeps another that copies changed rows (`copy_rows`);
preemption and nominated pods work on a `fork` of a few rows. All three change rows by the same `add_pod` and
`remove_pod`, so there is one bookkeeping. Rows are dense: when a node goes, the last row takes its place.
Matrices are resources by rows, because every reader wants one resource on all rows at once.
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
from bayplan.snapshot.intern_tables import (
    BoolVector,
    IdVector,
    InternTables,
    IntVector,
)
from bayplan.snapshot.labels import LabelColumns
from bayplan.snapshot.pod_info import FLOAT_EXACT_LIMIT, REQUESTS_OFFSET, PodInfo

COMPILED = not __file__.endswith(".py")
_IMAGE_COLUMNS_BYTES = 64 << 20

IntMatrix = npt.NDArray[np.int64]
_Rows = int | npt.NDArray[np.intp]

_MAX_ROWS_IN_PLACE = 4
"""Up to so many rows are copied one by one, more of them in one go a column."""


class ImageState(msgspec.Struct, frozen=True, gc=False):  # ten a node: nothing that a collector need look at
    """An image as one row last saw it. The count is stale by design: kube-scheduler's is, and scores depend on it."""

    size_bytes: int
    node_count: int


class NodeColumns:
    """Rows of nodes with everything on them."""

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
        self._image_rows: dict[str, dict[int, ImageState]] | None = {}  # None: to be made when it is asked for
        self.images_version = 0  # changes with what some row has, or is seen to have, of images
        self._image_columns: dict[str, IntMatrix] = {}
        self.labels = LabelColumns(self.nodes)
        self._set_amount_views(np.zeros((REQUESTS_OFFSET + 2 * len(vocabulary.resources), capacity), dtype=np.int64))
        self.all_small = True  # no amount of any row was ever negative or at least `SMALL`
        self._bound = 0  # no row is asked for more than this of anything
        self.unschedulable: BoolVector = np.zeros(capacity, dtype=np.bool_)
        self.taint_ids: IdVector = np.zeros(capacity, dtype=np.intp)
        self.feature_ids: IdVector = np.zeros(capacity, dtype=np.intp)

    def __len__(self) -> int:
        return self.count

    def _set_amount_views(self, amounts: IntMatrix) -> None:
        """All amounts of a row are one matrix, so that copying or reading a row is one operation."""
        usage = REQUESTS_OFFSET + (len(amounts) - REQUESTS_OFFSET) // 2
        self._amounts = amounts
        self._usage = amounts[:usage]  # what pods make of a row
        self._cells: IntMatrix = self._usage  # the same, as C reads it
        self.nonzero: IntMatrix = amounts[0:2]
        self.pod_count: IntVector = amounts[2]
        self.requested: IntMatrix = amounts[REQUESTS_OFFSET:usage]
        self.allocatable: IntMatrix = amounts[usage:]

    # rows -------------------------------------------------------------------------------------------------------

    def add_row(self, node: Node) -> int:
        """A new row for `node`, empty of pods."""
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
        """Another version of the node of this row."""
        taints, features = self.vocabulary.taints, self.vocabulary.features
        new_taints = taints.acquire(without_times(node.spec.taints))
        new_features = features.acquire(frozenset(node.status.declared_features))
        taints.release(int(self.taint_ids[row]))
        features.release(int(self.feature_ids[row]))
        self.taint_ids[row], self.feature_ids[row] = new_taints, new_features
        self._set_node_columns(row, node)

    def drop_row(self, row: int) -> int:
        """Take a row out; the last row moves into its place. Returns the row that moved (equal to `row`: none)."""
        self.vocabulary.taints.release(int(self.taint_ids[row]))
        self.vocabulary.features.release(int(self.feature_ids[row]))
        last = self.count - 1
        if row != last:
            self._copy_row(self, last, row)
        self.truncate(last)
        return last

    def truncate(self, count: int) -> None:
        """Forget every row from `count` on."""
        for row in range(count, self.count):
            self._index_ports(row, frozenset())
            self.set_images(row, {})
            if self.index.get(self.names[row]) == row:
                del self.index[self.names[row]]
        del self.nodes[count:], self.names[count:], self.pods[count:], self.ports[count:], self.images[count:]
        self.count = min(self.count, count)

    def copy_rows(self, source: NodeColumns, rows: Mapping[int, dict[str, ImageState]]) -> None:
        """Make these rows equal to the same rows of `source`, seeing images as given."""
        self._reserve_resources()
        for row in rows:
            if row == self.count:
                self._append_like(source, row)
        if len(rows) <= _MAX_ROWS_IN_PLACE:
            for row in rows:
                self._copy_numbers(source, row, row)
        else:
            where = np.fromiter(rows, np.intp, len(rows))
            self._copy_numbers(source, where, where)
        for row, images in rows.items():
            self._copy_rest(source, row, row)
            self.set_images(row, images)

    def _append_like(self, source: NodeColumns, row: int) -> None:
        self._reserve_rows(row + 1)
        self.count += 1
        self.nodes.append(source.nodes[row])
        self.names.append(source.names[row])
        self.pods.append([])
        self.ports.append(set())
        self.images.append({})
        self.labels.put(row, source.nodes[row])

    def copy_pods(self, source: NodeColumns, row: int) -> None:
        """The same where the node is the one that is shown already: only what its pods make of the row."""
        usage = source._usage
        if len(usage) > len(self._usage):
            self._reserve_resources()
        self._usage[: len(usage), row] = usage[:, row]
        self.all_small, self._bound = source.all_small, source._bound
        if source.ports[row] or self.ports[row]:
            self._index_ports(row, source.ports[row])
        self.pods[row] = source.pods[row].copy()

    def fork(self, rows: list[int], *, pods: list[list[PodInfo]] | None = None) -> NodeColumns:
        """A copy of some rows that can be changed freely; ids mean the same as here. `pods`: other lists than these."""
        forked = NodeColumns.__new__(NodeColumns)
        where = np.array(rows, dtype=np.intp)
        forked.vocabulary = self.vocabulary
        forked.count = len(rows)
        forked.nodes = [self.nodes[row] for row in rows]
        forked.names = [self.names[row] for row in rows]
        forked.index = {name: position for position, name in enumerate(forked.names)}
        forked.pods = [list(self.pods[row]) for row in rows] if pods is None else pods
        forked.ports = [set()] * len(rows)
        forked.images = [self.images[row] for row in rows]  # replaced, never changed: they need no copy
        forked.port_rows = {}
        forked._image_rows = None
        forked.images_version = self.images_version
        forked._image_columns = {}
        forked.labels = self.labels.fork(forked.nodes, where)
        forked._set_amount_views(self._amounts[:, where])
        forked.all_small, forked._bound = self.all_small, self._bound
        forked.unschedulable = self.unschedulable[where]
        forked.taint_ids = self.taint_ids[where]
        forked.feature_ids = self.feature_ids[where]
        for position, row in enumerate(rows):
            if self.ports[row]:
                forked._index_ports(position, self.ports[row])
        return forked

    @property
    def image_rows(self) -> dict[str, dict[int, ImageState]]:
        """For each image the rows that have it. A fork, which is rarely asked, makes it when it is."""
        if self._image_rows is None:
            self._image_rows = {}
            for row, images in enumerate(self.images):
                for name, state in images.items():
                    self._image_rows.setdefault(name, {})[row] = state
        return self._image_rows

    def set_images(self, row: int, images: dict[str, ImageState]) -> None:
        """Row `row` has these images, with these counts."""
        mine = self.images[row]
        if mine is images or mine == images:
            return
        self.images_version += 1
        for name in mine.keys() - images.keys():
            rows = self.image_rows[name]
            del rows[row]
            if not rows:
                del self.image_rows[name]
            if name in self._image_columns:
                self._image_columns[name][:, row] = 0
        rows_of, columns = self.image_rows, self._image_columns
        for name, state in images.items():
            having = rows_of.get(name)
            if having is None:
                having = rows_of[name] = {}
            having[row] = state
            if name in columns:
                columns[name][:, row] = state.size_bytes, state.node_count
        self.images[row] = images

    def image_column(self, name: str) -> IntMatrix | None:
        """Sizes and counts of one image by row; None where no row has it. Made when it is first asked for."""
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

    # pods -------------------------------------------------------------------------------------------------------

    def add_pod(self, row: int, info: PodInfo) -> None:
        """Count a pod on a row."""
        self.pods[row].append(info)
        self.count_pod(row, info)

    def count_pod(self, row: int, info: PodInfo) -> None:
        """The same where the list of pods is the caller's part."""
        weight = info.row_amounts(self.vocabulary)
        if len(weight.amounts) > len(self._usage):
            self._reserve_resources()
        if COMPILED:  # adding numbers is quicker then than asking NumPy to
            parts = weight.parts
            for place in range(len(parts)):
                self._cells[place, row] += parts[place]
        else:
            column = self._usage[: len(weight.amounts), row]
            column += weight.amounts  # past 64 bits it wraps around, as Go's int64 does
        self._bound += weight.upper_bound
        if self._bound >= FLOAT_EXACT_LIMIT:
            self._recompute_upper_bound()
        for port in info.host_ports:
            self._take_port(row, port)

    def set_pod(self, row: int, info: PodInfo) -> None:
        """The same on a snapshot, which replaces lists and does not change them: who holds one holds the old pods."""
        self.pods[row] = self.pods[row].copy()
        self.add_pod(row, info)

    def replace_pod(self, row: int, known: PodInfo, info: PodInfo) -> None:
        """Another version of a pod that weighs the same and holds the same ports: as if it went and came again."""
        pods = self.pods[row]
        if pods[-1] is not known:
            pods[self._position(row, known)] = pods[-1]
        pods[-1] = info

    def remove_pod(self, row: int, info: PodInfo) -> None:
        """Take a pod off a row. Its place in the list goes to the last one, as the order of victims expects."""
        pods = self.pods[row]
        position = self._position(row, info)
        gone = pods[position]
        pods[position] = pods[-1]
        pods.pop()
        amounts = gone.row_amounts(self.vocabulary).amounts
        if len(amounts) > len(self._usage):
            self._reserve_resources()
        self._usage[: len(amounts), row] -= amounts
        for port in gone.host_ports:
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
        """Count many pods at once, a sum for each of these rows, each row once; negative sums take them off.

        Lists of pods and ports are the caller's part.
        """
        self._reserve_resources()
        self.pod_count[rows] += pods
        self.all_small = False  # nobody scores what is tried out here
        self.requested[: len(requests), rows] += requests
        self.nonzero[:, rows] += nonzero

    def set_ports_used(self, row: int, info: PodInfo, *, taken: bool) -> None:
        """A pod that is counted elsewhere holds its ports, or no longer does."""
        for port in info.host_ports:
            (self._take_port if taken else self._free_port)(row, port)

    def amounts_key(self, row: int) -> bytes:
        """Equal for rows that have the same amounts of everything, and of which the same is asked."""
        return self._amounts[:, row].tobytes()

    # inside -----------------------------------------------------------------------------------------------------

    def _recompute_upper_bound(self) -> None:
        """So many pods came that their sum is no longer known to be small anywhere: look."""
        usage = self._usage[:, : self.count]
        self._bound = int(usage.max(initial=0))
        if self._bound >= FLOAT_EXACT_LIMIT // 2 or usage.min(initial=0) < 0:
            self.all_small = False
            self._bound = 0

    def _large(self, amount: int) -> int:
        """An amount that floats may not hold exactly, as Go's int64 counts it."""
        self.all_small = False
        return int64(amount)

    def _take_port(self, row: int, port: HostPort) -> None:
        mine = self.ports[row]
        if mine:
            mine.add(port)
        else:  # rows of a fork may share one empty set
            self.ports[row] = {port}
        self.port_rows.setdefault((port.protocol, port.port), {}).setdefault(row, set()).add(port.address)

    def _free_port(self, row: int, port: HostPort) -> None:
        # A set, not a count: of two pods holding one port, either frees it. kube-scheduler does the same.
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
        mine = self.ports[row]
        for port in mine - ports:
            self._free_port(row, port)
        for port in ports - mine:
            self._take_port(row, port)

    def _set_node_columns(self, row: int, node: Node) -> None:
        """Everything of a row that comes from the node object alone."""
        self.nodes[row] = node
        self.unschedulable[row] = node.spec.unschedulable
        index = self.vocabulary.resources.index
        amounts = [(index(name), amount) for name, amount in allocatable_amounts(node.status.allocatable).items()]
        self._reserve_resources()
        self.allocatable[:, row] = 0
        for resource, amount in amounts:
            self.allocatable[resource, row] = amount if 0 <= amount < FLOAT_EXACT_LIMIT else self._large(amount)
        self.labels.put(row, node)

    def _copy_row(self, source: NodeColumns, origin: int, row: int) -> None:
        """Row `row` becomes what `origin` is in `source` (images aside)."""
        self._reserve_resources()
        self._copy_numbers(source, origin, row)
        self._copy_rest(source, origin, row)
        if source is self:
            self.set_images(row, dict(self.images[origin]))

    def _copy_numbers(self, source: NodeColumns, origin: _Rows, row: _Rows) -> None:
        """What columns hold of a row, or of many at once."""
        resources = source.allocatable.shape[0]
        self.allocatable[:resources, row] = source.allocatable[:, origin]
        self._usage[: len(source._usage), row] = source._usage[:, origin]
        self.all_small &= source.all_small
        self._bound = source._bound
        self.unschedulable[row] = source.unschedulable[origin]
        self.taint_ids[row] = source.taint_ids[origin]
        self.feature_ids[row] = source.feature_ids[origin]

    def _copy_rest(self, source: NodeColumns, origin: int, row: int) -> None:
        """What lists hold of a row."""
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
        grown = max(rows, 2 * capacity)
        self._set_amount_views(_widened(self._amounts, grown))
        self._image_columns.clear()
        self.unschedulable = np.resize(self.unschedulable, grown)
        self.taint_ids = np.resize(self.taint_ids, grown)
        self.feature_ids = np.resize(self.feature_ids, grown)

    def _reserve_resources(self) -> None:
        missing = len(self.vocabulary.resources.names) - len(self.allocatable)
        if missing > 0:
            rows = np.zeros((missing, self.allocatable.shape[1]), dtype=np.int64)
            self._set_amount_views(np.concatenate((self._usage, rows, self.allocatable, rows)))


def _widened(matrix: IntMatrix, columns: int) -> IntMatrix:
    wide = np.zeros((matrix.shape[0], columns), dtype=np.int64)
    wide[:, : matrix.shape[1]] = matrix
    return wide
