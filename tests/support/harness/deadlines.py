"""How long tests wait for what has to happen. A deadline, never a pause: it costs nothing where all is well.

Generous, because a machine that is shared may stand still for a minute, and that says nothing about the code.
"""

DEADLINE_S = 240.0
"""For one thing to happen, or one command to end."""

TEST_TIMEOUT_S = 2 * DEADLINE_S
"""For one test: those that take longer hang."""
