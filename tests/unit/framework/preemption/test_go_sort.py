"""The expected orders come from `sort.Slice` of Go 1.26: digests of permutations of lists that both sides generate."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from bayplan.framework.preemption.go_sort import go_sort

Less = Callable[[int, int], bool]

GOLDEN = [
    # kind of the list, its length, the number of distinct keys, and the digest of Go's permutation
    ("shuffled", 13, 1, "de9d37013224"),
    ("shuffled", 13, 3, "d616cd260f1d"),
    ("shuffled", 30, 4, "3b7a4878190d"),
    ("shuffled", 49, 100000, "7499d514de04"),
    ("shuffled", 50, 2, "eee4d96efe4e"),
    ("shuffled", 64, 7, "d1d7c6a7c7d1"),
    ("shuffled", 100, 100000, "cb1c219ace23"),
    ("shuffled", 110, 3, "d503d6dff5a4"),
    ("shuffled", 257, 9, "b97fac8702ac"),
    ("shuffled", 1000, 5, "471effef92ee"),
    ("shuffled", 2000, 100000, "b7e766741ca5"),
    ("ascending", 13, 1, "de9d37013224"),
    ("ascending", 13, 3, "de9d37013224"),
    ("ascending", 30, 4, "e9b1ed5c1743"),
    ("ascending", 49, 100000, "4e8de80dbabd"),
    ("ascending", 50, 2, "c38e304ddfe0"),
    ("ascending", 64, 7, "90c2fb47e009"),
    ("ascending", 100, 100000, "bf7b99283937"),
    ("ascending", 110, 3, "33bf3230b18d"),
    ("ascending", 257, 9, "1a0d54147913"),
    ("ascending", 1000, 5, "ebdfce5a8139"),
    ("ascending", 2000, 100000, "380e80633f44"),
    ("descending", 13, 1, "de9d37013224"),
    ("descending", 13, 3, "2de2ab9fca02"),
    ("descending", 30, 4, "6932ecdee74c"),
    ("descending", 49, 100000, "94bae408506b"),
    ("descending", 50, 2, "6bdf7d982f3a"),
    ("descending", 64, 7, "a0cf5fe0e9fe"),
    ("descending", 100, 100000, "f924a2d31d9b"),
    ("descending", 110, 3, "da82a3d1c423"),
    ("descending", 257, 9, "613899961d66"),
    ("descending", 1000, 5, "86571fa1272a"),
    ("descending", 2000, 100000, "b01a852fc42e"),
    ("nearly", 13, 1, "de9d37013224"),
    ("nearly", 13, 3, "e936d6c8b7ef"),
    ("nearly", 30, 4, "02e5b8afc6a3"),
    ("nearly", 49, 100000, "393bed2b2fee"),
    ("nearly", 50, 2, "5d1e585ecad9"),
    ("nearly", 64, 7, "1d2ed78caa4d"),
    ("nearly", 100, 100000, "84217bb006bd"),
    ("nearly", 110, 3, "5f3cf4527c13"),
    ("nearly", 257, 9, "1a0d54147913"),
    ("nearly", 1000, 5, "ebdfce5a8139"),
    ("nearly", 2000, 100000, "5a82863ea9c7"),
    ("hill", 49, 100000, "0e9d1c8723a8"),
    ("hill", 64, 7, "d4e31f9c3591"),
    ("hill", 100, 100000, "d7560a1798aa"),
    ("hill", 257, 9, "7a6ab239b2c3"),
    ("hill", 1000, 5, "4e0a0d0790a3"),
    ("hill", 2000, 100000, "232ac983f65b"),
    ("unstarted", 13, 1, "2a852fc05cbc"),
    ("unstarted", 13, 3, "e5eb08d0cacf"),
    ("unstarted", 30, 4, "996eed7b317a"),
    ("unstarted", 49, 100000, "28237f6f53ea"),
    ("unstarted", 50, 2, "b418cdf3e81f"),
    ("unstarted", 64, 7, "522b4f7adddc"),
    ("unstarted", 100, 100000, "02a4db43a108"),
    ("unstarted", 110, 3, "b1651ba9c042"),
    ("unstarted", 257, 9, "99cd756e1fcc"),
    ("unstarted", 1000, 5, "8d7c0dda64a5"),
    ("unstarted", 2000, 100000, "9e5def387239"),
    ("contrary", 100, 100000, "70374f22adba"),
    ("contrary", 110, 3, "19eb98f6018d"),
    ("contrary", 257, 9, "2278f4c235a9"),
    ("contrary", 1000, 5, "d7d4e226972a"),
    ("contrary", 2000, 100000, "646e482f96f5"),
]


def keys_of(shape: str, size: int, kinds: int) -> list[int]:
    """Generate a list without a random number library, so that Go can generate the same."""
    state, keys = size * 31 + kinds, []
    for _ in range(size):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        keys.append((state >> 16) % kinds)
    if shape == "ascending":
        keys.sort()
    elif shape == "descending":
        keys.sort(reverse=True)
    elif shape == "nearly":
        keys.sort()
        for place in range(0, size - 7, max(size // 3, 1)):
            keys[place], keys[place + 7] = keys[place + 7], keys[place]
    elif shape == "hill":
        keys = [min(place, size - place) for place in range(size)]
    elif shape == "unstarted":
        keys = [key if key % 3 else -1 for key in keys]
    return keys


def less_of(shape: str, keys: list[int]) -> Less:
    """Compare by key.

    `unstarted`: two keys of -1 are each below the other. `contrary`: deterministic, but not an order.
    """

    def unstarted(x: int, y: int) -> bool:
        if keys[x] < 0:
            return keys[y] < 0
        return keys[y] < 0 or keys[x] < keys[y]

    def contrary(x: int, y: int) -> bool:
        mixed = (x * 2654435761) & 0xFFFFFFFF ^ (y * 40503) & 0xFFFFFFFF
        return mixed >> 7 & 1 == 1

    return {"unstarted": unstarted, "contrary": contrary}.get(shape, lambda x, y: keys[x] < keys[y])


def permutation(size: int, less: Less) -> list[int]:
    order = list(range(size))
    go_sort(order, less)
    return order


@pytest.mark.parametrize(("shape", "size", "kinds", "digest"), GOLDEN, ids=[f"{s}-{n}-{k}" for s, n, k, _ in GOLDEN])
def test_equal_elements_have_the_order_of_go(shape: str, size: int, kinds: int, digest: str) -> None:
    order = permutation(size, less_of(shape, keys_of(shape, size, kinds)))
    assert hashlib.sha256(" ".join(map(str, order)).encode()).hexdigest()[:12] == digest


@pytest.mark.parametrize(
    ("size", "less", "order"),
    [
        pytest.param(0, lambda x, y: x < y, [], id="nothing to sort"),
        pytest.param(12, lambda x, y: False, list(range(12)), id="twelve equals keep their places"),  # noqa: ARG005
        pytest.param(12, lambda x, y: True, list(range(11, -1, -1)), id="twelve below each other turn round"),  # noqa: ARG005
        pytest.param(13, lambda x, y: False, list(range(13)), id="thirteen equals look sorted"),  # noqa: ARG005
        pytest.param(
            16,
            lambda x, y: x % 2 < y % 2,
            [8, 10, 2, 14, 4, 12, 6, 0, 9, 7, 1, 11, 5, 13, 3, 15],
            id="sixteen of two kinds lose their order",
        ),
    ],
)
def test_small_orders_by_hand(size: int, less: Less, order: list[int]) -> None:
    assert permutation(size, less) == order


@pytest.mark.parametrize("size", [5, 12, 13, 50, 333])
def test_distinct_elements_are_sorted(size: int) -> None:
    items = [place * 7919 % 1009 for place in range(size)]
    go_sort(items, lambda x, y: x < y)
    assert items == sorted(items)
