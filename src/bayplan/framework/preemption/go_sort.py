"""In which order do equal elements come out of Go's `sort.Slice`?

Asked by preemption: start times are whole seconds, equally important pods are common, and their order decides who
dies. Go's sort is unstable but deterministic, a pattern-defeating quicksort, so its answer can be had only by making
the same comparisons and exchanges in the same order. Up to twelve elements it is an insertion sort, which keeps
equals as they were. `less` need not be an order: a relation that contradicts itself is followed all the same.
Cost: about n log n calls of `less`.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from typing import Generic, TypeVar

T = TypeVar("T")

INSERTION_SORT_MAX = 12
_NINTHER_FROM = 50  # pivots of shorter ranges are the median of three, and shorter ranges are never mended by shifting
_MAX_INSERTION_STEPS = 5
_MAX_SWAPS = 12  # every comparison of four medians wanted an exchange: the range is likely descending
_UINT64_MASK = (1 << 64) - 1


def go_sort(items: MutableSequence[T], less: Callable[[T, T], bool]) -> None:
    """Sort in place, as `sort.Slice` would with this `less`."""
    _Sort(items, less).sort(0, len(items), len(items).bit_length())


class _Sort(Generic[T]):
    """One run over one sequence. Ranges are half-open: [a, b)."""

    __slots__ = ("_exchanges", "_items", "_less")

    def __init__(self, items: MutableSequence[T], less: Callable[[T, T], bool]) -> None:
        self._items = items
        self._less = less
        self._exchanges = 0  # wanted by the medians of the pivot that is being chosen

    def sort(self, a: int, b: int, limit: int) -> None:
        """`limit`: so many badly balanced partitions are borne before heap sort takes over."""
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

    # small steps ------------------------------------------------------------------------------------------------

    def _below(self, i: int, j: int) -> bool:
        return self._less(self._items[i], self._items[j])

    def _swap(self, i: int, j: int) -> None:
        items = self._items
        items[i], items[j] = items[j], items[i]

    def _insert_left(self, i: int, floor: int) -> None:
        """Move the element at `i` left while it is below its neighbour, not past `floor`."""
        while i > floor and self._below(i, i - 1):
            self._swap(i, i - 1)
            i -= 1

    # sorts for the ends -----------------------------------------------------------------------------------------

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

    # pivots -----------------------------------------------------------------------------------------------------

    def _choose_pivot(self, a: int, b: int) -> tuple[int, bool]:
        """A position, and whether the range looks sorted. One that looks descending is turned round first."""
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
        i, j = self._ordered(i, j)
        j, k = self._ordered(j, k)
        i, j = self._ordered(i, j)
        return j

    def _ordered(self, i: int, j: int) -> tuple[int, int]:
        """The two positions, the lower element's first; only the positions change places."""
        if self._below(j, i):
            self._exchanges += 1
            return j, i
        return i, j

    def _break_patterns(self, a: int, b: int) -> None:
        """Move three elements about by a fixed pseudo-random rule, to break what made the last pivot bad."""
        length = b - a
        state = length
        middle = a + length // 4 * 2
        for position in (middle - 1, middle, middle + 1):
            state = (state ^ state << 13) & _UINT64_MASK
            state ^= state >> 7
            state = (state ^ state << 17) & _UINT64_MASK
            other = state & ((1 << length.bit_length()) - 1)
            self._swap(position, a + (other - length if other >= length else other))

    # partitions -------------------------------------------------------------------------------------------------

    def _partial_insertion_sort(self, a: int, b: int) -> bool:
        """Whether the range is sorted, after putting at most five elements of a long one right."""
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
                # Down to the very first position, not to `a`: what is left of the range is not above it anyway,
                # unless `less` contradicts itself, and then Go goes on, too.
                self._insert_left(i - 1, 0)
            j = i + 1
            while b - i >= 2 and j < b and self._below(j, j - 1):
                self._swap(j, j - 1)
                j += 1
        return False

    def _partition_equal(self, a: int, b: int, pivot: int) -> int:
        """Elements equal to the pivot to the front; nothing here is below it. Returns where the others begin."""
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
        """Elements below the pivot to its left, others to its right. Where it stands, and if it was so already."""
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
