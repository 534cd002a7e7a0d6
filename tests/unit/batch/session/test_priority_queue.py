from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bayplan.batch.session.priority_queue import PriorityQueue


@given(st.lists(st.integers()))
def test_pops_in_order(numbers: list[int]) -> None:
    queue = PriorityQueue(lambda left, right: left < right, numbers)
    assert len(queue) == len(numbers)
    assert [queue.pop() for _ in numbers] == sorted(numbers)
    assert not queue


def test_a_clone_is_independent() -> None:
    queue = PriorityQueue(lambda left, right: left < right, [3, 1, 2])
    twin = queue.clone()
    assert twin.pop() == 1
    assert [queue.pop() for _ in range(3)] == [1, 2, 3]


def test_a_changed_order_is_applied_when_items_move_down() -> None:
    rank = {"a": 1, "b": 2, "c": 3}
    queue = PriorityQueue(lambda left, right: rank[left] < rank[right], "abc")
    rank["a"] = 9
    assert queue.pop() == "a"  # the top item was determined when it was pushed
    rank["b"], rank["c"] = 5, 4
    queue.push("a")
    assert queue.pop() in "bc"
