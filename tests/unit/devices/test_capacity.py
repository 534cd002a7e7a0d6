"""Consumed capacity of requests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.codec.quantity import parse_quantity
from bayplan.devices.capacity import consumed_capacity, fits
from bayplan.objects.resource import DeviceCapacity


def memory(value: str, **policy: Any) -> dict[str, DeviceCapacity]:
    raw = {"value": value, **({"requestPolicy": policy} if policy else {})}
    return {"memory": msgspec.convert(raw, DeviceCapacity)}


RANGE = {"validRange": {"min": "2Gi", "step": "1Gi", "max": "6Gi"}}
VALUES = {"validValues": ["1Gi", "4Gi", "8Gi"]}


@pytest.mark.parametrize(
    ("capacities", "requested", "amount"),
    [
        pytest.param(memory("8Gi"), None, "8Gi", id="everything-without-a-request"),
        pytest.param(memory("8Gi", default="1Gi"), None, "1Gi", id="the-default-without-a-request"),
        pytest.param(memory("8Gi"), "3Gi", "3Gi", id="the-requested-amount"),
        pytest.param(memory("8Gi", default="1Gi"), "3Gi", "3Gi", id="the-requested-amount-over-the-default"),
        pytest.param(memory("8Gi", **RANGE), "1Gi", "2Gi", id="at-least-the-minimum"),
        pytest.param(memory("8Gi", **RANGE), "2.5Gi", "3Gi", id="up-to-the-next-step"),
        pytest.param(memory("8Gi", **RANGE), "3Gi", "3Gi", id="on-a-step"),
        pytest.param(memory("8Gi", validRange={"min": "2Gi"}), "2.5Gi", "2560Mi", id="no-steps"),
        pytest.param(memory("8Gi", validRange={"max": "6Gi"}), "1", "1", id="no-minimum"),
        pytest.param(memory("8Gi", **VALUES), "2Gi", "4Gi", id="next-larger-value"),
        pytest.param(memory("8Gi", **VALUES), "9Gi", "9Gi", id="larger-than-all-values"),
    ],
)
def test_amounts(capacities: dict[str, DeviceCapacity], requested: str | None, amount: str) -> None:
    wanted = {} if requested is None else {"memory": requested}
    assert consumed_capacity(wanted, capacities)["memory"].compare(parse_quantity(amount)) == 0


@pytest.mark.parametrize(
    ("capacities", "requested", "fit"),
    [
        pytest.param(memory("8Gi"), {}, True, id="all-of-it"),
        pytest.param(memory("8Gi"), {"memory": "9Gi"}, False, id="more-than-there-is"),
        pytest.param(memory("8Gi"), {"cores": "1"}, False, id="a-capacity-the-device-lacks"),
        pytest.param({}, {}, True, id="no-capacities"),
        pytest.param(memory("8Gi", **RANGE), {"memory": "6Gi"}, True, id="at-the-maximum"),
        pytest.param(memory("8Gi", **RANGE), {"memory": "6.5Gi"}, False, id="above-the-maximum"),
        pytest.param(memory("8Gi", **RANGE), {}, False, id="all-of-it-is-above-the-maximum"),
        pytest.param(memory("8Gi", **VALUES), {"memory": "8Gi"}, True, id="a-valid-value"),
        pytest.param(memory("12Gi", **VALUES), {"memory": "9Gi"}, False, id="no-valid-value"),
        pytest.param(memory("12Gi", **VALUES), {}, False, id="all-of-it-is-no-valid-value"),
        pytest.param(memory("12Gi", **VALUES, default="12Gi"), {}, True, id="the-default-is-always-fine"),
        pytest.param(memory("12Gi", **VALUES, default="9Gi"), {"memory": "9Gi"}, True, id="so-is-asking-for-it"),
        pytest.param(memory("12Gi", **VALUES, default="9Gi"), {"memory": "9216Mi"}, False, id="in-its-own-spelling"),
        pytest.param(memory("8Gi", validRange={"min": "1", "step": "0"}), {"memory": "3"}, True, id="steps-of-nothing"),
        pytest.param(memory("8192Mi", validValues=["8Gi"]), {}, True, id="equal-in-another-spelling"),
    ],
)
def test_room(capacities: dict[str, DeviceCapacity], requested: dict[str, str], fit: bool) -> None:
    assert fits(requested, capacities) is fit


@pytest.mark.parametrize(
    ("others", "fit"),
    [
        pytest.param(["2Gi"], True, id="one-share"),
        pytest.param(["2Gi", "3Gi"], True, id="up-to-the-brim"),
        pytest.param(["2Gi", "3Gi", "1"], False, id="one-byte-too-much"),
    ],
)
def test_other_shares_count(others: list[str], fit: bool) -> None:
    held = [{"memory": parse_quantity(amount)} for amount in others]
    assert fits({"memory": "3Gi"}, memory("8Gi"), held) is fit
