"""Numbers that identify tasks with equal pod specs.

Pods of a gang have equal specs. Comparing a spec with that of the previous task costs a microsecond; evaluating it in
every plugin costs fifty. Plugins cache their evaluation by the template number.
"""

from __future__ import annotations

from itertools import count

from bayplan.batch.model.tasks import Task
from bayplan.objects.core import PodSpec
from bayplan.snapshot import InternTables, PodInfo

_FROM_SPEC = ("requests", "nonzero", "host_ports")
"""Values that a `PodInfo` derives from the spec alone, unless a container is being resized."""


class PodTemplateIndex:
    """Template numbers. Equal specs can have two numbers; one number never stands for different specs."""

    def __init__(self, vocabulary: InternTables) -> None:
        self._vocabulary = vocabulary
        self._last: dict[tuple[str, str], tuple[PodSpec, int, PodInfo]] = {}  # by job and role
        self._numbers = count(1)

    def template_number(self, task: Task) -> int:
        if task.template is not None:
            return task.template
        key = (task.job, task.role)
        last = self._last.get(key)
        if last is not None and last[0] == task.pod.spec:
            number = last[1]
            _share_derived_values(last[2], task.info, self._vocabulary)
        else:
            number = next(self._numbers)
            self._last[key] = (task.pod.spec, number, task.info)
        task.template = number
        return number

    def forget(self, job: str) -> None:
        """Drop the templates of a deleted job."""
        for key in [key for key in self._last if key[0] == job]:
            del self._last[key]


def _share_derived_values(known: PodInfo, fresh: PodInfo, vocabulary: InternTables) -> None:
    """Copy the values that the first pod of a template derived to the second."""
    if known.pod.status.container_statuses or fresh.pod.status.container_statuses:
        return
    for name in _FROM_SPEC:
        fresh.__dict__[name] = getattr(known, name)
    fresh.share_row_amounts(known, vocabulary)
    if not fresh.pod.spec.volumes:
        fresh.__dict__["claim_keys"] = ()
    if fresh.pod.spec.affinity is None:
        fresh.__dict__["affinity"] = None
