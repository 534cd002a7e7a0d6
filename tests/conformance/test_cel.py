"""CEL device selectors give the results of kube-scheduler 1.36.4's own evaluator.

`cel.json.gz` has the results of 118 expressions for 40 devices each. `cel-more.json.gz` covers the language and its
libraries, 6 devices each: with the complete compile errors and with the cost of every evaluation.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bayplan.cel import AttributeValue, CompileError, DeviceEnvironment, DeviceView, EvaluationError, Semver
from bayplan.codec.quantity import Quantity

DATA = Path(__file__).parent / "data"
ENVIRONMENT = DeviceEnvironment(parse_quantity=Quantity.parse)


@cache
def recorded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress((DATA / name).read_bytes()))
    return content


@cache
def devices(name: str) -> list[DeviceView]:
    content = recorded(name)
    return [view(content["driver"], device) for device in content["devices"]]


def view(driver: str, device: dict[str, Any]) -> DeviceView:
    return DeviceView(
        driver=driver,
        allow_multiple_allocations=device.get("allowMultipleAllocations", False),
        attributes={name: attribute(value) for name, value in device.get("attributes", {}).items()},
        capacity={name: Quantity.parse(value["value"]) for name, value in device.get("capacity", {}).items()},
    )


def attribute(value: dict[str, Any]) -> AttributeValue:
    ((kind, held),) = value.items()
    return Semver.parse(held) if kind == "version" else held


def answer(expression: str, device: DeviceView) -> bool | str:
    try:
        return ENVIRONMENT.compile(expression).evaluate(device)
    except CompileError:
        return "COMPILE"
    except EvaluationError as error:
        return f"ERR {error}"


@pytest.mark.parametrize("entry", recorded("cel.json.gz")["expressions"], ids=lambda e: e["expression"])
def test_every_answer_for_every_device(entry: dict[str, Any]) -> None:
    assert [answer(entry["expression"], device) for device in devices("cel.json.gz")] == entry["answers"]


def test_the_recording_is_whole() -> None:
    content = recorded("cel.json.gz")
    assert (len(content["expressions"]), len(content["devices"])) == (118, 40)


def entries(part: str) -> list[dict[str, Any]]:
    return [entry for entry in recorded("cel-more.json.gz")["expressions"] if part in entry]


def test_answers_across_the_language() -> None:
    wrong = []
    for entry in entries("answers"):
        found = [answer(entry["expression"], device) for device in devices("cel-more.json.gz")]
        if found != entry["answers"]:
            wrong.append((entry["expression"], found, entry["answers"]))
    assert not wrong


def test_costs_across_the_language() -> None:
    wrong = []
    for entry in entries("costs"):
        compiled = ENVIRONMENT.compile(entry["expression"])
        found = [compiled.cost(device) for device in devices("cel-more.json.gz")]
        if found != entry["costs"]:
            wrong.append((entry["expression"], found, entry["costs"]))
    assert not wrong


def refusal(expression: str) -> str:
    with pytest.raises(CompileError) as caught:
        ENVIRONMENT.compile(expression)
    return str(caught.value)


def test_refusals_across_the_language() -> None:
    """Compare word for word; of a syntax error only the position is compared, not ANTLR's list of expected tokens."""
    wrong = []
    for entry in entries("compile"):
        found, wanted = refusal(entry["expression"]), entry["compile"]
        if "Syntax error" in wanted:
            found, wanted = found.partition("Syntax error")[0], wanted.partition("Syntax error")[0]
        if found != wanted:
            wrong.append((entry["expression"], found, wanted))
    assert not wrong
