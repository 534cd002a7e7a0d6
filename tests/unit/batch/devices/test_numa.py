from __future__ import annotations

import pytest

from bayplan.batch.devices.numa import ContainerCpuRequest, NumaTopology, bit_set, bits, parse_cpus
from bayplan.objects.volcano.types import CpuLocation, NumatopologySpec


def machine(
    policy: str = "best-effort", *, numa: int = 2, sockets: int = 1, cores: int = 4, reserved: str = ""
) -> NumaTopology:
    """A machine with `cores` cores of two CPUs per NUMA node. The second CPUs are numbered after all first ones. NUMA
    nodes are distributed over the sockets."""
    total = numa * cores
    detail = {
        str(cpu + thread * total): CpuLocation(numa=cpu // cores, socket=cpu // cores * sockets // numa, core=cpu)
        for cpu in range(total)
        for thread in (0, 1)
    }
    return NumaTopology(
        NumatopologySpec(
            policies={"CPUManagerPolicy": "static", "TopologyManagerPolicy": policy},
            cpu_detail=detail,
            res_reserved={"cpu": reserved} if reserved else {},
        )
    )


def assigned_cpus(topology: NumaTopology, free: str, *counts: int) -> list[int] | str:
    containers = tuple(ContainerCpuRequest(f"c{number}", count) for number, count in enumerate(counts))
    found = topology.assign(parse_cpus(free), containers)
    return found if isinstance(found, str) else list(bits(found))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        pytest.param("", [], id="none"),
        pytest.param("0-3,8", [0, 1, 2, 3, 8], id="range-and-one"),
        pytest.param("5-5,+1", [1, 5], id="range-of-one"),
        pytest.param("3-1", [], id="backwards"),
        pytest.param("0,,1", [], id="a-gap-spoils-all"),
        pytest.param("0, 1", [], id="no-blanks"),
        pytest.param("1-2-3", [], id="two-dashes"),
        pytest.param("0-99999999", [], id="more-than-any-node-has"),
    ],
)
def test_cpu_lists(text: str, cpus: list[int]) -> None:
    assert list(bits(parse_cpus(text))) == cpus


@pytest.mark.parametrize(
    ("policy", "free", "counts", "expected"),
    [
        pytest.param("best-effort", "0-15", (4,), [0, 1, 8, 9], id="on-the-first-numa-node"),
        pytest.param("best-effort", "3-15", (6,), [4, 5, 6, 12, 13, 14], id="on-the-one-with-room"),
        pytest.param("best-effort", "0-3,12-15", (6,), [0, 1, 2, 3, 12, 13], id="on-both-if-need-be"),
        pytest.param("restricted", "0-3,12-15", (6,), "c0", id="one-would-have-done"),
        pytest.param("restricted", "0-15", (10,), [0, 1, 2, 3, 4, 8, 9, 10, 11, 12], id="one-could-never-do"),
        pytest.param("single-numa-node", "0-15", (10,), "c0", id="never-more-than-one"),
        pytest.param("single-numa-node", "0-15", (4, 6), [0, 1, 4, 5, 6, 8, 9, 12, 13, 14], id="each-alone"),
        pytest.param("single-numa-node", "0-15", (6, 6, 6), "c2", id="the-last-one-finds-nothing"),
        pytest.param("single-numa-node", "0-15", (0,), [], id="shares-cpus"),
        pytest.param("none", "0-15", (3,), [0, 1, 8], id="no-policy-takes-what-comes"),
        pytest.param("best-effort", "0,1", (3,), [], id="not-enough-gives-none"),
    ],
)
def test_assignments(policy: str, free: str, counts: tuple[int, ...], expected: list[int] | str) -> None:
    assert assigned_cpus(machine(policy), free, *counts) == expected


def test_without_any_cpus_no_hint_is_preferred() -> None:
    topology = machine("restricted")
    assert topology.assign(None, (ContainerCpuRequest("c", 2),)) == 0  # Volcano lets the first container pass
    assert topology.assign(None, (ContainerCpuRequest("c", 2), ContainerCpuRequest("d", 2))) == "d"


def test_a_node_without_cpu_details_rejects_pods_that_need_a_preferred_hint() -> None:
    empty = NumaTopology(NumatopologySpec(policies={"TopologyManagerPolicy": "restricted"}))
    assert assigned_cpus(empty, "0-3", 0) == "c0"


@pytest.mark.parametrize(
    ("reserved", "cpus"),
    [
        pytest.param("2", [0, 8], id="a-core"),
        pytest.param("1500m", [0, 8], id="rounded-up"),
        pytest.param("17", [], id="more-than-there-are"),
        pytest.param("-1", [], id="below-zero"),
        pytest.param("many", [], id="no-quantity"),
    ],
)
def test_reserved_cpus_are_not_assigned(reserved: str, cpus: list[int]) -> None:
    topology = machine(reserved=reserved)
    assert list(bits(topology.reserved)) == cpus
    assert not set(cpus) & set(assigned_cpus(topology, "0-15", 6))


def test_an_invalid_reserved_amount_disables_the_reservation() -> None:
    assert NumaTopology(NumatopologySpec(res_reserved={"cpu": "1", "nvidia.com/gpu": "1"})).reserved == 0


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        pytest.param("0-15", 8, [0, 1, 2, 3, 8, 9, 10, 11], id="a-whole-socket"),
        pytest.param("1-15", 8, [4, 5, 6, 7, 12, 13, 14, 15], id="socket-number-is-a-free-cpu"),
        pytest.param("2-15", 8, [2, 3, 4, 5, 10, 11, 12, 13], id="no-socket-so-cores"),
        pytest.param("0-15", 3, [0, 1, 8], id="a-core-and-a-half"),
        pytest.param("8-15", 2, [8, 9], id="no-core-number-is-a-free-cpu"),
        pytest.param("0-15", 0, [], id="nothing"),
        pytest.param("0-15,40", 16, [*range(16)], id="unknown-cpus-are-not-taken"),
    ],
)
def test_take_cpus(free: str, count: int, expected: list[int]) -> None:
    taken = machine(sockets=2).take_cpus(parse_cpus(free), count)
    assert taken is not None
    assert list(bits(taken)) == expected


def test_take_cpus_with_too_few_free() -> None:
    assert machine().take_cpus(parse_cpus("0-3,40"), 5) is None


def test_numa_nodes_of_cpus() -> None:
    topology = machine()
    assert topology.numa_nodes_of(bit_set([0, 8])) == 1
    assert topology.numa_nodes_of(bit_set([0, 4])) == 2
    assert topology.numa_nodes_of(0) == 0
