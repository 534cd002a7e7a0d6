"""What a plugin can say about its victims in advance, so that fewer nodes have to be asked about one by one.

Given with `add_preemptable_fn` and `add_reclaimable_fn`, read by the actions that evict for one task. It changes no
answer, only how many questions are asked: a plugin that says nothing is asked about every node, every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from bayplan.batch.model.jobs import Job
from bayplan.batch.model.tasks import Task


class VictimDependence(Enum):
    """On what the word about the tasks of one node rests, besides those tasks and the spec of who evicts."""

    JOBS = "jobs"
    """On what their own jobs hold, on nothing else that a session changes."""

    SHRINKING = "shrinking"
    """On whatever it may be; but as long as a statement lasts it names ever fewer of them."""

    ANYTHING = "anything"


@dataclass(frozen=True, slots=True)
class VictimHints:
    """One plugin's."""

    depends_on: VictimDependence = VictimDependence.ANYTHING
    never_evicts: Callable[[Job, Task], bool] | None = None
    """(job, task): neither this task, nor any other of its job that asks for as much, goes for a task of this job as
    long as the statement at hand lasts, however many others go."""


NO_VICTIM_HINTS = VictimHints()


def is_cacheable(tiers: Sequence[Sequence[VictimHints]]) -> bool:
    """Whether a plugin's no can be remembered at all; not if somebody's word may rest on anything."""
    return not any(each.depends_on is VictimDependence.ANYTHING for tier in tiers for each in tier)


def is_final(tiers: Sequence[Sequence[VictimHints]]) -> bool:
    """Whether a row without enough victims stays so until it, or the job of somebody on it, changes.

    Where a plugin names fewer, its tier may fall silent and the next be asked; and within a tier of three or more, the
    third may speak alone where the first two agree on nobody any more. So only the last tier may shrink, and only
    where it has no third.
    """
    if not tiers:
        return True
    shrinking = [any(each.depends_on is VictimDependence.SHRINKING for each in tier) for tier in tiers]
    return is_cacheable(tiers) and not any(shrinking[:-1]) and (not shrinking[-1] or len(tiers[-1]) <= 2)
