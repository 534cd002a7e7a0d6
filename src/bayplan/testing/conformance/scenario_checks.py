"""Validates the structure of a scenario.

Users write scenarios by hand. The answer to an invalid line contains the error, so that the remaining lines are still
answered. Objects are not validated here; their decoding reports errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bayplan.objects.kinds import KINDS

_LISTS = frozenset({kind.plural for kind in KINDS} | {"pending", "steps", "events", "ops", "plugins"})
_STEPS: dict[str, type] = {
    "schedule": dict,
    "addNode": dict,
    "setNode": dict,
    "dropNode": str,
    "dropPod": str,
    "relabel": str,
}
_WORDS: dict[type, str] = {dict: "an object", str: "a text"}
_FORMAT = "see docs/conformance.md for the format"


def scenario_error(scenario: dict[str, Any]) -> str | None:
    """Return the first error; None if the scenario is valid."""
    return next(_scenario_errors(scenario), None)


def _scenario_errors(scenario: dict[str, Any]) -> Iterator[str]:
    for key in ("name", "config"):
        if not isinstance(scenario.get(key) or "", str):
            yield f"{key} is not a text; {_FORMAT}"
    for key, value in scenario.items():
        if key.lower() in _LISTS and value is not None:
            yield from _list_errors(key, value)
    for number, step in enumerate(scenario.get("steps") or ()):
        yield from _step_errors(f"steps[{number}]", step)


def _list_errors(key: str, value: Any) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{key} is not a list; {_FORMAT}"
        return
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            yield f"{key}[{number}] is not an object; {_FORMAT}"


def _step_errors(where: str, step: dict[str, Any]) -> Iterator[str]:
    actions = [key for key in step if key in _STEPS]
    unknown = [key for key in step if key not in _STEPS and not (key == "labels" and "relabel" in step)]
    if unknown or len(actions) != 1:
        problem = f'has the unknown action "{unknown[0]}"' if unknown else f"has {len(actions)} actions"
        yield f"{where} {problem}; a step has one of {', '.join(_STEPS)}"
        return
    (action,) = actions
    if not isinstance(step[action], _STEPS[action]):
        yield f"{where}.{action} is not {_WORDS[_STEPS[action]]}; {_FORMAT}"
    if action == "relabel" and not _are_labels(step.get("labels")):
        yield f"{where}.labels is not a map of texts; give the labels that the pod gets"


def _are_labels(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
