"""Changes of the cluster between two statements, other than used resources: the filters are called again at commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.batch.engine import BatchEngine
from bayplan.batch.evaluation.commit_filters import CommitFilters
from bayplan.batch.session.outcome import SessionResult
from bayplan.objects.core import Affinity, Pod
from bayplan.objects.meta import KubeObject, ObjectMeta
from bayplan.objects.workloads import PriorityClass
from bayplan.testing.builders import make_affinity, make_node, make_pod, make_pv, make_pvc, make_spread
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import GANGS, build_engine
from support.builders.volumes import claim_volume

ZONE = "topology.kubernetes.io/zone"
HIGH = PriorityClass(metadata=ObjectMeta(name="high"), value=10)
NODES = {name: make_node(name, cpu=8, zone=f"z-{name}", labels={"disk": "ssd"}) for name in ("a", "b")}


def second_gang(*, size: int = 1, **spec: Any) -> list[Pod]:
    """The members of the gang that is scheduled after the concurrent change; on `a`, if they are allowed there."""
    found = [make_member(f"two-{number}", "two", labels={"app": "two"}) for number in range(size)]
    return [replace(pod, spec=replace(pod.spec, **spec)) for pod in found]


def on_a(**more: Any) -> dict[str, Any]:
    return {"node_selector": {"kubernetes.io/hostname": "a"}, **more}


def bound_after_change(
    change: Callable[[BatchEngine], None], pods: Iterable[Pod], *, objects: Iterable[KubeObject] = (), conf: str = GANGS
) -> set[str]:
    """The members of the second gang that are bound when the cluster changes after the first gang's statement."""
    pods = list(pods)
    groups = [make_group("one", priority_class_name="high"), make_group("two", min_member=len(pods))]
    first = make_member("one-0", "one")
    engine = build_engine(conf=conf, nodes=NODES.values(), pods=[first, *pods], objects=[HIGH, *groups, *objects])
    outcome = SessionResult()
    turns = engine.run_session_steps(outcome)
    while not outcome.binds:
        next(turns)
    assert set(outcome.binds) == {"default/one-0"}
    change(engine)
    for _ in turns:
        pass
    assert not outcome.faults
    bound = set(outcome.binds) - {"default/one-0"}
    for pod in pods:
        assert engine.cache.is_assumed(pod.uid) == (pod.key in bound)
    return bound


def place_unrelated_pod(engine: BatchEngine) -> None:
    """Another engine places an unrelated pod."""
    engine.cache.add_pod(make_pod("other", cpu=1, node="b"))


def change_node(**fields: Any) -> Callable[[BatchEngine], None]:
    return lambda engine: engine.cache.update_node(make_node("a", cpu=8, zone="z-a", **fields))


def add_pod(**fields: Any) -> Callable[[BatchEngine], None]:
    return lambda engine: engine.cache.add_pod(make_pod("rival", **{"node": "a", "cpu": "100m", **fields}))


def against(labels: dict[str, str], key: str = "kubernetes.io/hostname") -> Affinity:
    return make_affinity(apart=labels, topology_key=key)


@pytest.mark.parametrize(
    ("change", "spec"),
    [
        pytest.param(change_node(labels={"disk": "ssd"}, unschedulable=True), {}, id="a-cordon"),
        pytest.param(change_node(labels={"disk": "ssd"}, taints=["dedicated:NoSchedule"]), {}, id="a-taint"),
        pytest.param(change_node(), {"node_selector": {"disk": "ssd", "kubernetes.io/hostname": "a"}}, id="a-label"),
        pytest.param(add_pod(affinity=against({"app": "two"})), {}, id="one-that-wants-to-be-alone"),
        pytest.param(
            add_pod(labels={"app": "rival"}), {"affinity": against({"app": "rival"})}, id="one-that-is-avoided"
        ),
        pytest.param(
            add_pod(labels={"app": "two"}),
            {
                "topology_spread_constraints": (
                    make_spread(ZONE, labels={"app": "two"}, max_skew=1, node_affinity_policy="Ignore"),
                )
            },
            id="one-that-counts-in-a-spread",
        ),
    ],
)
def test_a_concurrent_change_is_detected_at_the_commit(
    change: Callable[[BatchEngine], None], spec: dict[str, Any]
) -> None:
    pods = second_gang(**on_a() | spec)
    assert bound_after_change(place_unrelated_pod, pods) == {"default/two-0"}
    assert bound_after_change(change, pods) == set()


def test_a_gang_is_checked_with_its_own_members_added() -> None:
    """A third member in the zone is too many, which only shows when the first two are counted."""
    spread = (make_spread(ZONE, labels={"app": "two"}, max_skew=2, node_affinity_policy="Ignore"),)
    pods = second_gang(size=2, **on_a(topology_spread_constraints=spread))
    assert bound_after_change(place_unrelated_pod, pods) == {"default/two-0", "default/two-1"}
    assert bound_after_change(add_pod(labels={"app": "two"}), pods) == set()


def test_a_volume_that_is_bound_elsewhere_meanwhile() -> None:
    claim, volume = make_pvc("data", volume="disk"), make_pv("disk", near={"disk": "ssd"})
    pods = second_gang(**on_a(volumes=(claim_volume("data"),)))

    def bind_volume_elsewhere(engine: BatchEngine) -> None:
        engine.cache.upsert(make_pv("disk", near={"kubernetes.io/hostname": "b"}, version="2"))
        place_unrelated_pod(engine)

    assert bound_after_change(place_unrelated_pod, pods, objects=[claim, volume]) == {"default/two-0"}
    assert bound_after_change(bind_volume_elsewhere, pods, objects=[claim, volume]) == set()


def test_a_disabled_filter_is_not_called_at_commits() -> None:
    off = GANGS.replace("name: predicates", "name: predicates\n    arguments: {predicate.TaintTolerationEnable: false}")
    change = change_node(labels={"disk": "ssd"}, taints=["dedicated:NoSchedule"])
    assert bound_after_change(change, second_gang(**on_a()), conf=off) == {"default/two-0"}


def test_filters_are_not_called_at_commits_without_concurrent_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitFilters, "allow", lambda *_: pytest.fail("filters were called"))
    pods = second_gang()
    assert bound_after_change(lambda _: None, pods) == {"default/two-0"}


def test_a_check_on_the_live_snapshot_leaves_it_unchanged() -> None:
    pods = second_gang(size=2, affinity=against({"app": "none"}))
    groups = [make_group("one", priority_class_name="high"), make_group("two", min_member=2)]
    engine = build_engine(nodes=NODES.values(), pods=[make_member("one-0", "one"), *pods], objects=[HIGH, *groups])
    turns = engine.run_session_steps(SessionResult())
    next(turns)
    engine.cache.add_pod(make_pod("rival", cpu=1, node="a"))
    for _ in turns:
        pass
    live = engine.cluster_state.live
    assert live is None or live.snapshot is not engine.cluster_state.snapshot
    engine.cache.add_pod(make_pod("later", cpu=1, node="b"))
    outcome = SessionResult()
    for _ in engine.run_session_steps(outcome):
        pass
    snapshot, fresh = engine.cluster_state.snapshot, engine.cache.snapshot()
    assert snapshot.nodes.pod_count.tolist() == fresh.nodes.pod_count.tolist()
    assert not outcome.faults
