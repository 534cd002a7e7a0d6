"""Constraints between the devices of a claim."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.devices.constraints import AllocationConstraint, make_constraint
from bayplan.devices.identity import DeviceId
from bayplan.objects.resource import Device, DeviceConstraint
from support.builders.devices import DRIVER, device

MODEL = f"{DRIVER}/model"


def make(**fields: Any) -> AllocationConstraint:
    made = make_constraint(msgspec.convert(fields, DeviceConstraint))
    assert made is not None
    return made


def join(constraint: AllocationConstraint, *candidates: Device, request: str = "r", sub: str = "") -> list[bool]:
    return [constraint.add(request, sub, DeviceId(DRIVER, "p", item.name), item) for item in candidates]


X, ALSO_X, Y = device("1", model="x"), device("2", model="x"), device("3", model="y")
NONE = device("4")


@pytest.mark.parametrize(
    ("devices", "answers"),
    [
        pytest.param([X, ALSO_X], [True, True], id="same-value"),
        pytest.param([X, Y, ALSO_X], [True, False, True], id="another-value"),
        pytest.param([NONE, X], [False, True], id="no-value"),
        pytest.param([device("1", model=1), device("2", model=True)], [True, False], id="another-type"),
        pytest.param([device("1", model=1), device("2", model=1)], [True, True], id="numbers"),
    ],
)
def test_match(devices: list[Device], answers: list[bool]) -> None:
    assert join(make(matchAttribute=MODEL), *devices) == answers


def test_match_starts_again_when_all_devices_are_removed() -> None:
    constraint = make(matchAttribute=MODEL)
    assert join(constraint, X) == [True]
    constraint.remove("r", "")
    assert join(constraint, Y, X) == [True, False]


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        pytest.param({MODEL: "x"}, True, id="full-name"),
        pytest.param({"model": "x"}, True, id="bare-name-in-the-drivers-domain"),
        pytest.param({"other.example.com/model": "x"}, False, id="another-domain"),
    ],
)
def test_attributes_are_found_by_name(attributes: dict[str, str], found: bool) -> None:
    assert join(make(matchAttribute=MODEL), device("1", **attributes)) == [found]


def test_a_bare_name_does_not_match_other_domains() -> None:
    assert join(make(matchAttribute="other.example.com/model"), X) == [False]


def test_distinct_devices_of_two_requests_differ() -> None:
    constraint = make(distinctAttribute=MODEL)
    assert join(constraint, X, request="r0") == [True]
    assert join(constraint, ALSO_X, Y, request="r1") == [False, True]


def test_distinct_stores_only_the_last_device_of_a_request() -> None:
    assert join(make(distinctAttribute=MODEL), X, Y, ALSO_X) == [True, True, True]
    assert join(make(distinctAttribute=MODEL), X, ALSO_X) == [True, False]


def test_distinct_drops_a_request_when_one_of_its_devices_is_removed() -> None:
    constraint = make(distinctAttribute=MODEL)
    assert join(constraint, X, Y, request="r0") == [True, True]
    constraint.remove("r0", "")
    assert join(constraint, ALSO_X, request="r1") == [True]


def test_distinct_needs_the_attribute() -> None:
    assert join(make(distinctAttribute=MODEL), NONE) == [False]


@pytest.mark.parametrize(
    ("requests", "concerned"),
    [
        pytest.param([], True, id="everything"),
        pytest.param(["r"], True, id="the-request"),
        pytest.param(["r/s"], True, id="the-alternative"),
        pytest.param(["r/t", "q"], False, id="others"),
    ],
)
@pytest.mark.parametrize("kind", ["matchAttribute", "distinctAttribute"])
def test_a_constraint_may_apply_to_some_requests(kind: str, requests: list[str], concerned: bool) -> None:
    constraint = make(requests=requests, **{kind: MODEL})
    assert join(constraint, NONE, request="r", sub="s") == [not concerned]
    assert join(constraint, X, request="r", sub="s") == [True]


def test_a_constraint_of_an_unknown_kind_is_none() -> None:
    assert make_constraint(DeviceConstraint()) is None
