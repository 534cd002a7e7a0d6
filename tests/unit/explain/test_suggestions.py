"""Suggestions: the smallest change of each kind, and combinations if no single change is enough."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bayplan.explain.answer_builder import NO_CHANGE_FOUND, NO_CHANGE_HELPS
from bayplan.explain.pod_explainer import PodExplainer
from bayplan.explain.suggestions import Suggestions
from bayplan.framework.runtime.cooperative import run_to_end
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.telemetry.answers import Answer
from bayplan.testing import Harness, make_affinity, make_node, make_pod, make_pvc, make_spread

WEB = {"app": "web"}


def explain(pod: Pod, nodes: Sequence[Node], pods: Sequence[Pod] = (), objects: Sequence[KubeObject] = ()) -> Answer:
    with Harness(nodes=nodes, pods=[*pods, pod], objects=objects) as harness:
        return run_to_end(PodExplainer(harness.engine, harness.clock).explain_pending(pod, now=True))


SMALL = make_node("small", cpu="2", memory="4Gi")
BIG = make_node("big", cpu="8", memory="16Gi", taints=["gpu=true:NoSchedule", "old:NoExecute"])


@pytest.mark.parametrize(
    ("pod", "nodes", "pods", "words"),
    [
        pytest.param(make_pod(cpu="2500m"), [SMALL], [], ["ask for 500m less CPU"], id="cpu"),
        pytest.param(
            make_pod(cpu="3", memory="5Gi"), [SMALL], [], ["ask for 1 less CPU and 1Gi less memory"], id="two-resources"
        ),
        pytest.param(
            make_pod(requests={"nvidia.com/gpu": 1}), [SMALL], [], ["ask for no nvidia.com/gpu"], id="whole-request"
        ),
        pytest.param(
            make_pod(cpu="4"),
            [SMALL, BIG],
            [],
            ["ask for 2 less CPU", "tolerate gpu=true:NoSchedule and old:NoExecute"],
            id="the-smallest-first",
        ),
        pytest.param(
            make_pod(),
            [make_node("closed", unschedulable=True)],
            [],
            ["tolerate node.kubernetes.io/unschedulable:NoSchedule"],
            id="cordoned",
        ),
        pytest.param(
            make_pod(node_selector={"disk": "ssd", "zone": "a"}),
            [make_node("n", labels={"zone": "a"})],
            [],
            ["do not demand the label disk=ssd of the node"],
            id="selector",
        ),
        pytest.param(
            make_pod(affinity=make_affinity(nodes={"disk": ["ssd", "nvme"], "zone": ["a"]})),
            [make_node("n", labels={"zone": "a"})],
            [],
            ["do not demand `disk In (ssd, nvme)` of the node"],
            id="node-affinity",
        ),
        pytest.param(
            make_pod(affinity=make_affinity(near=WEB)),
            [SMALL],
            [],
            ["do not demand pods of its affinity in kubernetes.io/hostname (podAffinity[0])"],
            id="pod-affinity",
        ),
        pytest.param(
            make_pod(host_ports=[80, 443]),
            [SMALL],
            [make_pod("other", node="small", host_ports=[80])],
            ["leave host port 80/TCP alone"],
            id="host-port",
        ),
        pytest.param(
            make_pod(labels=WEB, spread=[make_spread("kubernetes.io/hostname", labels=WEB)], node_selector={"a": "b"}),
            [make_node("x", labels={"a": "b"}), make_node("y")],
            [make_pod("other", labels=WEB, node="x")],
            [],
            id="fits",
        ),
        pytest.param(make_pod(gates=["a", "b"]), [SMALL], [], ["remove scheduling gates a and b"], id="gates"),
        pytest.param(
            make_pod(cpu="2", priority=10, preemption_policy="Never"),
            [SMALL],
            [make_pod("a", cpu="1", node="small"), make_pod("b", cpu="500m", node="small")],
            ["ask for 1500m less CPU", "evict 2 pods of lower priority from small: default/b and default/a"],
            id="eviction",
        ),
        pytest.param(
            make_pod(claims=["data"]), [SMALL], [], ["create the PersistentVolumeClaim default/data"], id="no-claim"
        ),
    ],
)
def test_one_change(pod: Pod, nodes: list[Node], pods: list[Pod], words: list[str]) -> None:
    answer = explain(pod, nodes, pods)
    assert [change.text for change in answer.changes] == words
    assert answer.closest


def test_a_spread_constraint() -> None:
    pod = make_pod(labels=WEB, spread=[make_spread("rack", labels=WEB)], node_selector={"disk": "ssd"})
    nodes = [
        make_node("full", labels={"rack": "1", "disk": "ssd"}),
        make_node("closed", labels={"rack": "2", "disk": "ssd"}, taints=["old:NoSchedule"]),
    ]
    answer = explain(pod, nodes, [make_pod("one", labels=WEB, node="full")])
    assert {change.kind: change.text for change in answer.changes} == {
        "toleration": "tolerate old:NoSchedule",
        "spread": "spread over rack only as far as possible (whenUnsatisfiable: ScheduleAnyway)",
    }


def test_a_missing_volume_of_a_claim() -> None:
    answer = explain(make_pod(claims=["data"]), [SMALL], objects=[make_pvc("data")])
    assert [change.text for change in answer.changes] == ["provide a PersistentVolume for the claim data"]


def test_changes_that_are_enough_only_together() -> None:
    answer = explain(make_pod(cpu="10", node_selector={"disk": "ssd"}), [SMALL, BIG])
    assert not answer.changes
    assert answer.no_change == "no single change is enough"
    assert answer.closest == "small"
    assert [change.text for change in answer.together] == [
        "do not demand the label disk=ssd of the node",
        "ask for 8 less CPU",
    ]


def test_a_complete_search_without_result_is_reported() -> None:
    full = make_node("full", capacity={"pods": "1", "cpu": "4", "memory": "8Gi"})
    answer = explain(make_pod(cpu="1"), [full], [make_pod("other", node="full")])
    assert not answer.changes
    assert not answer.together
    assert answer.no_change.startswith("no lower request, toleration, ")
    assert [(each.text, each.nodes, each.names) for each in answer.reasons] == [("Too many pods", 1, ("full",))]


def test_on_many_nodes_only_a_complete_search_reports_that_nothing_helps() -> None:
    many = [
        make_node(f"n{number}", capacity={"pods": "1", "cpu": str(number), "memory": "8Gi"}) for number in range(1, 41)
    ]
    other_pods = [make_pod(f"on-{node.name}", node=node.name, priority=10) for node in many]
    answer = explain(make_pod(cpu="1", node_selector={"disk": "ssd"}), many, other_pods)
    assert answer.no_change == NO_CHANGE_HELPS
    assert {each.text: each.nodes for each in answer.reasons} == {
        "node(s) didn't match Pod's node affinity/selector": 40
    }


def test_an_incomplete_search_is_reported_as_such() -> None:
    """The pod must stay near one of seven weaker pods: too many combinations to try all."""
    full = make_node("full", capacity={"pods": "8", "cpu": "4", "memory": "8Gi"})
    weak = [make_pod(f"weak-{number}", node="full", labels=WEB if number == 0 else {}) for number in range(7)]
    strong = [make_pod("strong", node="full", priority=20)]
    pod = make_pod(priority=10, preemption_policy="Never", affinity=make_affinity(near=WEB))
    answer = explain(pod, [full], [*weak, *strong])
    assert (answer.changes, answer.together) == ((), ())
    assert answer.no_change == NO_CHANGE_FOUND


def test_a_cluster_without_nodes() -> None:
    answer = explain(make_pod(), [])
    assert answer.sentence == "default/pod stays pending: no nodes available to schedule pods"
    assert answer.no_change == "there is no node in the cluster"


def test_a_pod_that_the_preemptor_must_stay_near_is_no_victim() -> None:
    """Without all weaker pods the preemptor does not fit: it has affinity to one of them."""
    pod = make_pod(cpu="1", priority=10, preemption_policy="Never", affinity=make_affinity(near=WEB))
    other_pods = [make_pod("web", labels=WEB, cpu="500m", node="small"), make_pod("db", cpu="1500m", node="small")]
    answer = explain(pod, [SMALL], other_pods)
    (eviction,) = [change for change in answer.changes if change.kind == "eviction"]
    assert eviction.evict == ("default/db",)


def test_the_closest_node_is_that_of_the_first_change() -> None:
    assert Suggestions().closest == ""
    assert Suggestions(fits="n").closest == "n"
