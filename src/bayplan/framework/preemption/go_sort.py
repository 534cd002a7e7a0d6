"""Port of Go's `sort.Slice`: equal elements come out in the same order as in Go.

Used by preemption: start times are whole seconds, so equally important pods are frequent, and their order decides which
pod is evicted. Go's sort is unstable but deterministic, a pattern-defeating quicksort. The same result requires the
same comparisons and exchanges in the same order. Up to twelve elements it is an insertion sort, which keeps the order
of equal elements. `less` may contradict itself; the algorithm still does the same as Go. Cost: about n log n calls of
`less`.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from typing import Generic, TypeVar

T = TypeVar("T")

INSERTION_SORT_MAX = 12
_NINTHER_FROM = 50  # shorter ranges use the median of three as pivot, and are never sorted by partial insertion
_MAX_INSERTION_STEPS = 5
_MAX_SWAPS = 12  # all comparisons of four medians exchanged: the range is probably descending
_UINT64_MASK = (1 << 64) - 1


def go_sort(items: MutableSequence[T], less: Callable[[T, T], bool]) -> None:
    """Sort in place, as `sort.Slice` would with this `less`."""
    _Sort(items, less).sort(0, len(items), len(items).bit_length())


class _Sort(Generic[T]):
    """One sort of one sequence. Ranges are half-open: [a, b)."""

    __slots__ = ("_exchanges", "_items", "_less")

    def __init__(self, items: MutableSequence[T], less: Callable[[T, T], bool]) -> None:
        self._items = items
        self._less = less
        self._exchanges = 0  # counted by the medians of the current pivot

    def sort(self, a: int, b: int, limit: int) -> None:
        """`limit`: number of badly balanced partitions before heap sort takes over."""
        balanced = partitioned = True
        while b - a > INSERTION_SORT_MAX:
            length = b - a
            if limit == 0:
                self._heap_sort(a, b)
                return
            if not balanced:
                self._break_patterns(a, b)
                limit -= 1
            pivot, looks_sorted = self._choose_pivot(a, b)
            if balanced and partitioned and looks_sorted and self._partial_insertion_sort(a, b):
                return
            if a > 0 and not self._below(a - 1, pivot):
                a = self._partition_equal(a, b, pivot)
                continue
            middle, partitioned = self._partition(a, b, pivot)
            left, right = middle - a, b - middle
            balanced = min(left, right) >= length // 8
            if left < right:
                self.sort(a, middle, limit)
                a = middle + 1
            else:
                self.sort(middle + 1, b, limit)
                b = middle
        self._insertion_sort(a, b)

    def _below(self, i: int, j: int) -> bool:
        return self._less(self._items[i], self._items[j])

    def _swap(self, i: int, j: int) -> None:
        items = self._items
        items[i], items[j] = items[j], items[i]

    def _insert_left(self, i: int, floor: int) -> None:
        """Move the element at `i` left while it is below its neighbor, not past `floor`."""
        while i > floor and self._below(i, i - 1):
            self._swap(i, i - 1)
            i -= 1

    def _insertion_sort(self, a: int, b: int) -> None:
        for i in range(a + 1, b):
            self._insert_left(i, a)

    def _heap_sort(self, a: int, b: int) -> None:
        count = b - a
        for root in range((count - 1) // 2, -1, -1):
            self._sift_down(a, root, count)
        for last in range(count - 1, -1, -1):
            self._swap(a, a + last)
            self._sift_down(a, 0, last)

    def _sift_down(self, first: int, root: int, count: int) -> None:
        while (child := 2 * root + 1) < count:
            if child + 1 < count and self._below(first + child, first + child + 1):
                child += 1
            if not self._below(first + root, first + child):
                return
            self._swap(first + root, first + child)
            root = child

    def _choose_pivot(self, a: int, b: int) -> tuple[int, bool]:
        """Return a pivot position, and whether the range looks sorted.

        A range that looks descending is reversed first.
        """
        self._exchanges = 0
        quarter = (b - a) // 4
        thirds = (a + quarter, a + 2 * quarter, a + 3 * quarter)
        if b - a >= _NINTHER_FROM:
            thirds = (
                self._median_adjacent(thirds[0]),
                self._median_adjacent(thirds[1]),
                self._median_adjacent(thirds[2]),
            )
        pivot = self._median(*thirds)
        if self._exchanges == _MAX_SWAPS:
            self._items[a:b] = list(self._items[a:b])[::-1]
            return b - 1 - (pivot - a), True
        return pivot, self._exchanges == 0

    def _median_adjacent(self, i: int) -> int:
        return self._median(i - 1, i, i + 1)

    def _median(self, i: int, j: int, k: int) -> int:
        i, j = self._order(i, j)
        j, k = self._order(j, k)
        i, j = self._order(i, j)
        return j

    def _order(self, i: int, j: int) -> tuple[int, int]:
        """Return the two positions, the lower element's first. Elements do not move."""
        if self._below(j, i):
            self._exchanges += 1
            return j, i
        return i, j

    def _break_patterns(self, a: int, b: int) -> None:
        """Swap three elements in a fixed pseudo-random pattern, to break the pattern that caused an unbalanced
        partition.
        """
        length = b - a
        state = length
        middle = a + length // 4 * 2
        for position in (middle - 1, middle, middle + 1):
            state = (state ^ state << 13) & _UINT64_MASK
            state ^= state >> 7
            state = (state ^ state << 17) & _UINT64_MASK
            other = state & ((1 << length.bit_length()) - 1)
            self._swap(position, a + (other - length if other >= length else other))

    def _partial_insertion_sort(self, a: int, b: int) -> bool:
        """Whether the range is sorted, after moving at most five elements of a long range."""
        i = a + 1
        for _ in range(_MAX_INSERTION_STEPS):
            while i < b and not self._below(i, i - 1):
                i += 1
            if i == b:
                return True
            if b - a < _NINTHER_FROM:
                return False
            self._swap(i, i - 1)
            if i - a >= 2:
                # Down to the first position, not to `a`: the rest of the range is not above it anyway,
                # unless `less` contradicts itself, and then Go goes on, too.
                self._insert_left(i - 1, 0)
            j = i + 1
            while b - i >= 2 and j < b and self._below(j, j - 1):
                self._swap(j, j - 1)
                j += 1
        return False

    def _partition_equal(self, a: int, b: int, pivot: int) -> int:
        """Move elements equal to the pivot to the front; no element is below it.

        Returns the start of the other elements.
        """
        self._swap(a, pivot)
        i, j = a + 1, b - 1
        while True:
            while i <= j and not self._below(a, i):
                i += 1
            while i <= j and self._below(a, j):
                j -= 1
            if i > j:
                return i
            self._swap(i, j)
            i, j = i + 1, j - 1

    def _partition(self, a: int, b: int, pivot: int) -> tuple[int, bool]:
        """Move elements below the pivot to its left.

        Returns the pivot's position, and whether the range was partitioned.
        """
        self._swap(a, pivot)
        i, j = a + 1, b - 1
        untouched = True
        while True:
            while i <= j and self._below(i, a):
                i += 1
            while i <= j and not self._below(j, a):
                j -= 1
            if i > j:
                self._swap(j, a)
                return j, untouched
            self._swap(i, j)
            i, j = i + 1, j - 1
            untouched = False
