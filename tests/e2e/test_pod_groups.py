"""Pod groups behind their feature gates, placed by kube-scheduler and by Bayplan on one API server: equal outcomes."""

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
    """A fixture: a cluster whose API server has these gates enabled."""

    @pytest.fixture(scope="module", name=name)
    def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
        with Cluster(tmp_path_factory.mktemp(name), flags=[gates]) as cluster:
            yield cluster

    return started


grouped = cluster_with(GATES, "grouped")
placing = cluster_with(PLACED, "placing")
preempting = cluster_with(PREEMPTION, "preempting")


@pytest.fixture
def harnesses(
    grouped: Cluster, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[dict[str, SchedulerHarness]]:
    """A harness for each scheduler, with two nodes of four processors."""
    with cornered(grouped, request, tmp_path, GATES, nodes=2) as found:
        yield found


@pytest.fixture
def racks(placing: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, SchedulerHarness]]:
    """A harness for each scheduler, with a node in rack x and two in rack y."""
    with cornered(placing, request, tmp_path, PLACED) as found:
        for who, harness in found.items():
            harness.add_nodes(1, labels={rack(who): "x"})
            harness.add_nodes(2, labels={rack(who): "y"})
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
    for harness in found.values():
        harness.close()


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
    """The key of a topology label that only this test's nodes have."""
    return f"rack-of-{who}"


def group(name: str, count: int, key: str = "") -> Tree:
    within = {"schedulingConstraints": {"topology": [{"key": key}]}} if key else {}
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}, **within},
    }


def member(harness: SchedulerHarness, who: str, name: str, *, cpu: str = "1", **spec: object) -> Tree:
    return harness.pod(name, cpu=cpu, schedulerName=who, schedulingGroup={"podGroupName": "gang"}, **spec)


def said(harness: SchedulerHarness, name: str) -> tuple[str, ...]:
    scheduled = condition(harness.api.pod(name))
    return tuple(scheduled.get(key, "") for key in ("status", "reason", "message"))


def stands(harness: SchedulerHarness) -> tuple[str, ...]:
    """The conditions of the pod group."""
    conditions = harness.api.get("PodGroup", "gang").get("status", {}).get("conditions", [])
    return tuple((each["type"], each["status"], each["reason"], each["message"]) for each in conditions)


def scheduled(harness: SchedulerHarness) -> None:
    def has_conditions() -> bool:
        return any("True" in each for each in stands(harness))

    wait_until(has_conditions, "the group has a condition", why=lambda: f"{harness.namespace}: {stands(harness)}")


def test_a_gang_that_is_complete_starts_together(harnesses: dict[str, SchedulerHarness]) -> None:
    for who, harness in harnesses.items():
        harness.api.create(group("gang", 3), member(harness, who, "a"), member(harness, who, "b"))
        harness.api.create(harness.pod("other", schedulerName=who))
    for harness in harnesses.values():
        harness.wait_bound(["other"])
        assert [name for name, each in harness.api.pods().items() if node_name(each)] == ["other"]
    assert said(harnesses[OURS], "a") == said(harnesses[THEIRS], "a")
    for who, harness in harnesses.items():
        harness.api.create(member(harness, who, "c"))
        harness.wait_bound()
    for harness in harnesses.values():
        wait_until(lambda harness=harness: bool(stands(harness)), "the group has a condition")  # type: ignore[misc]
    assert stands(harnesses[OURS]) == stands(harnesses[THEIRS])


def test_a_gang_that_does_not_fit_occupies_no_node(harnesses: dict[str, SchedulerHarness]) -> None:
    """Two of three fit; then a pod is deleted and the third fits."""
    for who, harness in harnesses.items():
        harness.api.create(harness.pod("in-the-way", cpu="3", schedulerName=who))
        harness.wait_bound(["in-the-way"])
        harness.api.create(group("gang", 3), *(member(harness, who, name, cpu="2") for name in "abc"))
    for harness in harnesses.values():
        wait_until(lambda harness=harness: bool(stands(harness)), "the group has a condition")  # type: ignore[misc]
        wait_until(lambda harness=harness: all(said(harness, name)[2] for name in "abc"), "all pods have a message")  # type: ignore[misc]
    assert stands(harnesses[OURS]) == stands(harnesses[THEIRS])
    ours, theirs = (sorted(said(harness, name) for name in "abc") for harness in (harnesses[OURS], harnesses[THEIRS]))
    assert ours == theirs
    for harness in harnesses.values():
        assert not any(node_name(each) for name, each in harness.api.pods().items() if name != "in-the-way")
        harness.api.delete("Pod", "in-the-way", now=True)
        harness.wait_bound("abc")
        scheduled(harness)
    assert stands(harnesses[OURS]) == stands(harnesses[THEIRS])


def test_a_gang_preempts_together(harnesses: dict[str, SchedulerHarness]) -> None:
    for who, harness in harnesses.items():
        strong = harness.priority(f"strong-{who}", 1000)
        weak = [f"weak-{number}" for number in range(2)]
        harness.api.create(*(harness.pod(name, cpu="3", schedulerName=who) for name in weak))
        harness.wait_bound(weak)
        members = [member(harness, who, name, cpu="3", priorityClassName=strong) for name in "ab"]
        harness.api.create(group("gang", 2), *members)
    for harness in harnesses.values():
        harness.wait_bound("ab")
        assert set(harness.api.pods()) == {"a", "b"}
        scheduled(harness)
    assert stands(harnesses[OURS]) == stands(harnesses[THEIRS])


def test_a_gang_stays_in_one_rack(racks: dict[str, SchedulerHarness]) -> None:
    """Each pod fits on a node of any rack; the group only in one."""
    for who, harness in racks.items():
        harness.api.create(group("gang", 3, rack(who)), *(member(harness, who, name, cpu="2") for name in "abc"))
    for harness in racks.values():
        harness.wait_bound("abc")
        assert {node_name(each) for each in harness.api.pods().values()} == set(harness.nodes[1:])
        scheduled(harness)
    assert stands(racks[OURS]) == stands(racks[THEIRS])


def test_a_gang_that_fits_in_no_rack(racks: dict[str, SchedulerHarness]) -> None:
    """Four would fit in two racks, and wait until one rack has room for all."""
    for who, harness in racks.items():
        in_the_way = harness.pod("in-the-way", cpu="4", schedulerName=who, nodeSelector={rack(who): "y"})
        harness.api.create(in_the_way)
        harness.wait_bound(["in-the-way"])
        harness.api.create(group("gang", 4, rack(who)), *(member(harness, who, name, cpu="2") for name in "abcd"))
    for harness in racks.values():
        wait_until(lambda harness=harness: bool(stands(harness)), "the group has a condition")  # type: ignore[misc]
        wait_until(lambda harness=harness: all(said(harness, name)[2] for name in "abcd"), "all pods have a message")  # type: ignore[misc]
    assert stands(racks[OURS]) == stands(racks[THEIRS])
    assert "0/2 placements are available" in stands(racks[OURS])[0][3]
    for who, harness in racks.items():
        messages = [said(harness, name)[2] for name in "abcd"]
        assert sum("waiting for minCount" in each for each in messages) == 2, (who, messages)
        harness.api.delete("Pod", "in-the-way", now=True)
        harness.wait_bound("abcd")
        assert {node_name(each) for each in harness.api.pods().values()} == set(harness.nodes[1:])
        scheduled(harness)


def test_a_gang_prefers_the_most_allocated_rack(racks: dict[str, SchedulerHarness]) -> None:
    for who, harness in racks.items():
        harness.add_nodes(1, labels={rack(who): "z"})
        there = harness.pod("there", cpu="2", schedulerName=who, nodeSelector={rack(who): "z"})
        harness.api.create(there)
        harness.wait_bound(["there"])
        harness.api.create(group("gang", 2, rack(who)), member(harness, who, "a"), member(harness, who, "b"))
    for harness in racks.values():
        harness.wait_bound("ab")
        assert {node_name(each) for each in harness.api.pods().values()} == {harness.nodes[-1]}
        scheduled(harness)
    assert stands(racks[OURS]) == stands(racks[THEIRS])


@pytest.fixture
def preemption_harnesses(
    preempting: Cluster, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[dict[str, SchedulerHarness]]:
    """A harness for each scheduler, with two nodes of four processors and pod group preemption."""
    with cornered(preempting, request, tmp_path, PREEMPTION, nodes=2) as found:
        yield found


def important(harness: SchedulerHarness, who: str, **spec: object) -> Tree:
    """A gang of two that may preempt."""
    tree = group("gang", 2)
    tree["spec"] |= {"priorityClassName": harness.priority(f"strong-{who}", 1000), **spec}
    return tree


def evicted(harness: SchedulerHarness) -> dict[str, tuple[str, ...]]:
    """The messages of the victims' conditions, with the preemptor."""
    uid = harness.api.get("PodGroup", "gang")["metadata"]["uid"]
    return {
        each["regarding"]["name"]: (each["type"], each["action"], each["note"].replace(uid, "UID"))
        for each in harness.api.list("Event")
        if each["reason"] == "Preempted"
    }


def test_room_is_made_for_a_whole_group(preemption_harnesses: dict[str, SchedulerHarness]) -> None:
    """The pods of low priority are evicted; one of lower priority that does not block the group stays."""
    for who, harness in preemption_harnesses.items():
        middle = harness.priority(f"middle-{who}", 10)
        harness.api.create(harness.pod("small", cpu="1", schedulerName=who, priorityClassName=middle))
        harness.wait_bound(["small"])
        weak = [f"weak-{number}" for number in range(2)]
        harness.api.create(*(harness.pod(name, cpu="3", schedulerName=who) for name in weak))
        harness.wait_bound(weak)
        tree = important(harness, who)
        members = [
            member(harness, who, name, cpu="3", priorityClassName=tree["spec"]["priorityClassName"]) for name in "ab"
        ]
        harness.api.create(tree, *members)
    for harness in preemption_harnesses.values():
        harness.wait_bound("ab")
        assert set(harness.api.pods()) == {"a", "b", "small"}
        scheduled(harness)
    assert stands(preemption_harnesses[OURS]) == stands(preemption_harnesses[THEIRS])


def test_a_pod_of_equal_priority_is_not_evicted(preemption_harnesses: dict[str, SchedulerHarness]) -> None:
    for who, harness in preemption_harnesses.items():
        harness.api.create(*(harness.pod(f"weak-{number}", cpu="3", schedulerName=who) for number in range(2)))
        harness.wait_bound()
        harness.api.create(group("gang", 2), *(member(harness, who, name, cpu="3") for name in "ab"))
    for harness in preemption_harnesses.values():
        wait_until(lambda harness=harness: bool(stands(harness)), "the group has a condition")  # type: ignore[misc]
        wait_until(lambda harness=harness: all(said(harness, name)[2] for name in "ab"), "all pods have a message")  # type: ignore[misc]
    assert stands(preemption_harnesses[OURS]) == stands(preemption_harnesses[THEIRS])
    ours, theirs = (
        sorted(said(harness, name) for name in "ab")
        for harness in (preemption_harnesses[OURS], preemption_harnesses[THEIRS])
    )
    assert ours == theirs


def test_a_disruption_unit_is_evicted_as_a_whole(preemption_harnesses: dict[str, SchedulerHarness]) -> None:
    """Both pods of a disruption unit, although evicting one would suffice."""
    for who, harness in preemption_harnesses.items():
        unit = group("unit", 2)
        unit["spec"]["disruptionMode"] = "PodGroup"
        weak = [
            harness.pod(f"weak-{n}", cpu="3", schedulerName=who, schedulingGroup={"podGroupName": "unit"}) for n in "12"
        ]
        harness.api.create(unit, *weak)
        harness.wait_bound()
        tree = important(harness, who)
        tree["spec"]["schedulingPolicy"]["gang"]["minCount"] = 1
        harness.api.create(
            tree, member(harness, who, "a", cpu="3", priorityClassName=tree["spec"]["priorityClassName"])
        )
    for harness in preemption_harnesses.values():
        harness.wait_bound("a")
        wait_until(lambda harness=harness: set(harness.api.pods()) == {"a"}, "the unit is gone")  # type: ignore[misc]
        wait_until(lambda harness=harness: len(evicted(harness)) == 2, "both victims have a condition")  # type: ignore[misc]
    assert evicted(preemption_harnesses[OURS]) == evicted(preemption_harnesses[THEIRS])
