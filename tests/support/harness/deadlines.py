"""Timeouts of tests. They are deadlines, never pauses: they cost nothing when a test passes.

They are generous, because a shared machine may be stalled for a minute without a fault of the code.
"""

DEADLINE_S = 240.0
"""For one condition or one command."""

TEST_TIMEOUT_S = 2 * DEADLINE_S
"""For one test; a longer test counts as hanging."""
