"""Fixtures: an environment and a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bayplan.cel import CompileError, DeviceEnvironment, DeviceView, EvaluationError, Semver
from bayplan.codec.quantity import Quantity

Evaluate = Callable[[str], "bool | str"]

ENVIRONMENT = DeviceEnvironment(parse_quantity=Quantity.parse)
GPU = DeviceView(
    driver="gpu.example.com",
    attributes={
        "model": "h100",
        "index": 2,
        "healthy": True,
        "firmware": Semver.parse("1.10.0"),
        "fabric.example.com/plane": "p1",
    },
    capacity={"memory": Quantity.parse("40Gi"), "cores": Quantity.parse("16")},
)


@pytest.fixture(scope="session")
def environment() -> DeviceEnvironment:
    return ENVIRONMENT


@pytest.fixture(scope="session")
def gpu() -> DeviceView:
    return GPU


@pytest.fixture(scope="session")
def evaluate() -> Evaluate:
    """The result for the device: true, false, or the error text. `attr` is short for its attributes."""

    def run(expression: str) -> bool | str:
        text = expression.replace("attr.", 'device.attributes["gpu.example.com"].')
        try:
            return ENVIRONMENT.compile(text).evaluate(GPU)
        except CompileError as error:
            return f"refused: {str(error).splitlines()[0]}"
        except EvaluationError as error:
            return f"failed: {error}"

    return run
