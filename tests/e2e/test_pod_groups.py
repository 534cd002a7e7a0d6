"""Groups of pods behind their gates, placed by kube-scheduler and by us on one API server: the same outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.api import Tree
from cluster.run import Cluster
from support.e2e.scheduler_harness import SchedulerHarness, short_backoff_config
from support.e2e.scheduler_process import condition, node_name, run_scheduler, wait_until

THEIRS, OURS = "theirs", "ours"
GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
PLACED = f"{GATES},TopologyAwareWorkloadScheduling=true"
PREEMPTION = f"{GATES},WorkloadAwarePreemption=true"


def cluster_with(gates: str, name: str) -> Callable[..., Iterator[Cluster]]:
    """A fixture: a cluster whose API server has these gates on."""

    @pytest.fixture(scope="module", name=name)
    def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
        with Cluster(tmp_path_factory.mktemp(name), flags=[gates]) as cluster:
            yield cluster

    return started


grouped = cluster_with(GATES, "grouped")
placing = cluster_with(PLACED, "placing")
preempting = cluster_with(PREEMPTION, "preempting")


@pytest.fixture
def corners(grouped: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, SchedulerHarness]]:
    """A corner for each scheduler, with two nodes of four processors."""
    with cornered(grouped, request, tmp_path, GATES, nodes=2) as found:
        yield found


@pytest.fixture
def racks(placing: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, SchedulerHarness]]:
    """A corner for each scheduler, with a node in rack x and two in rack y."""
    with cornered(placing, request, tmp_path, PLACED) as found:
        for who, corner in found.items():
            corner.add_nodes(1, labels={rack(who): "x"})
            corner.add_nodes(2, labels={rack(who): "y"})
        yield found


@contextmanager
def cornered(
    cluster: Cluster, request: pytest.FixtureRequest, folder: Path, gates: str, nodes: int = 0
) -> Iterator[dict[str, SchedulerHarness]]:
    found = {}
    for who in (THEIRS, OURS):
        name = f"{request.node.name.replace('_', '-')[5:40]}-{who}"
        cluster.kubectl("create", "namespace", name)
        found[who] = SchedulerHarness(cluster, name, folder)
        found[who].add_nodes(nodes)
    with both(cluster, folder, gates):
        yield found
    for corner in found.values():
        corner.close()


@contextmanager
def both(cluster: Cluster, folder: Path, gates: str) -> Iterator[None]:
    way = cluster.kubeconfig()
    config = folder / "theirs.yaml"
    config.write_text(short_backoff_config(f"profiles: [{{schedulerName: {THEIRS}}}]").replace("KUBECONFIG", str(way)))
    cluster.run("kube-scheduler", f"--config={config}", gates, "--secure-port=0")
    try:
        with run_scheduler(
            cluster, folder, gates, config=short_backoff_config(f"profiles: [{{schedulerName: {OURS}}}]")
        ) as process:
            yield
            assert process.poll() is None
    finally:
        cluster.end("kube-scheduler")


def rack(who: str) -> str:
    """The key of a topology that nobody else's nodes have."""
    return f"rack-of-{who}"


def group(name: str, count: int, key: str = "") -> Tree:
    within = {"schedulingConstraints": {"topology": [{"key": key}]}} if key else {}
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}, **within},
    }


def member(corner: SchedulerHarness, who: str, name: str, *, cpu: str = "1", **spec: object) -> Tree:
    return corner.pod(name, cpu=cpu, schedulerName=who, schedulingGroup={"podGroupName": "gang"}, **spec)


def said(corner: SchedulerHarness, name: str) -> tuple[str, ...]:
    told = condition(corner.api.pod(name))
    return tuple(told.get(key, "") for key in ("status", "reason", "message"))


def stands(corner: SchedulerHarness) -> tuple[str, ...]:
    """How the group itself is told to stand."""
    conditions = corner.api.get("PodGroup", "gang").get("status", {}).get("conditions", [])
    return tuple((each["type"], each["status"], each["reason"], each["message"]) for each in conditions)


def scheduled(corner: SchedulerHarness) -> None:
    def told() -> bool:
        return any("True" in each for each in stands(corner))

    wait_until(told, "the group is told", why=lambda: f"{corner.namespace}: {stands(corner)}")


def test_a_gang_that_is_complete_starts_together(corners: dict[str, SchedulerHarness]) -> None:
    for who, corner in corners.items():
        corner.api.create(group("gang", 3), member(corner, who, "a"), member(corner, who, "b"))
        corner.api.create(corner.pod("other", schedulerName=who))
    for corner in corners.values():
        corner.wait_bound(["other"])
        assert [name for name, each in corner.api.pods().items() if node_name(each)] == ["other"]
    assert said(corners[OURS], "a") == said(corners[THEIRS], "a")
    for who, corner in corners.items():
        corner.api.create(member(corner, who, "c"))
        corner.wait_bound()
    for corner in corners.values():
        wait_until(lambda corner=corner: bool(stands(corner)), "the group is told")  # type: ignore[misc]
    assert stands(corners[OURS]) == stands(corners[THEIRS])


def test_a_gang_that_does_not_fit_takes_no_place(corners: dict[str, SchedulerHarness]) -> None:
    """Two of three find a place; then somebody makes room for the third."""
    for who, corner in corners.items():
        corner.api.create(corner.pod("in-the-way", cpu="3", schedulerName=who))
        corner.wait_bound(["in-the-way"])
        corner.api.create(group("gang", 3), *(member(corner, who, name, cpu="2") for name in "abc"))
    for corner in corners.values():
        wait_until(lambda corner=corner: bool(stands(corner)), "the group is told")  # type: ignore[misc]
        wait_until(lambda corner=corner: all(said(corner, name)[2] for name in "abc"), "all are told")  # type: ignore[misc]
    assert stands(corners[OURS]) == stands(corners[THEIRS])
    ours, theirs = (sorted(said(corner, name) for name in "abc") for corner in (corners[OURS], corners[THEIRS]))
    assert ours == theirs
    for corner in corners.values():
        assert not any(node_name(each) for name, each in corner.api.pods().items() if name != "in-the-way")
        corner.api.delete("Pod", "in-the-way", now=True)
        corner.wait_bound("abc")
        scheduled(corner)
    assert stands(corners[OURS]) == stands(corners[THEIRS])


def test_a_gang_preempts_together(corners: dict[str, SchedulerHarness]) -> None:
    for who, corner in corners.items():
        strong = corner.priority(f"strong-{who}", 1000)
        weak = [f"weak-{number}" for number in range(2)]
        corner.api.create(*(corner.pod(name, cpu="3", schedulerName=who) for name in weak))
        corner.wait_bound(weak)
        members = [member(corner, who, name, cpu="3", priorityClassName=strong) for name in "ab"]
        corner.api.create(group("gang", 2), *members)
    for corner in corners.values():
        corner.wait_bound("ab")
        assert set(corner.api.pods()) == {"a", "b"}
        scheduled(corner)
    assert stands(corners[OURS]) == stands(corners[THEIRS])


def test_a_gang_stays_in_one_rack(racks: dict[str, SchedulerHarness]) -> None:
    """Each fits on a node of any rack; all of them together only in one."""
    for who, corner in racks.items():
        corner.api.create(group("gang", 3, rack(who)), *(member(corner, who, name, cpu="2") for name in "abc"))
    for corner in racks.values():
        corner.wait_bound("abc")
        assert {node_name(each) for each in corner.api.pods().values()} == set(corner.nodes[1:])
        scheduled(corner)
    assert stands(racks[OURS]) == stands(racks[THEIRS])


def test_a_gang_that_fits_in_no_rack(racks: dict[str, SchedulerHarness]) -> None:
    """Four would find room in two racks, and wait until there is a rack for all."""
    for who, corner in racks.items():
        in_the_way = corner.pod("in-the-way", cpu="4", schedulerName=who, nodeSelector={rack(who): "y"})
        corner.api.create(in_the_way)
        corner.wait_bound(["in-the-way"])
        corner.api.create(group("gang", 4, rack(who)), *(member(corner, who, name, cpu="2") for name in "abcd"))
    for corner in racks.values():
        wait_until(lambda corner=corner: bool(stands(corner)), "the group is told")  # type: ignore[misc]
        wait_until(lambda corner=corner: all(said(corner, name)[2] for name in "abcd"), "all are told")  # type: ignore[misc]
    assert stands(racks[OURS]) == stands(racks[THEIRS])
    assert "0/2 placements are available" in stands(racks[OURS])[0][3]
    for who, corner in racks.items():
        told = [said(corner, name)[2] for name in "abcd"]
        assert sum("waiting for minCount" in each for each in told) == 2, (who, told)
        corner.api.delete("Pod", "in-the-way", now=True)
        corner.wait_bound("abcd")
        assert {node_name(each) for each in corner.api.pods().values()} == set(corner.nodes[1:])
        scheduled(corner)


def test_a_gang_goes_where_most_is_taken(racks: dict[str, SchedulerHarness]) -> None:
    for who, corner in racks.items():
        corner.add_nodes(1, labels={rack(who): "z"})
        there = corner.pod("there", cpu="2", schedulerName=who, nodeSelector={rack(who): "z"})
        corner.api.create(there)
        corner.wait_bound(["there"])
        corner.api.create(group("gang", 2, rack(who)), member(corner, who, "a"), member(corner, who, "b"))
    for corner in racks.values():
        corner.wait_bound("ab")
        assert {node_name(each) for each in corner.api.pods().values()} == {corner.nodes[-1]}
        scheduled(corner)
    assert stands(racks[OURS]) == stands(racks[THEIRS])


@pytest.fixture
def rivals(
    preempting: Cluster, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[dict[str, SchedulerHarness]]:
    """A corner for each scheduler, with two nodes of four processors, where groups make room as a whole."""
    with cornered(preempting, request, tmp_path, PREEMPTION, nodes=2) as found:
        yield found


def important(corner: SchedulerHarness, who: str, **spec: object) -> Tree:
    """A gang of two that may push others out."""
    tree = group("gang", 2)
    tree["spec"] |= {"priorityClassName": corner.priority(f"strong-{who}", 1000), **spec}
    return tree


def evicted(corner: SchedulerHarness) -> dict[str, tuple[str, ...]]:
    """What those were told who had to go, and in whose name."""
    uid = corner.api.get("PodGroup", "gang")["metadata"]["uid"]
    return {
        each["regarding"]["name"]: (each["type"], each["action"], each["note"].replace(uid, "UID"))
        for each in corner.api.list("Event")
        if each["reason"] == "Preempted"
    }


def test_room_is_made_for_a_whole_group(rivals: dict[str, SchedulerHarness]) -> None:
    """The weak ones go; who is weaker than the group but in nobody's way stays."""
    for who, corner in rivals.items():
        middle = corner.priority(f"middle-{who}", 10)
        corner.api.create(corner.pod("small", cpu="1", schedulerName=who, priorityClassName=middle))
        corner.wait_bound(["small"])
        weak = [f"weak-{number}" for number in range(2)]
        corner.api.create(*(corner.pod(name, cpu="3", schedulerName=who) for name in weak))
        corner.wait_bound(weak)
        tree = important(corner, who)
        members = [
            member(corner, who, name, cpu="3", priorityClassName=tree["spec"]["priorityClassName"]) for name in "ab"
        ]
        corner.api.create(tree, *members)
    for corner in rivals.values():
        corner.wait_bound("ab")
        assert set(corner.api.pods()) == {"a", "b", "small"}
        scheduled(corner)
    assert stands(rivals[OURS]) == stands(rivals[THEIRS])


def test_who_is_as_important_as_the_group_is_not_pushed_out(rivals: dict[str, SchedulerHarness]) -> None:
    for who, corner in rivals.items():
        corner.api.create(*(corner.pod(f"weak-{number}", cpu="3", schedulerName=who) for number in range(2)))
        corner.wait_bound()
        corner.api.create(group("gang", 2), *(member(corner, who, name, cpu="3") for name in "ab"))
    for corner in rivals.values():
        wait_until(lambda corner=corner: bool(stands(corner)), "the group is told")  # type: ignore[misc]
        wait_until(lambda corner=corner: all(said(corner, name)[2] for name in "ab"), "all are told")  # type: ignore[misc]
    assert stands(rivals[OURS]) == stands(rivals[THEIRS])
    ours, theirs = (sorted(said(corner, name) for name in "ab") for corner in (rivals[OURS], rivals[THEIRS]))
    assert ours == theirs


def test_a_unit_goes_as_a_whole(rivals: dict[str, SchedulerHarness]) -> None:
    """Its two pods, of which the going of one would do."""
    for who, corner in rivals.items():
        unit = group("unit", 2)
        unit["spec"]["disruptionMode"] = "PodGroup"
        weak = [
            corner.pod(f"weak-{n}", cpu="3", schedulerName=who, schedulingGroup={"podGroupName": "unit"}) for n in "12"
        ]
        corner.api.create(unit, *weak)
        corner.wait_bound()
        tree = important(corner, who)
        tree["spec"]["schedulingPolicy"]["gang"]["minCount"] = 1
        corner.api.create(tree, member(corner, who, "a", cpu="3", priorityClassName=tree["spec"]["priorityClassName"]))
    for corner in rivals.values():
        corner.wait_bound("a")
        wait_until(lambda corner=corner: set(corner.api.pods()) == {"a"}, "the unit is gone")  # type: ignore[misc]
        wait_until(lambda corner=corner: len(evicted(corner)) == 2, "both are told")  # type: ignore[misc]
    assert evicted(rivals[OURS]) == evicted(rivals[THEIRS])
