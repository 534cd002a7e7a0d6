"""Recorded clusters with the real scheduler's answers: what Bayplan says of them, and whether it agrees."""

from bayplan.testing.conformance.compare import Disagreement, disagreements
from bayplan.testing.conformance.lines import Line, LineKind, read_lines
from bayplan.testing.conformance.run import answer

__all__ = ["Disagreement", "Line", "LineKind", "answer", "disagreements", "read_lines"]
