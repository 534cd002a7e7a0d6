"""Where can the binder die? Its steps by name, and a process that ends itself at one of them.

Whoever tests what a crash leaves behind names the step and need not guess a moment. Costs a call that does nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

TAKEN = "taken"
RESERVED = "reserved"
"""A reservation pod is there; the pod does not say so yet."""
LABELLED = "labelled"
PREPARED = "prepared"
"""Every plugin has done its part."""
BOUND = "bound"
"""The API server has the binding."""
FINISHED = "finished"
"""The plugins know, too; the request does not say so yet."""
BROKEN = "broken"
"""Something failed; nothing was taken back yet."""
ROLLED_BACK = "rolled-back"

STEPS = (TAKEN, RESERVED, LABELLED, PREPARED, BOUND, FINISHED, BROKEN, ROLLED_BACK)

Reached = Callable[[str], None]


def unarmed(step: str) -> None:
    """Nobody waits for a step."""


def dying_at(step: str, times: int = 1) -> Reached:
    """End this process, without any further word, when the step is reached for the `times`-th time; "": any step."""
    left = times

    def reached(name: str) -> None:
        nonlocal left
        if step in ("", name):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached
