from __future__ import annotations

import math

import pytest

from bayplan.batch.model.amounts import (
    MAX_TASKS,
    UNLIMITED,
    Amounts,
    DimensionDefault,
    InsufficientAmounts,
    common_names,
    excess_amounts,
    max_amounts,
    share,
)
from bayplan.objects.meta import ResourceList

ZERO, INFINITY = DimensionDefault.ZERO, DimensionDefault.INFINITY
GPU = "nvidia.com/gpu"


def a(cpu: float = 0, memory: float = 0, **scalars: float) -> Amounts:
    """Amounts with scalars under short names; without scalars there is no dictionary."""
    return Amounts(cpu, memory, dict(scalars) or None)


def bare(cpu: float = 0, memory: float = 0) -> Amounts:
    """Amounts with an empty dictionary of scalars."""
    return Amounts(cpu, memory, {})


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        pytest.param({}, Amounts(), id="nothing"),
        pytest.param({"cpu": "1500m", "memory": "2Ki"}, Amounts(1500, 2048), id="cpu-in-milli-memory-in-bytes"),
        pytest.param({"cpu": "0.5m"}, Amounts(1), id="rounded-up"),
        pytest.param({"pods": "110"}, Amounts(0, 0, {"pods": 110}, 110), id="pods-in-units-twice"),
        pytest.param({"ephemeral-storage": "2"}, a(**{"ephemeral-storage": 2000}), id="ephemeral-storage-in-milli"),
        pytest.param({GPU: 2}, a(**{GPU: 2000}), id="extended-in-milli"),
        pytest.param({"hugepages-2Mi": "4Mi"}, a(**{"hugepages-2Mi": 4194304000}), id="hugepages-in-milli"),
        pytest.param({"attachable-volumes-csi-x": 3}, a(**{"attachable-volumes-csi-x": 3000}), id="volumes"),
        pytest.param({"count/jobs.batch": 3, "storage": "1", "requests.cpu": 1}, Amounts(), id="quota-names-left-out"),
        pytest.param({"x.kubernetes.io/y": 1}, a(**{"x.kubernetes.io/y": 1000}), id="native-with-domain"),
    ],
)
def test_amounts_of_a_resource_list(resources: ResourceList, expected: Amounts) -> None:
    assert Amounts.of(resources) == expected


def test_shared_devices_count_like_any_other_resource() -> None:
    """`GetIgnoredDevices` of Volcano's gpushare and vgpu devices names nothing, so minimums and queues count them."""
    names = ("volcano.sh/gpu-memory", "volcano.sh/gpu-number", "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory")
    assert Amounts.of(dict.fromkeys(names, 1)).scalars == dict.fromkeys(names, 1000.0)


def test_amounts_convert_to_quantities() -> None:
    amounts = Amounts(1500.9, 2**30, {"pods": 3.0, GPU: 1500.0})
    written = {name: str(quantity) for name, quantity in amounts.quantities().items()}
    assert written == {"cpu": "1500m", "memory": "1Gi", "pods": "3", GPU: "1500m"}


def test_amounts_beyond_64_bits_become_the_lowest_integer() -> None:
    assert Amounts.unlimited().quantities()["memory"].value() == -(2**63)


@pytest.mark.parametrize(
    ("amounts", "text"),
    [
        pytest.param(Amounts(), "cpu 0.00, memory 0.00", id="nothing"),
        pytest.param(a(1000, 2048.456, b=1, a=-0.5), "cpu 1000.00, memory 2048.46, a -0.50, b 1.00", id="sorted"),
        pytest.param(Amounts.unlimited(), "cpu maxFloat, memory maxFloat", id="unlimited"),
        pytest.param(a(2.0**63), "cpu maxInt, memory 0.00", id="largest-integer"),
        pytest.param(a(math.inf, -math.inf, x=math.nan), "cpu +Inf, memory -Inf, x NaN", id="no-numbers"),
    ],
)
def test_text(amounts: Amounts, text: str) -> None:
    assert str(amounts) == text


def test_unlimited_names_no_scalars() -> None:
    assert Amounts.unlimited() == Amounts(UNLIMITED, UNLIMITED, None, MAX_TASKS)


@pytest.mark.parametrize(
    ("left", "right", "added", "subtracted"),
    [
        pytest.param(a(1, 2), a(3, 4), a(4, 6), a(-2, -2), id="plain"),
        pytest.param(a(1), a(0, 0, x=5), a(1, x=5), a(1), id="without-scalars-their-scalars-are-not-subtracted"),
        pytest.param(bare(1), a(x=5), a(1, x=5), a(1, x=-5), id="with-an-empty-dictionary-they-are"),
        pytest.param(a(x=5), a(x=2, y=1), a(x=7, y=1), a(x=3, y=-1), id="scalars"),
        pytest.param(a(), bare(), a(), a(), id="an-empty-dictionary-is-not-taken-over"),
    ],
)
def test_add_and_subtract(left: Amounts, right: Amounts, added: Amounts, subtracted: Amounts) -> None:
    assert left.clone().add(right) == added
    assert left.clone().sub_unchecked(right) == subtracted


def test_checked_subtraction_tolerates_a_difference_below_the_tolerance() -> None:
    assert a(1).sub(a(1.05)).milli_cpu == pytest.approx(-0.05)
    with pytest.raises(InsufficientAmounts, match=r"not sufficient .* <cpu 1\.00, .*> sub <cpu 2\.00"):
        a(1).sub(a(2))


def test_arithmetic_does_not_change_the_maximum_number_of_tasks() -> None:
    amounts = Amounts(max_task_num=7)
    amounts.add(Amounts(max_task_num=3)).sub_unchecked(Amounts(max_task_num=2)).multi(2).set_max(
        Amounts(max_task_num=9)
    )
    assert amounts.max_task_num == 7


def test_a_clone_shares_nothing() -> None:
    first = a(1, x=1)
    first.clone().add(a(1, x=1))
    assert first == a(1, x=1)


@pytest.mark.parametrize(
    ("left", "right", "missing", "less", "less_equal", "above"),
    [
        pytest.param(a(1, 1), a(2, 2), ZERO, True, True, [], id="less"),
        pytest.param(a(1, 1), a(1, 2), ZERO, False, True, [], id="equal-in-one"),
        pytest.param(a(1.09, 1), a(1, 2), ZERO, False, True, [], id="above-by-a-crumb"),
        pytest.param(a(1.11, 1), a(1, 0), ZERO, False, False, ["cpu", "memory"], id="above"),
        pytest.param(a(0, 0, x=1), a(1, 1), ZERO, False, False, ["x"], id="unnamed-is-nothing"),
        pytest.param(a(0, 0, x=0.05), a(1, 1), ZERO, False, True, [], id="a-crumb-of-the-unnamed"),
        pytest.param(a(0, 0, x=1), a(1, 1), INFINITY, True, True, [], id="unnamed-is-unlimited"),
        pytest.param(a(), a(1, 1, x=1), ZERO, True, True, [], id="only-they-name-it"),
        pytest.param(a(), a(1, 1, x=1), INFINITY, False, False, [], id="only-they-name-it-and-we-are-unlimited"),
        pytest.param(a(b=2, a=2), a(1, 1, a=1, b=1), INFINITY, False, False, ["a", "b"], id="names-sorted"),
    ],
)
def test_less(
    left: Amounts, right: Amounts, missing: DimensionDefault, less: bool, less_equal: bool, above: list[str]
) -> None:
    assert left.less(right, missing) is less
    assert left.less_equal(right, missing) is less_equal
    assert left.names_above(right, missing) == above


@pytest.mark.parametrize(
    ("left", "right", "missing", "less"),
    [
        pytest.param(a(2, 1), a(1, 2), ZERO, True, id="memory-is-less"),
        pytest.param(a(2, 2), a(1, 2.05), ZERO, True, id="less-by-a-crumb"),
        pytest.param(a(2, 2.05), a(1, 2), ZERO, False, id="about-equal"),
        pytest.param(a(2, 2), a(1, 1), ZERO, False, id="more-of-all"),
        pytest.param(a(2, 2), a(1, 1, x=0), ZERO, True, id="they-name-one-more"),
        pytest.param(a(2, 2), a(1, 1, x=9), INFINITY, False, id="they-name-one-more-and-we-are-unlimited"),
        pytest.param(a(2, 2, x=9), a(1, 1), INFINITY, True, id="they-are-unlimited"),
        pytest.param(a(2, 2, x=9), a(1, 1), ZERO, False, id="they-have-nothing"),
        pytest.param(a(2, 2, x=1), a(1, 1, x=2), INFINITY, True, id="scalar-is-less"),
    ],
)
def test_less_partly(left: Amounts, right: Amounts, missing: DimensionDefault, less: bool) -> None:
    assert left.less_partly(right, missing) is less


@pytest.mark.parametrize(
    ("left", "right", "requested", "names"),
    [
        pytest.param(a(2, 2), a(1, 1), a(1), ["cpu"], id="only-what-is-requested"),
        pytest.param(a(1.01), a(1), a(1), ["cpu"], id="a-crumb-counts"),
        pytest.param(a(1), a(1), a(1), [], id="equal"),
        pytest.param(a(0, 0, pods=2), a(0, 0, pods=1), a(pods=1), [], id="pods-never"),
        pytest.param(a(x=1), a(), a(x=1), ["x"], id="unnamed-is-nothing"),
        pytest.param(a(1), a(x=-1), a(x=1), [], id="without-scalars-none-is-above"),
        pytest.param(a(2, 2, x=0), None, a(1), ["cpu", "memory"], id="above-nothing-is-all-there-is"),
        pytest.param(a(1.05, 2), a(1, 1), None, ["memory"], id="nothing-requested-tolerates-crumbs"),
    ],
)
def test_requested_names_above(
    left: Amounts, right: Amounts | None, requested: Amounts | None, names: list[str]
) -> None:
    assert left.requested_names_above(right, requested) == names


@pytest.mark.parametrize(
    ("left", "right", "requested", "greater", "relevant"),
    [
        pytest.param(a(x=2), a(), a(x=1), ["x"], [], id="they-do-not-name-it"),
        pytest.param(a(x=2), a(x=0), a(x=1), ["x"], ["x"], id="they-name-it-with-nothing"),
        pytest.param(a(4), a(0), a(2), ["cpu"], [], id="they-have-no-cpu"),
        pytest.param(a(4), a(0.1), a(2), ["cpu"], ["cpu"], id="they-have-some-cpu"),
        pytest.param(a(4, 8, x=2), a(2, 8, x=1), a(2, 0, x=1), ["cpu", "x"], ["cpu", "x"], id="several"),
        pytest.param(a(4, 8, x=2), a(2, 8, x=1), a(0, 4, x=0), [], [], id="requested-is-equal"),
        pytest.param(a(4), None, a(2), ["cpu"], [], id="no-other"),
        pytest.param(a(4), a(2), None, [], [], id="nothing-requested"),
        pytest.param(a(pods=4), a(pods=2), a(pods=1), [], [], id="pods-never"),
    ],
)
def test_requested_and_relevant_names_greater(
    left: Amounts, right: Amounts | None, requested: Amounts | None, greater: list[str], relevant: list[str]
) -> None:
    assert left.requested_names_greater(right, requested) == greater
    assert left.relevant_names_greater(right, requested) == relevant


@pytest.mark.parametrize(
    ("left", "right", "requested", "within", "used"),
    [
        pytest.param(a(1, 3), a(2, 2), a(1, 1), ["cpu"], ["cpu"], id="one-of-two"),
        pytest.param(a(1.05), a(1), a(1), ["cpu"], ["cpu"], id="a-crumb-is-tolerated"),
        pytest.param(a(1), a(1), a(1, 1), ["cpu", "memory"], ["cpu"], id="no-side-has-memory"),
        pytest.param(a(), a(), a(x=1), ["x"], [], id="no-side-has-the-scalar"),
        pytest.param(a(pods=1), a(pods=1), a(pods=1), [], [], id="pods-never"),
        pytest.param(a(1), a(2), None, [], [], id="nothing-requested"),
    ],
)
def test_requested_and_used_names_within(
    left: Amounts, right: Amounts, requested: Amounts | None, within: list[str], used: list[str]
) -> None:
    assert left.requested_names_within(right, requested) == within
    assert left.used_names_within(right, requested) == used


@pytest.mark.parametrize(
    ("left", "right", "missing", "more", "less"),
    [
        pytest.param(a(3, 1), a(1, 3), ZERO, bare(2), bare(0, 2), id="plain"),
        pytest.param(a(x=3), a(y=1), ZERO, a(x=3), a(y=1), id="unnamed-is-nothing"),
        pytest.param(a(x=3), a(y=1), INFINITY, a(y=-1), a(x=-1), id="unnamed-is-unlimited"),
        pytest.param(a(x=3), a(x=3), ZERO, bare(), a(x=0), id="equal-counts-as-less-by-nothing"),
    ],
)
def test_diff(left: Amounts, right: Amounts, missing: DimensionDefault, more: Amounts, less: Amounts) -> None:
    assert left.diff(right, missing) == (more, less)


@pytest.mark.parametrize(
    ("left", "right", "missing", "expected"),
    [
        pytest.param(a(2, 5, x=3, y=3), a(3, 4, x=1), ZERO, a(2, 4, x=1, y=0), id="unnamed-falls-to-nothing"),
        pytest.param(a(2, 5, x=3, y=3), a(3, 4, x=1), INFINITY, a(2, 4, x=1, y=3), id="unnamed-stays"),
        pytest.param(a(2, 5, x=3), a(3, 4), ZERO, a(2, 4, x=0), id="they-have-no-scalars"),
        pytest.param(a(2, 5), a(3, 4, x=1), ZERO, a(2, 4), id="names-are-never-added"),
    ],
)
def test_min_dimension(left: Amounts, right: Amounts, missing: DimensionDefault, expected: Amounts) -> None:
    assert left.min_dimension(right, missing) == expected


def test_set_max_adds_names() -> None:
    assert a(1, 5).set_max(a(2, 4, x=-1)) == a(2, 5, x=-1)
    assert a(x=1, y=2).set_max(a(x=3, y=1)) == a(x=3, y=2)


def test_multiplication_changes_every_dimension() -> None:
    assert a(1, 2, x=3).multi(1.5) == a(1.5, 3, x=4.5)


@pytest.mark.parametrize(
    ("amounts", "empty", "names"),
    [
        pytest.param(a(), True, [], id="nothing"),
        pytest.param(a(0.05, 0.05, x=0.05), True, [], id="crumbs"),
        pytest.param(a(pods=1), True, ["pods"], id="pods-do-not-count"),
        pytest.param(a(0, 0.1), False, ["memory"], id="memory"),
        pytest.param(a(1, 1, b=1, a=1), False, ["cpu", "memory", "a", "b"], id="all"),
    ],
)
def test_emptiness(amounts: Amounts, empty: bool, names: list[str]) -> None:
    assert amounts.is_empty() is empty
    assert amounts.names() == names


def test_equal_compares_only_the_names_of_the_left() -> None:
    assert a(1, x=1).equal(a(1.05, x=1.05, y=7))
    assert not a(1, x=1).equal(a(1))
    assert a(math.inf).equal(a(math.inf))


def test_maximum_and_excess_of_two_amounts() -> None:
    assert max_amounts(a(1, 5, x=-3, y=1), a(2, 4, x=1, z=-1)) == a(2, 5, x=1, y=1)
    assert max_amounts(a(1), a(2)) == a(2)
    assert excess_amounts(a(3, 1), a(1, 3)) == bare(2)
    assert excess_amounts(a(3), None) == a(3)
    assert excess_amounts(None, a(3)) == a()
    assert common_names(a(1, 1, pods=1), a(0, 1, pods=1)) == ["memory", "pods"]
    assert common_names(a(1, 1, pods=1), a(0, 1, pods=1), with_pods=False) == ["memory"]


@pytest.mark.parametrize(("part", "whole", "expected"), [(0, 0, 0), (1, 0, 1), (1, 4, 0.25), (-1, 0, 1)])
def test_share(part: float, whole: float, expected: float) -> None:
    assert share(part, whole) == expected
