"""The loader accepts and refuses the same configurations as kube-scheduler 1.36.4, with the same messages.

Two sets of results of kube-scheduler's own code: the configurations of the general conformance data, and texts with
every error that a decoder and a validator can report, each with its error or its complete dump.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.codec.field_errors import FieldPath, aggregate
from bayplan.config.load import dump, load
from bayplan.config.model import Configuration
from bayplan.errors import ConfigError
from bayplan.plugins.args_kinds import ARGS_KINDS

DATA = Path(__file__).parent / "data"
LOADING_STAGES = ("config:", "invalid:")


def lines(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def scenarios() -> list[Any]:
    return [
        pytest.param(line["scenario"]["config"], line["expected"].get("error", ""), id=line["scenario"]["name"])
        for line in lines("kube-scheduler-1.36.jsonl.gz")
        if line["scenario"]["name"].startswith("configuration-")
    ]


def refusal(text: str) -> str:
    try:
        load(text, ARGS_KINDS)
    except ConfigError as error:
        return f"{error.stage}: {error}"
    return ""


@pytest.mark.parametrize(("text", "expected"), scenarios())
def test_scenarios_load_or_are_refused_word_for_word(text: str, expected: str) -> None:
    assert refusal(text) == (expected if expected.startswith(LOADING_STAGES) else "")


def answer(text: str) -> dict[str, Any]:
    try:
        configuration = load(text, ARGS_KINDS)
    except ConfigError as error:
        return {"error": f"{error.stage}: {error}"}
    faults = fit_faults(configuration)
    return {"dump": dump(configuration)} | ({"fit": faults} if faults else {})


def fit_faults(configuration: Configuration) -> list[str]:
    """The error of the plugin's constructor, which validates its arguments."""
    kind = ARGS_KINDS["NodeResourcesFit"]
    given = [profile.plugin_config.get("NodeResourcesFit") for profile in configuration.profiles]
    found = [kind.validate(args, FieldPath()) for args in given if args is not None]
    return [aggregate(errors) for errors in found if errors]


def test_invalid_texts() -> None:
    differing = [
        (line["config"], line["expected"], found)
        for line in lines("configuration-1.36.jsonl.gz")
        if (found := answer(line["config"])) != line["expected"]
    ]
    assert differing == []
