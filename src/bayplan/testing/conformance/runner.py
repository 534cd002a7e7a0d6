"""Runs one scenario on Bayplan. The expected answer is never read here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bayplan.errors import BayplanError
from bayplan.framework.runtime.registry import Registry
from bayplan.testing.conformance.attempts import answer_attempts
from bayplan.testing.conformance.batch_sessions import answer_session
from bayplan.testing.conformance.configurations_answer import answer_configuration
from bayplan.testing.conformance.hint_events import answer_hints
from bayplan.testing.conformance.placement_series import answer_series
from bayplan.testing.conformance.queue_operations import answer_queue
from bayplan.testing.conformance.scenario_file import ScenarioKind, ScenarioLine

_RUNNERS: dict[ScenarioKind, Callable[[dict[str, Any], Registry], dict[str, Any]]] = {
    ScenarioKind.ATTEMPT: answer_attempts,
    ScenarioKind.CONFIGURATION: answer_configuration,
    ScenarioKind.SERIES: answer_series,
    ScenarioKind.HINTS: answer_hints,
    ScenarioKind.QUEUE: answer_queue,
}


def run_scenario(line: ScenarioLine, registry: Registry) -> dict[str, Any]:
    """Return the answer in the format of `expected`; a line without an answer gets a `failure` with the reason."""
    if line.fault:
        return _failure(line, line.fault)
    try:
        if line.kind is ScenarioKind.BATCH:
            return answer_session(line.scenario, registry, exact=line.exact is not False, varying=line.varying)
        return _RUNNERS[line.kind](line.scenario, registry)
    except BayplanError as fault:
        return _failure(line, str(fault))
    except Exception as bug:  # a bug in one scenario must not prevent the answers to the remaining ones
        return _failure(line, f"internal error, {type(bug).__name__}: {bug}; please report the scenario")


def _failure(line: ScenarioLine, message: str) -> dict[str, Any]:
    return {"name": line.name, "failure": message}
