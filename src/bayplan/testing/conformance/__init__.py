"""Recorded clusters with the real scheduler's answers: what Bayplan says of them, and whether it agrees."""

from bayplan.testing.conformance.comparison import Disagreement, disagreements
from bayplan.testing.conformance.runner import answer
from bayplan.testing.conformance.scenario_file import Line, LineKind, read_lines

__all__ = ["Disagreement", "Line", "LineKind", "answer", "disagreements", "read_lines"]
