"""NUMA assignment: the CPUs that a container gets on a node, and the NUMA nodes they belong to.

Called by the plugin `numa-aware` for every node with a Numatopology. Predicts the kubelet's CPU manager and topology
manager as Volcano does, including two peculiarities. Sockets and cores are taken whole only if their number is also the
number of a free CPU. Single CPUs are chosen with an inconsistent sort order.

CPUs and NUMA nodes are integers used as bit sets. Cost: some tens of microseconds per query; results are cached.
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
    """NUMA nodes to take CPUs from; None: any. `preferred`: no smaller set of NUMA nodes suffices."""

    affinity: int | None
    preferred: bool


class ContainerCpuRequest(NamedTuple):
    """The request of one container: number of exclusive CPUs; 0 if it uses shared CPUs."""

    container: str
    cpus: int


class NumaTopology:
    """CPU layout of a node. Nodes with equal layouts share one object and its cached results."""

    def __init__(self, spec: NumatopologySpec) -> None:
        cpu_infos = {_atoi(cpu): cpu_info for cpu, cpu_info in spec.cpu_detail.items()}
        self.manager = spec.policies.get(CPU_MANAGER_POLICY, "")
        self.policy = spec.policies.get(TOPOLOGY_MANAGER_POLICY, "")
        self.cpus = bit_set(cpu_infos)
        self._numa_of = {cpu: cpu_info.numa for cpu, cpu_info in cpu_infos.items()}
        self._socket_of = {cpu: cpu_info.socket for cpu, cpu_info in cpu_infos.items()}
        self._core_of = {cpu: cpu_info.core for cpu, cpu_info in cpu_infos.items()}
        self._numa_nodes = _group_by_value(self._numa_of)
        self._sockets = _group_by_value(self._socket_of)
        self._cores = _group_by_value(self._core_of)
        cores = {(cpu_info.socket, cpu_info.core) for cpu_info in cpu_infos.values()}  # core ids repeat in each socket
        self._per_socket = len(cpu_infos) // len(self._sockets) if cpu_infos else 0
        self._per_core = len(cpu_infos) // len(cores) if cpu_infos else 0
        self._reserved_count = _reserved_cpu_count(spec.res_reserved)
        self._assignments: dict[tuple[int | None, tuple[ContainerCpuRequest, ...]], int | str] = {}

    @cached_property
    def reserved(self) -> int:
        """CPUs that no container gets."""
        return self.take_cpus(self.cpus, self._reserved_count) or 0

    @cached_property
    def all_numa_nodes(self) -> int:
        return bit_set(self._numa_nodes)

    def numa_nodes_of(self, cpus: int) -> int:
        """The number of NUMA nodes of these CPUs. An undescribed CPU counts as on the first."""
        return len({self._numa_of.get(cpu, 0) for cpu in bits(cpus)})

    # Assignment to a pod

    def assign(self, free: int | None, containers: tuple[ContainerCpuRequest, ...]) -> int | str:
        """The CPUs assigned from the free ones, or the name of the container that cannot be placed."""
        key = (free, containers)
        found = self._assignments.get(key)
        if found is None:
            if len(self._assignments) >= _MAX_CACHED_ASSIGNMENTS:
                self._assignments.clear()
            found = self._assignments[key] = self._assign_containers(free, containers)
        return found

    def _assign_containers(self, free: int | None, containers: tuple[ContainerCpuRequest, ...]) -> int | str:
        total = 0
        for container in containers:
            hint = self._best_hint(free, container.cpus)
            if self.policy in (RESTRICTED, SINGLE_NUMA_NODE) and not hint.preferred:
                return container.container
            assigned = self._take_by_hint(free or 0, container.cpus, hint)
            total |= assigned
            free = (free or 0) & ~assigned
        return total

    def _best_hint(self, free: int | None, count: int) -> NumaHint:
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
        """All sets of NUMA nodes with enough free CPUs. Preferred: no smaller set has enough CPUs in total."""
        free_by_node = {node: (cpus & free).bit_count() for node, cpus in self._numa_nodes.items()}
        if 0 in free_by_node:
            free_by_node[0] += (free & ~self.cpus).bit_count()
        smallest = len(self._numa_nodes)
        enough = []
        for size in range(1, len(self._numa_nodes) + 1):
            for nodes in combinations(sorted(self._numa_nodes), size):
                if size < smallest and sum(self._numa_nodes[node].bit_count() for node in nodes) >= count:
                    smallest = size
                if sum(free_by_node[node] for node in nodes) >= count:
                    enough.append(nodes)
        return (NumaHint(bit_set(nodes), preferred=len(nodes) == smallest) for nodes in enough)

    def _take_by_hint(self, free: int, count: int, hint: NumaHint) -> int:
        """CPUs of the hinted NUMA nodes, then CPUs of any. Returns 0 when there are not enough."""
        free &= ~self.reserved
        assigned = 0
        if hint.affinity is not None:
            near = free & self._cpus_on(hint.affinity)
            assigned = self.take_cpus(near, min(count, near.bit_count())) or 0
        rest = self.take_cpus(free & ~assigned, count - assigned.bit_count())
        return 0 if rest is None else assigned | rest

    def _cpus_on(self, numa_nodes: int) -> int:
        found = 0
        for node in bits(numa_nodes):
            found |= self._numa_nodes.get(node, 0)
        return found

    # Choice of CPUs

    def take_cpus(self, free: int, count: int) -> int | None:
        """This many of the free CPUs: whole sockets, then whole cores, then single CPUs. None when there are not
        enough."""
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
        """Sockets with free CPUs whose number is also the number of a free CPU."""
        return [socket for socket, cpus in sorted(self._sockets.items()) if cpus & free and _contains(free, socket)]

    def _free_cores(self, free: int) -> list[int]:
        """Cores with the same condition; cores of sockets with fewer such cores come first."""
        cores = {
            socket: sorted({self._core_of[cpu] for cpu in bits(cpus & free) if _contains(free, self._core_of[cpu])})
            for socket, cpus in sorted(self._sockets.items())
            if cpus & free
        }
        sockets = list(cores)
        go_sort(sockets, lambda a, b: len(cores[a]) < len(cores[b]) or a < b)
        return [core for socket in sockets for core in cores[socket]]

    def _free_cpus(self, free: int, taken: int) -> list[int]:
        """Single CPUs. The intended order: more CPUs taken and fewer free nearby come first."""
        cores = sorted({self._core_of[cpu] for cpu in bits(free)})
        ranks = {core: self._rank(core, free, taken) for core in cores}
        go_sort(cores, lambda a, b: any(left < right for left, right in zip(ranks[a], ranks[b], strict=True)))
        return [cpu for core in cores for cpu in bits(self._cores[core] & free)]

    def _rank(self, core: int, free: int, taken: int) -> tuple[int, ...]:
        cpus = self._cores[core]
        socket = self._socket_of[next(bits(cpus))]
        socket_cpus = self._sockets[socket]
        return (
            -(socket_cpus & taken).bit_count(),
            (socket_cpus & free).bit_count(),
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
    """A list such as `0-3,8` as a bit set; empty if it is invalid, as in Volcano."""
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


def _group_by_value(group_by_cpu: Mapping[int, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for cpu, group in group_by_cpu.items():
        found[group] = found.get(group, 0) | bit_set([cpu])
    return found


def _reserved_cpu_count(reserved: Mapping[str, str]) -> int:
    """Number of CPUs that the node reserves, rounded up; 0 if any reserved amount is invalid."""
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
