"""Which CPUs of a node would a container get, and do they sit close enough together?

Asked by the plugin `numa-aware` for every node with a Numatopology. This is what the kubelet's CPU manager and topology
manager do, as Volcano foresees it, peculiarities included: sockets and cores are taken whole only where their number
is also the number of a free CPU, and single CPUs are picked by an order that contradicts itself.

CPUs and NUMA nodes are integers used as bit sets. Cost: some tens of microseconds a question, and each is asked once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from bayplan.codec.quantity import QuantityError, parse_quantity
from bayplan.framework.preemption.go_sort import go_sort
from bayplan.objects.resources import CPU, EPHEMERAL_STORAGE, MEMORY
from bayplan.objects.volcano.types import NumatopologySpec

CPU_MANAGER_POLICY = "CPUManagerPolicy"
TOPOLOGY_MANAGER_POLICY = "TopologyManagerPolicy"

BEST_EFFORT = "best-effort"
RESTRICTED = "restricted"
SINGLE_NUMA_NODE = "single-numa-node"

_MAX_CPUS = 1 << 16
_MAX_CACHED_ASSIGNMENTS = 1 << 14
_RESERVABLE = (CPU, MEMORY, EPHEMERAL_STORAGE)


class NumaHint(NamedTuple):
    """NUMA nodes to take CPUs from; None: any. `preferred`: nothing narrower could do."""

    affinity: int | None
    preferred: bool


class ContainerCpuRequest(NamedTuple):
    """What one container asks for: whole CPUs of its own, 0 if it shares them with others."""

    container: str
    cpus: int


class NumaTopology:
    """Where the CPUs of a node sit. Nodes of one make share one of these, and with it everything worked out."""

    def __init__(self, spec: NumatopologySpec) -> None:
        places = {_atoi(cpu): place for cpu, place in spec.cpu_detail.items()}
        self.manager = spec.policies.get(CPU_MANAGER_POLICY, "")
        self.policy = spec.policies.get(TOPOLOGY_MANAGER_POLICY, "")
        self.cpus = bit_set(places)
        self._numa_of = {cpu: place.numa for cpu, place in places.items()}
        self._socket_of = {cpu: place.socket for cpu, place in places.items()}
        self._core_of = {cpu: place.core for cpu, place in places.items()}
        self._numa_nodes = _group_by_value(self._numa_of)
        self._sockets = _group_by_value(self._socket_of)
        self._cores = _group_by_value(self._core_of)
        cores = {(place.socket, place.core) for place in places.values()}  # core ids repeat from socket to socket
        self._per_socket = len(places) // len(self._sockets) if places else 0
        self._per_core = len(places) // len(cores) if places else 0
        self._reserved_count = _reserved_cpu_count(spec.res_reserved)
        self._answers: dict[tuple[int | None, tuple[ContainerCpuRequest, ...]], int | str] = {}

    @cached_property
    def reserved(self) -> int:
        """CPUs that nobody gets."""
        return self.take_cpus(self.cpus, self._reserved_count) or 0

    @cached_property
    def all_numa_nodes(self) -> int:
        return bit_set(self._numa_nodes)

    def numa_nodes_of(self, cpus: int) -> int:
        """How many NUMA nodes these CPUs are spread over; one that nobody has described is on the first."""
        return len({self._numa_of.get(cpu, 0) for cpu in bits(cpus)})

    # a pod ------------------------------------------------------------------------------------------------------

    def assign(self, free: int | None, containers: tuple[ContainerCpuRequest, ...]) -> int | str:
        """The CPUs that the containers get of the free ones, or the name of the container that cannot be placed."""
        key = (free, containers)
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= _MAX_CACHED_ASSIGNMENTS:
                self._answers.clear()
            found = self._answers[key] = self._assign_containers(free, containers)
        return found

    def _assign_containers(self, free: int | None, containers: tuple[ContainerCpuRequest, ...]) -> int | str:
        total = 0
        for container in containers:
            hint = self._best_hint(free, container.cpus)
            if self.policy in (RESTRICTED, SINGLE_NUMA_NODE) and not hint.preferred:
                return container.container
            given = self._take_by_hint(free or 0, container.cpus, hint)
            total |= given
            free = (free or 0) & ~given
        return total

    def _best_hint(self, free: int | None, count: int) -> NumaHint:
        """The best way to get so many CPUs under the node's policy."""
        if self.policy not in (BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE):
            return NumaHint(None, preferred=True)
        everywhere = NumaHint(self.all_numa_nodes, preferred=False)
        if free is None or not count:
            return NumaHint(self.all_numa_nodes, preferred=bool(self._numa_nodes))
        hints = list(self._hints(free & ~self.reserved, count))
        if self.policy == SINGLE_NUMA_NODE:
            hints = [hint for hint in hints if hint.preferred and (hint.affinity or 0).bit_count() == 1]
        return min((*hints, everywhere), key=_narrowest)

    def _hints(self, free: int, count: int) -> Iterator[NumaHint]:
        """All sets of NUMA nodes with enough free CPUs; preferred where no smaller set could ever do."""
        here = {node: (cpus & free).bit_count() for node, cpus in self._numa_nodes.items()}
        if 0 in here:
            here[0] += (free & ~self.cpus).bit_count()
        smallest = len(self._numa_nodes)
        enough = []
        for size in range(1, len(self._numa_nodes) + 1):
            for nodes in combinations(sorted(self._numa_nodes), size):
                if size < smallest and sum(self._numa_nodes[node].bit_count() for node in nodes) >= count:
                    smallest = size
                if sum(here[node] for node in nodes) >= count:
                    enough.append(nodes)
        return (NumaHint(bit_set(nodes), preferred=len(nodes) == smallest) for nodes in enough)

    def _take_by_hint(self, free: int, count: int, hint: NumaHint) -> int:
        """CPUs of the hinted NUMA nodes, the rest from anywhere; nothing where there are not enough."""
        free &= ~self.reserved
        given = 0
        if hint.affinity is not None:
            near = free & self._cpus_on(hint.affinity)
            given = self.take_cpus(near, min(count, near.bit_count())) or 0
        rest = self.take_cpus(free & ~given, count - given.bit_count())
        return 0 if rest is None else given | rest

    def _cpus_on(self, numa_nodes: int) -> int:
        found = 0
        for node in bits(numa_nodes):
            found |= self._numa_nodes.get(node, 0)
        return found

    # taking -----------------------------------------------------------------------------------------------------

    def take_cpus(self, free: int, count: int) -> int | None:
        """So many of the free CPUs: whole sockets, then whole cores, then single ones. None: there are not enough."""
        free &= self.cpus
        taken = 0
        if count < 1:
            return 0
        if count > free.bit_count():
            return None
        for groups, per_group, numbers in (
            (self._sockets, self._per_socket, self._free_sockets),
            (self._cores, self._per_core, self._free_cores),
        ):
            if count < per_group:
                continue
            for number in numbers(free):
                group = free & groups[number]
                taken, free, count = taken | group, free & ~group, count - group.bit_count()
                if count < 1:
                    return taken
                if count < per_group:
                    break
        for cpu in self._free_cpus(free, taken)[:count]:
            taken |= 1 << cpu
        return taken

    def _free_sockets(self, free: int) -> list[int]:
        """Sockets with free CPUs whose number happens to be that of a free CPU."""
        return [socket for socket, cpus in sorted(self._sockets.items()) if cpus & free and _contains(free, socket)]

    def _free_cores(self, free: int) -> list[int]:
        """The same of cores, those of sockets with fewer of them first."""
        cores = {
            socket: sorted({self._core_of[cpu] for cpu in bits(cpus & free) if _contains(free, self._core_of[cpu])})
            for socket, cpus in sorted(self._sockets.items())
            if cpus & free
        }
        sockets = list(cores)
        go_sort(sockets, lambda a, b: len(cores[a]) < len(cores[b]) or a < b)
        return [core for socket in sockets for core in cores[socket]]

    def _free_cpus(self, free: int, taken: int) -> list[int]:
        """Single CPUs: where more is taken nearby and less is free come first, or so it is meant."""
        cores = sorted({self._core_of[cpu] for cpu in bits(free)})
        ranks = {core: self._rank(core, free, taken) for core in cores}
        go_sort(cores, lambda a, b: any(left < right for left, right in zip(ranks[a], ranks[b], strict=True)))
        return [cpu for core in cores for cpu in bits(self._cores[core] & free)]

    def _rank(self, core: int, free: int, taken: int) -> tuple[int, ...]:
        cpus = self._cores[core]
        socket = self._socket_of[next(bits(cpus))]
        beside = self._sockets[socket]
        return (
            -(beside & taken).bit_count(),
            (beside & free).bit_count(),
            (cpus & free).bit_count(),
            socket,
            core,
        )


def bit_set(numbers: Iterable[int]) -> int:
    found = 0
    for number in numbers:
        if 0 <= number < _MAX_CPUS:
            found |= 1 << number
    return found


def bits(numbers: int) -> Iterator[int]:
    """The members of a bit set, ascending."""
    while numbers:
        lowest = numbers & -numbers
        yield lowest.bit_length() - 1
        numbers ^= lowest


def parse_cpus(text: str) -> int:
    """A list such as `0-3,8` as a bit set; empty where it is none, as upstream takes it."""
    found = 0
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        start, end = _number(first), _number(last if dash else first)
        if start is None or end is None or not start <= end < _MAX_CPUS:
            return 0
        found |= (1 << end + 1) - (1 << start)
    return found


def _narrowest(hint: NumaHint) -> tuple[bool, int, int]:
    nodes = hint.affinity or 0
    return not hint.preferred, nodes.bit_count(), nodes


def _contains(cpus: int, number: int) -> bool:
    return number >= 0 and bool(cpus >> number & 1)


def _group_by_value(places: Mapping[int, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for cpu, place in places.items():
        found[place] = found.get(place, 0) | bit_set([cpu])
    return found


def _reserved_cpu_count(reserved: Mapping[str, str]) -> int:
    """How many CPUs the node keeps for itself, rounded up; none where anything else about it cannot be understood."""
    try:
        amounts = {name: parse_quantity(text) for name, text in reserved.items()}
    except QuantityError:
        return 0
    if any(name not in _RESERVABLE or amount.sign() < 0 for name, amount in amounts.items()):
        return 0
    return math.ceil(amounts[CPU].milli_value() / 1000) if CPU in amounts else 0


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.removeprefix("+").isdigit() else None


def _atoi(text: str) -> int:
    found = _number(text)
    return 0 if found is None else found
