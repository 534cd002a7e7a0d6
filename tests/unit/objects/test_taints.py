from __future__ import annotations

import msgspec
import pytest

from bayplan.objects.core import Taint, Toleration
from bayplan.objects.resource import DeviceToleration
from bayplan.objects.taints import (
    DO_NOT_SCHEDULE,
    NO_EXECUTE,
    NO_SCHEDULE,
    PREFER_NO_SCHEDULE,
    UNSCHEDULABLE,
    find_untolerated_taint,
    tolerated,
    tolerates,
    without_times,
)

GPU = Taint(key="gpu", value="a100", effect=NO_SCHEDULE)


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        pytest.param(Toleration(), False, id="empty-compares-the-value"),
        pytest.param(Toleration(operator="Exists"), True, id="exists-without-key-covers-all"),
        pytest.param(Toleration(key="gpu", operator="Exists"), True, id="exists"),
        pytest.param(Toleration(key="gpu", operator="Exists", value="x"), True, id="exists-ignores-the-value"),
        pytest.param(Toleration(key="cpu", operator="Exists"), False, id="other-key"),
        pytest.param(Toleration(key="gpu", value="a100"), True, id="no-operator-is-equal"),
        pytest.param(Toleration(key="gpu", operator="Equal", value="a100"), True, id="equal"),
        pytest.param(Toleration(key="gpu", operator="Equal", value="h100"), False, id="other-value"),
        pytest.param(Toleration(operator="Equal", value="a100"), True, id="equal-without-key-covers-any-key"),
        pytest.param(Toleration(key="gpu", operator="Exists", effect=NO_SCHEDULE), True, id="same-effect"),
        pytest.param(Toleration(key="gpu", operator="Exists", effect=NO_EXECUTE), False, id="other-effect"),
        pytest.param(Toleration(key="gpu", operator="exists"), False, id="unknown-operator"),
        pytest.param(DeviceToleration(key="gpu", operator="Exists"), True, id="of-a-device-request"),
    ],
)
def test_one_toleration(toleration: Toleration | DeviceToleration, expected: bool) -> None:
    assert tolerates(toleration, GPU) is expected


@pytest.mark.parametrize("operator", ["Lt", "Gt"])
@pytest.mark.parametrize("value", ["1", "5", "9"])
def test_numeric_operators_tolerate_nothing(operator: str, value: str) -> None:
    assert not tolerates(Toleration(key="n", operator=operator, value=value), Taint(key="n", value="5"))


def test_any_toleration_is_enough() -> None:
    assert tolerated(GPU, [Toleration(key="x"), Toleration(key="gpu", operator="Exists")])
    assert not tolerated(GPU, [])


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        pytest.param(DO_NOT_SCHEDULE, "b", id="hard-effects-in-the-order-of-the-node"),
        pytest.param({NO_EXECUTE}, "d", id="one-effect"),
        pytest.param({PREFER_NO_SCHEDULE}, "a", id="soft"),
        pytest.param((), None, id="no-effect"),
    ],
)
def test_first_untolerated(effects: frozenset[str], expected: str | None) -> None:
    taints = [
        Taint(key="a", effect=PREFER_NO_SCHEDULE),
        Taint(key="ok", effect=NO_SCHEDULE),
        Taint(key="b", effect=NO_SCHEDULE),
        Taint(key="d", effect=NO_EXECUTE),
    ]
    found = find_untolerated_taint(taints, [Toleration(key="ok", operator="Exists")], effects)
    assert (found.key if found else None) == expected


def test_the_cordon_taint() -> None:
    assert tolerates(Toleration(key="node.kubernetes.io/unschedulable", operator="Exists"), UNSCHEDULABLE)
    assert not tolerates(Toleration(key=UNSCHEDULABLE.key, operator="Exists", effect=NO_EXECUTE), UNSCHEDULABLE)


def test_times_of_taints_are_decoded_and_ignored_in_comparisons() -> None:
    text = b'[{"key":"gpu","value":"a100","effect":"NoSchedule","timeAdded":"2026-01-02T03:04:05Z"}]'
    taints = msgspec.json.decode(text, type=tuple[Taint, ...])
    assert msgspec.json.encode(taints) == text
    assert taints != (GPU,)
    assert without_times(taints) == (GPU,)
    assert without_times((GPU,)) == (GPU,)
