"""Interner: use counts, released ids, and cursors of readers."""

from __future__ import annotations

import pytest

from bayplan.snapshot.intern_tables import IdPredicate, InternTables, NamespacedLabels, ResourceNumbers
from bayplan.snapshot.interner import Interner


def test_equal_values_share_an_id() -> None:
    interner: Interner[str] = Interner()
    assert interner.acquire("a") == interner.acquire("a") == 0
    assert interner.acquire("b") == 1
    assert (interner.get("a"), interner.get("nobody")) == (0, -1)
    assert interner.value(1) == "b"
    assert interner.in_use == 2
    assert len(interner) == 2


def test_the_last_release_frees_the_id_without_reuse() -> None:
    interner: Interner[str] = Interner()
    number = interner.acquire("a")
    interner.acquire("a")
    interner.release(number)
    assert interner.get("a") == number
    interner.release(number)
    assert interner.get("a") == -1
    assert interner.value(number) == "a"  # a snapshot may still contain it
    assert dict(interner.items()) == {number: "a"}
    assert interner.acquire("b") != number


def test_reusable_ids_are_assigned_again() -> None:
    interner: Interner[str] = Interner()
    number = interner.acquire("a")
    interner.release(number)
    interner.reuse_released_ids()
    with pytest.raises(LookupError, match="id 0 is not in use"):
        interner.value(number)
    assert dict(interner.items()) == {}
    assert interner.acquire("b") == number
    assert len(interner) == 1


def test_a_value_that_returns_before_reuse_gets_a_new_id() -> None:
    interner: Interner[str] = Interner()
    old = interner.acquire("a")
    interner.release(old)
    new = interner.acquire("a")
    assert new != old
    interner.reuse_released_ids()
    assert interner.value(new) == "a"
    assert dict(interner.items()) == {new: "a"}


def test_readers_get_new_ids() -> None:
    interner: Interner[str] = Interner()
    interner.acquire("a")
    cursor, fresh = interner.since(0)
    assert fresh == [0]
    interner.acquire("a")
    assert interner.since(cursor) == (cursor, [])
    interner.acquire("b")
    assert interner.since(cursor)[1] == [1]


def test_a_reader_that_is_too_far_behind_gets_all_ids() -> None:
    interner: Interner[int] = Interner()
    kept = interner.acquire(-1)
    cursor, _ = interner.since(0)
    for value in range(5000):
        interner.release(interner.acquire(value))
        interner.reuse_released_ids()
    late = interner.acquire(-2)
    assert set(interner.since(cursor)[1]) == {kept, late}


def test_a_predicate_runs_once_for_each_value() -> None:
    interner: Interner[str] = Interner()
    calls: list[str] = []

    def is_short(value: str) -> bool:
        calls.append(value)
        return len(value) == 1

    lookup = IdPredicate(interner, is_short)
    for value in ("a", "bb"):
        interner.acquire(value)
    assert lookup.answers()[:2].tolist() == [True, False]
    interner.acquire("c")
    assert lookup.answers()[:3].tolist() == [True, False, True]
    assert calls == ["a", "bb", "c"]


def test_a_predicate_runs_again_for_a_reused_id() -> None:
    interner: Interner[str] = Interner()
    lookup = IdPredicate(interner, lambda value: value == "a")
    number = interner.acquire("a")
    assert lookup.answers()[number]
    interner.release(number)
    interner.reuse_released_ids()
    assert interner.acquire("b") == number
    assert not lookup.answers()[number]


def test_a_late_predicate_covers_released_ids_too() -> None:
    interner: Interner[int] = Interner()
    shown = interner.acquire(-1)
    for value in range(3000):  # long enough to truncate the log
        interner.acquire(value % 3)
        interner.release(interner.get(value % 3))
    interner.release(shown)
    assert IdPredicate(interner, lambda value: value == -1).answers()[shown]


def test_namespaced_labels_are_values() -> None:
    one, same = NamespacedLabels("ns", {"a": "1", "b": "2"}), NamespacedLabels("ns", {"b": "2", "a": "1"})
    assert one == same
    assert hash(one) == hash(same)
    assert one != NamespacedLabels("other", {"a": "1", "b": "2"})
    assert one != NamespacedLabels("ns", {"a": "1"})
    assert one != ("ns", {"a": "1", "b": "2"})


def test_resource_columns_are_created_by_name() -> None:
    names = ResourceNumbers()
    assert (names.index("cpu"), names.index("memory"), names.index("pods")) == (0, 1, 3)
    assert names.find("x.io/gpu") == -1
    assert names.index("x.io/gpu") == names.find("x.io/gpu") == 4
    assert len(names) == 5


def test_reuse_covers_all_intern_tables() -> None:
    vocabulary = InternTables()
    vocabulary.taints.release(vocabulary.taints.acquire(()))
    vocabulary.features.release(vocabulary.features.acquire(frozenset()))
    vocabulary.kinds.release(vocabulary.kinds.acquire(NamespacedLabels("", {})))
    vocabulary.reuse_released_ids()
    for interner in (vocabulary.taints, vocabulary.features, vocabulary.kinds):
        assert list(interner.items()) == []
