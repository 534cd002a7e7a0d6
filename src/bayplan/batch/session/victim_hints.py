"""Hints of plugins about their victims, which reduce the number of calls per node.

Passed to `add_preemptable_fn` and `add_reclaimable_fn`; read by the actions that evict for one task. Hints change no
answer: a plugin without hints is called for every node, every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from bayplan.batch.model.jobs import Job
from bayplan.batch.model.tasks import Task


class VictimDependence(Enum):
    """What a plugin's answer for a node depends on, besides the node's tasks and the spec of the preemptor."""

    JOBS = "jobs"
    """Only on the allocated resources of their jobs."""

    SHRINKING = "shrinking"
    """On anything; but during a statement the plugin names ever fewer victims."""

    ANYTHING = "anything"


@dataclass(frozen=True, slots=True)
class VictimHints:
    depends_on: VictimDependence = VictimDependence.ANYTHING
    never_evicts: Callable[[Job, Task], bool] | None = None
    """(job, task): `job` is that of the preemptor. True if the plugin never returns this task, nor another task of the
    same victim job with an equal request, as a victim for `job`. Must hold for the whole statement, however many other
    tasks are evicted."""


NO_VICTIM_HINTS = VictimHints()


def is_cacheable(tiers: Sequence[Sequence[VictimHints]]) -> bool:
    """Whether rejections can be cached: not if an answer can depend on anything."""
    return not any(each.depends_on is VictimDependence.ANYTHING for tier in tiers for each in tier)


def is_final(tiers: Sequence[Sequence[VictimHints]]) -> bool:
    """Whether a row without enough victims stays so until the row, or the job of a task on it, changes.

    When a plugin names fewer victims, its tier may have no answer, and the next tier is asked. In a tier of three or
    more plugins, the third may decide alone when the first two no longer agree on a victim. So only the last tier may
    be `SHRINKING`, and only with at most two plugins.
    """
    if not tiers:
        return True
    shrinking = [any(each.depends_on is VictimDependence.SHRINKING for each in tier) for tier in tiers]
    return is_cacheable(tiers) and not any(shrinking[:-1]) and (not shrinking[-1] or len(tiers[-1]) <= 2)
