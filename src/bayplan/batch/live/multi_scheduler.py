"""Which of several schedulers of one name is responsible for a job, and for a node?

Volcano's schedulers divide both among themselves where `MULTI_SCHEDULER_ENABLE` is `true`: each knows how many there
are (`SCHEDULER_NUM`) and which one it is (`SCHEDULER_POD_NAME`, that of a StatefulSet's pod), and a ring of hashes says
the rest. The ring is Volcano's, point by point, so that ours and theirs divide the same way side by side.
Cost: one checksum and a binary search for each pod, group and node that is told of.
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
"""Of each scheduler on the ring."""


class HashRing:
    """Words to names, so that most words keep their name when a name comes or goes."""

    def __init__(self, names: Iterable[str]) -> None:
        points = {crc32(f"{number}{name}".encode()): name for name in names for number in range(_POINTS_PER_NAME)}
        self._hashes = sorted(points)
        self._names = [points[each] for each in self._hashes]

    def name_for(self, word: str) -> str:
        place = bisect_right(self._hashes, crc32(word.encode()))
        return self._names[place % len(self._names)]


@dataclass(frozen=True, slots=True)
class MultiScheduler:
    """One of several schedulers."""

    own: str
    count: int
    _ring: HashRing = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        base = self.own.rpartition("-")[0]
        object.__setattr__(self, "_ring", HashRing(f"{base}-{number}" for number in range(self.count)))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> MultiScheduler | None:
        """What Volcano's variables say; None where one scheduler has everything to itself."""
        if environment.get("MULTI_SCHEDULER_ENABLE") != "true":
            return None
        count = environment.get("SCHEDULER_NUM", "")
        is_number = count.isascii() and count.isdigit() and int(count) > 0
        return cls(environment.get("SCHEDULER_POD_NAME", ""), int(count) if is_number else 1)

    def validation_error(self) -> str:
        """What cannot be meant; nothing where all is well."""
        _, dash, number = self.own.rpartition("-")
        if dash and number.isascii() and number.isdigit() and int(number) < self.count:
            return ""
        return (
            f"SCHEDULER_POD_NAME is {self.own!r}; with MULTI_SCHEDULER_ENABLE it is the name of a StatefulSet's pod, "
            f"such as scheduler-0, with a number below SCHEDULER_NUM ({self.count})"
        )

    def owns_key(self, word: str) -> bool:
        """Whether our part of the ring has what is called so."""
        return self._ring.name_for(word) == self.own

    def owns_node(self, node: Node) -> bool:
        return self.owns_key(node.name)

    def owns_job(self, item: Pod | PodGroup) -> bool:
        """By the first owner, which a pod and its group have in common; else by its own name."""
        return self.owns_key(_owner_name(item))


def _owner_name(item: KubeObject) -> str:
    owners = item.metadata.owner_references
    return owners[0].name if owners else item.name
