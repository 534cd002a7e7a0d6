"""State of a queue after it is opened, closed or synced: Volcano's state machine. Pure function."""

from __future__ import annotations

from bayplan.objects.volcano.constants import CLOSE_QUEUE, CLOSED, CLOSING, OPEN, OPEN_QUEUE, UNKNOWN

SYNC_QUEUE = "SyncQueue"
CLOSED_STATES = (CLOSED, CLOSING)


def state_after(state: str, action: str, groups: int) -> str:
    """State after an action. `groups`: number of the queue's pod groups."""
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
