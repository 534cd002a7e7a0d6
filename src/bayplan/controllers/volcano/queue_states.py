"""A queue is in this state and is opened, closed or looked at: what is it then? Volcano's table. Pure."""

from __future__ import annotations

from bayplan.objects.volcano.constants import (
    CLOSE_QUEUE,
    CLOSED,
    CLOSING,
    OPEN,
    OPEN_QUEUE,
    UNKNOWN,
)

SYNC_QUEUE = "SyncQueue"
CLOSED_STATES = (CLOSED, CLOSING)


def state_after(state: str, action: str, groups: int) -> str:
    """The state after an action; `groups`: how many pod groups the queue has."""
    if action == OPEN_QUEUE:
        return OPEN
    closing = CLOSING if groups else CLOSED
    if action == CLOSE_QUEUE:
        return CLOSED if state == CLOSED else closing
    if state in ("", OPEN):
        return OPEN
    if state == CLOSED:
        return CLOSED
    return closing if state == CLOSING else UNKNOWN
