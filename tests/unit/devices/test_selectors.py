"""Evaluation of selectors, and caching of their results."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.cel import DeviceEnvironment, EvaluationError
from bayplan.devices.errors import AllocationError
from bayplan.devices.pools import PoolDevice
from bayplan.devices.selectors import DeviceSelectors, device_view
from bayplan.objects.resource import Device, DeviceAttribute
from support.builders.devices import DRIVER, device, make_class, make_slice


def published(item: Device) -> PoolDevice:
    return PoolDevice(make_slice(item, node="n"), item)


RICH = published(
    Device(
        "a",
        attributes={
            "s": DeviceAttribute(string="x"),
            "i": DeviceAttribute(int_=0),
            "b": DeviceAttribute(bool_=False),
            "v": DeviceAttribute(version="1.2.3"),
        },
        capacity=device("a", api={"capacity": {"memory": {"value": "1Gi"}}}).capacity,
        allow_multiple_allocations=True,
    )
)


@pytest.mark.parametrize(
    "expression",
    [
        'device.driver == "gpu.example.com"',
        "device.allowMultipleAllocations",
        'device.attributes["gpu.example.com"].s == "x"',
        'device.attributes["gpu.example.com"].i == 0',
        '!device.attributes["gpu.example.com"].b',
        'device.attributes["gpu.example.com"].v.isGreaterThan(semver("1.2.2"))',
        'device.capacity["gpu.example.com"].memory.compareTo(quantity("1024Mi")) == 0',
    ],
)
def test_selectors_see_everything_with_its_type(expression: str) -> None:
    assert DeviceSelectors().in_class(make_class("gpu", expression), RICH)


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        pytest.param(DeviceAttribute(), "attribute x: unsupported attribute value", id="no-value"),
        pytest.param(DeviceAttribute(version="one"), "attribute x: parse semantic version: ", id="no-version"),
    ],
)
def test_an_unreadable_attribute_is_an_error_for_every_selector(attribute: DeviceAttribute, text: str) -> None:
    broken = published(Device("a", attributes={"x": attribute}))
    with pytest.raises(EvaluationError, match=text):
        device_view(DRIVER, broken.device)
    with pytest.raises(AllocationError, match=f"class gpu: selector #0: CEL runtime error: {text}"):
        DeviceSelectors().in_class(make_class("gpu", "true"), broken)


def test_an_expression_is_compiled_and_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_ = DeviceEnvironment.compile

    def counting(self: DeviceEnvironment, text: str) -> Any:
        compiled.append(text)
        return compile_(self, text)

    monkeypatch.setattr(DeviceEnvironment, "compile", counting)
    selectors, device_class = DeviceSelectors(), make_class("gpu", "true", 'device.driver == "gpu.example.com"')
    one, two = published(device("a")), published(device("b"))
    assert [selectors.in_class(device_class, item) for item in (one, two, one)] == [True, True, True]
    assert compiled == ["true", 'device.driver == "gpu.example.com"']
    assert one.verdicts == {"true": True, 'device.driver == "gpu.example.com"': True}


def test_cached_results_are_bounded() -> None:
    selectors, item = DeviceSelectors(), published(device("a"))
    for number in range(200):
        assert selectors.in_class(make_class("gpu", f"{number} >= 0"), item)
    assert len(item.verdicts) <= 64
