"""Division of jobs and nodes among several schedulers with the same name, as in Volcano.

Enabled by `MULTI_SCHEDULER_ENABLE=true`. Each scheduler knows the number of schedulers (`SCHEDULER_NUM`) and its own
index (from `SCHEDULER_POD_NAME`, the name of a StatefulSet's pod). A consistent hash ring assigns jobs and nodes. The
ring equals Volcano's, point by point, so that Bayplan and Volcano schedulers can run side by side. Cost: one checksum
and a binary search per event of a pod, pod group or node.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from zlib import crc32

from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import PodGroup

_POINTS_PER_NAME = 20
"""Points of each scheduler on the ring."""


class HashRing:
    """Consistent hash ring: most words keep their name when a name is added or removed."""

    def __init__(self, names: Iterable[str]) -> None:
        points = {crc32(f"{number}{name}".encode()): name for name in names for number in range(_POINTS_PER_NAME)}
        self._hashes = sorted(points)
        self._names = [points[each] for each in self._hashes]

    def name_for(self, word: str) -> str:
        position = bisect_right(self._hashes, crc32(word.encode()))
        return self._names[position % len(self._names)]


@dataclass(frozen=True, slots=True)
class MultiScheduler:
    """One of several schedulers with the same name."""

    own: str
    count: int
    _ring: HashRing = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        base = self.own.rpartition("-")[0]
        object.__setattr__(self, "_ring", HashRing(f"{base}-{number}" for number in range(self.count)))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> MultiScheduler | None:
        """Read Volcano's environment variables; None if there is only one scheduler."""
        if environment.get("MULTI_SCHEDULER_ENABLE") != "true":
            return None
        count = environment.get("SCHEDULER_NUM", "")
        is_number = count.isascii() and count.isdigit() and int(count) > 0
        return cls(environment.get("SCHEDULER_POD_NAME", ""), int(count) if is_number else 1)

    def validation_error(self) -> str:
        """The error in the settings; "" if they are valid."""
        _, dash, number = self.own.rpartition("-")
        if dash and number.isascii() and number.isdigit() and int(number) < self.count:
            return ""
        return (
            f"SCHEDULER_POD_NAME is {self.own!r}; with MULTI_SCHEDULER_ENABLE it is the name of a StatefulSet's pod, "
            f"such as scheduler-0, with a number below SCHEDULER_NUM ({self.count})"
        )

    def owns_key(self, word: str) -> bool:
        """Whether this scheduler's part of the ring contains the key."""
        return self._ring.name_for(word) == self.own

    def owns_node(self, node: Node) -> bool:
        return self.owns_key(node.name)

    def owns_job(self, item: Pod | PodGroup) -> bool:
        """Decided by the first owner, which a pod and its group share; without owners by the name."""
        return self.owns_key(_owner_name(item))


def _owner_name(item: KubeObject) -> str:
    owners = item.metadata.owner_references
    return owners[0].name if owners else item.name
