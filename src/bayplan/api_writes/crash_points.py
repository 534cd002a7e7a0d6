"""Where can a process die that has pods bound? Its steps by name, and a process that ends itself at one of them.

Whoever tests what a crash leaves behind names the step, and need not guess a moment: `BAYPLAN_DIE_AT=bound`, or
`BAYPLAN_DIE_AT=requested:2` for the second time that the step is reached. Costs a call that does nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from bayplan.errors import UsageError

VARIABLE = "BAYPLAN_DIE_AT"

# of whoever places pods
REQUESTED = "requested"
"""The API server has the BindRequest of a pod; nobody was told yet."""
EVICTED = "evicted"
"""Victims were told to go; who comes in their place has no node yet."""

# of whoever binds them
TAKEN = "taken"
RESERVED = "reserved"
"""A reservation pod is there; the pod does not say so yet."""
LABELLED = "labelled"
PROMISED = "promised"
"""Volumes are promised to the pod's claims, or nodes named for them; nobody has bound them yet."""
PREPARED = "prepared"
"""Every plugin has done its part."""
BOUND = "bound"
"""The API server has the binding."""
FINISHED = "finished"
"""The plugins know, too; the request does not say so yet."""
BROKEN = "broken"
"""Something failed; nothing was taken back yet."""
ROLLED_BACK = "rolled-back"

STEPS = (REQUESTED, EVICTED, TAKEN, RESERVED, LABELLED, PROMISED, PREPARED, BOUND, FINISHED, BROKEN, ROLLED_BACK)
ANY = "any"

Reached = Callable[[str], None]


def unarmed(step: str) -> None:
    """Nobody waits for a step."""


def armed(environment: Mapping[str, str]) -> Reached:
    """What the variable of an environment asks for."""
    text = environment.get(VARIABLE, "")
    if not text:
        return unarmed
    step, _, times = text.partition(":")
    if step not in (*STEPS, ANY) or not (times or "1").isdecimal() or times == "0":
        raise UsageError(f'{VARIABLE} is "{text}"; it takes a step ({", ".join(STEPS)}, {ANY}), or step:times')
    return dying_at(step, int(times or "1"))


def dying_at(step: str, times: int = 1) -> Reached:
    """End this process, without any further word, when the step is reached for the `times`-th time."""
    left = times

    def reached(name: str) -> None:
        nonlocal left
        if step in (ANY, name):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached
