"""Conformance: replays recorded scenarios on Bayplan and compares its answers with those of the real schedulers."""

from bayplan.testing.conformance.comparison import Disagreement, compare_answers
from bayplan.testing.conformance.runner import run_scenario
from bayplan.testing.conformance.scenario_file import ScenarioKind, ScenarioLine, read_lines

__all__ = ["Disagreement", "ScenarioKind", "ScenarioLine", "compare_answers", "read_lines", "run_scenario"]
