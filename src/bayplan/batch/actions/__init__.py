"""Volcano's actions, one module each."""

from __future__ import annotations

from bayplan.batch.actions.allocate import Allocate
from bayplan.batch.actions.backfill import Backfill
from bayplan.batch.actions.enqueue import Enqueue
from bayplan.batch.actions.gangpreempt import GangPreempt
from bayplan.batch.actions.gangreclaim import GangReclaim
from bayplan.batch.actions.preempt import Preempt
from bayplan.batch.actions.reclaim import Reclaim
from bayplan.batch.actions.shuffle import Shuffle
from bayplan.batch.registry import ActionSet

__all__ = ["default_actions"]


def default_actions() -> ActionSet:
    """Return new instances of the built-in actions; an action stores its arguments, so instances are not shared."""
    return ActionSet.of(
        Enqueue(), Allocate(), Backfill(), Preempt(), Reclaim(), Shuffle(), GangPreempt(), GangReclaim()
    )
