"""What-if: pods that land, move or wait, costs, and errors in the file."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bayplan.errors import BayplanError
from bayplan.objects.core import Pod
from bayplan.objects.defaults import with_all_defaults
from bayplan.objects.meta import KubeObject, ObjectMeta, OwnerReference
from bayplan.objects.workloads import PriorityClass
from bayplan.sim.offline.offline_cluster import EngineSetup
from bayplan.sim.offline.whatif import PodOutcomeChange, WhatIfResult, run_whatif
from bayplan.sim.offline.whatif_file import (
    NodeChanges,
    NodeCopies,
    Prices,
    PriorityChanges,
    WhatIfChange,
    WhatIfError,
    read_whatif_file,
)
from bayplan.testing import make_node, make_pod
from bayplan.testing.batch_builders import make_gang
from support.builders.packing_profile import PACKING_CONFIG

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HEAD = "apiVersion: bayplan.dev/v1alpha1\nkind: WhatIf\n"


def whatif(objects: Iterable[KubeObject], change: WhatIfChange, setup: EngineSetup | None = None) -> WhatIfResult:
    return run_whatif(list(with_all_defaults(objects)), change, setup or EngineSetup(), now=NOON)


def places(changes: Iterable[PodOutcomeChange]) -> dict[str, tuple[str, str]]:
    return {pod_change.pod.removeprefix("default/"): (pod_change.now, pod_change.then) for pod_change in changes}


def test_pods_land_on_added_nodes() -> None:
    waiting = make_pod("large", cpu=6)
    answer = whatif([make_node("small", cpu=2), waiting], WhatIfChange(nodes=NodeChanges(add=("big=1:cpu=8",))))
    assert places(answer.lands) == {"large": ("", "big-0")}
    assert answer.lands[0].without == ""
    assert (answer.moves, answer.waits, answer.restarts) == ([], [], 0)
    assert (answer.now.nodes, answer.then.nodes) == (1, 2)


def test_pods_of_removed_nodes_move_or_wait_and_daemon_set_pods_are_deleted() -> None:
    daemon = make_pod("agent", cpu="100m", node="old")
    owner = OwnerReference(kind="DaemonSet", name="agent", uid="1", controller=True)
    daemon = Pod(metadata=ObjectMeta(name="agent", owner_references=(owner,)), spec=daemon.spec, status=daemon.status)
    objects = [make_node("old", cpu=8), make_node("new", cpu=4), daemon]
    objects += [make_pod("fits", cpu=3, node="old", priority=5), make_pod("does-not", cpu=3, node="old")]
    answer = whatif(objects, WhatIfChange(nodes=NodeChanges(remove=("ol*",))))
    assert places(answer.moves) == {"fits": ("old", "new")}
    assert places(answer.waits) == {"does-not": ("old", "")}
    assert "Insufficient cpu" in answer.waits[0].why
    assert answer.gone == ["default/agent"]
    assert answer.restarts == 2


def test_another_configuration_changes_the_nodes_of_waiting_pods() -> None:
    objects = [make_node("a", cpu=8), make_node("b", cpu=8), make_pod("full", cpu=4, node="a"), make_pod("web", cpu=1)]
    answer = whatif(objects, WhatIfChange(configuration=PACKING_CONFIG))
    assert [(pod_change.pod, pod_change.then, pod_change.without) for pod_change in answer.lands] == [
        ("default/web", "a", "b")
    ]
    assert answer.moves == []


def test_reschedule_all_moves_running_pods() -> None:
    objects = [make_node("a", cpu=8), make_node("b", cpu=8)]
    objects += [make_pod("one", cpu=4, node="a"), make_pod("two", cpu=1, node="b")]
    answer = whatif(objects, WhatIfChange(configuration=PACKING_CONFIG, reschedule_all=True))
    assert len({pod_change.then for pod_change in answer.moves}) == 1
    assert len(answer.moves) == 1
    assert whatif(objects, WhatIfChange(configuration=PACKING_CONFIG)).moves == []


def test_changed_priorities_change_preemption() -> None:
    low = PriorityClass(ObjectMeta(name="low"), value=1)
    running = make_pod("running", cpu=3, node="a", priority=5)
    waiting = make_pod("waiting", cpu=3, priority=1, priority_class_name="low")
    objects = [make_node("a", cpu=4), low, running, waiting]
    assert places(whatif(objects, WhatIfChange()).waits) == {"waiting": ("", "")}
    for priorities in (PriorityChanges(classes={"low": 9}), PriorityChanges(pods={"default/wait*": 9})):
        answer = whatif(objects, WhatIfChange(priorities=priorities))
        assert places(answer.lands) == {"waiting": ("", "a")}
        assert places(answer.waits) == {"running": ("a", "")}
        assert answer.restarts == 1


def test_a_gang_lands_when_all_of_it_fits() -> None:
    objects = [make_node("a", cpu=2), *make_gang("train", 3, cpu=1).objects]
    assert len(whatif(objects, WhatIfChange()).waits) == 3
    answer = whatif(objects, WhatIfChange(nodes=NodeChanges(add=(NodeCopies(like="a"),))))
    assert {pod_change.pod for pod_change in answer.lands} == {f"default/train-{number}" for number in range(3)}
    assert {pod_change.then for pod_change in answer.lands} == {"a", "a-copy-0"}
    assert answer.waits == []


def test_objects_of_the_change_are_added() -> None:
    answer = whatif([make_node("a", cpu=2)], WhatIfChange(objects=(make_pod("new", cpu=1), make_node("b", cpu=1))))
    assert places(answer.lands) == {"new": ("", "a")}
    assert answer.then.nodes == 2


def test_a_wildcard_removes_only_existing_nodes() -> None:
    """`*` matches the nodes of the cluster, not those that the same change adds."""
    objects = [make_node("a", cpu=2), make_node("b", cpu=2), make_pod("web", cpu=1, node="a")]
    nodes = NodeChanges(add=("big=1:cpu=8", NodeCopies(like="a")), remove=("*",))
    answer = whatif(objects, WhatIfChange(nodes=nodes, objects=(make_node("b", cpu=1),)))
    assert answer.then.nodes == 3  # big-0, a-copy-0 and the new b
    assert places(answer.moves) == {"web": ("a", "big-0")}


def test_nodes_have_prices() -> None:
    kinds = {"large": 2, "small": 1}
    objects = [make_node(name, cpu=4, labels={"type": name}) for name in kinds]
    change = WhatIfChange(
        nodes=NodeChanges(add=(NodeCopies(like="large", count=2),), remove=("small",)),
        prices=Prices(label="type", per_hour={"large": 0.5}),
    )
    answer = whatif([*objects, make_pod("web", cpu=2, node="large")], change)
    assert (answer.now.per_hour, answer.now.unpriced) == (0.5, 1)
    assert (answer.then.per_hour, answer.then.unpriced) == (1.5, 0)
    assert answer.now.requested["cpu"] == 0.25
    assert answer.then.requested["cpu"] == round(2 / 12, 4)
    assert whatif(objects, WhatIfChange()).now.per_hour is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            WhatIfChange(nodes=NodeChanges(remove=("missing",))), "nodes.remove: there is no node missing", id="remove"
        ),
        pytest.param(
            WhatIfChange(nodes=NodeChanges(add=(NodeCopies(like="missing"),))), "no node missing to copy", id="copy"
        ),
        pytest.param(
            WhatIfChange(nodes=NodeChanges(add=("a=x",))), "nodes.add: a=x: 'x' is no number of nodes", id="pool"
        ),
        pytest.param(WhatIfChange(nodes=NodeChanges(add=("a=1", "a=1"))), "there is a node a-0 already", id="twice"),
        pytest.param(WhatIfChange(priorities=PriorityChanges(classes={"x": 1})), "there is no class x", id="class"),
        pytest.param(WhatIfChange(priorities=PriorityChanges(pods={"x": 1})), "there is no pod x", id="pod"),
    ],
)
def test_a_change_that_does_not_apply_is_rejected(change: WhatIfChange, message: str) -> None:
    with pytest.raises(WhatIfError, match=message):
        whatif([make_node("a"), make_pod("web")], change)


def test_a_change_is_read_from_its_file_and_its_configurations(tmp_path: Path) -> None:
    (tmp_path / "packing.yaml").write_text(PACKING_CONFIG)
    path = tmp_path / "change.yaml"
    path.write_text(
        HEAD + "nodes: {add: ['gpu=2:cpu=96', {like: a, count: 2}], remove: [b]}\nconfiguration: packing.yaml\n"
        "priorities: {classes: {urgent: 7}}\nprices: {perHour: {m7: 0.1}}\nafresh: true\n---\n"
        "apiVersion: v1\nkind: Pod\nmetadata: {name: new}\nspec: {containers: [{name: main}]}\n"
    )
    change = read_whatif_file(path)
    assert change.nodes == NodeChanges(add=("gpu=2:cpu=96", NodeCopies(like="a", count=2)), remove=("b",))
    assert change.configuration == PACKING_CONFIG
    assert change.priorities.classes == {"urgent": 7}
    assert change.prices.per_hour == {"m7": 0.1}
    assert change.reschedule_all
    assert [item.name for item in change.objects] == ["new"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "is empty; write apiVersion: bayplan.dev/v1alpha1 and kind: WhatIf", id="empty"),
        pytest.param("apiVersion: v1\nkind: Pod\n", "holds no documents of kind WhatIf", id="a manifest"),
        pytest.param(HEAD + "---\n" + HEAD, "holds 2 documents of kind WhatIf", id="two"),
        pytest.param("apiVersion: v2\nkind: WhatIf\n", "apiVersion is v2; expected bayplan.dev/v1alpha1", id="version"),
        pytest.param(HEAD + "node: 1\n", "document 1: node is not a field of WhatIf; expected one of", id="misspelt"),
        pytest.param(
            HEAD + "nodes: {drop: []}\n", "nodes.drop is not a field .* expected one of add, remove", id="deeper"
        ),
        pytest.param(
            HEAD + "nodes: {add: [{like: a, cont: 2}]}\n",
            r"nodes.add\[0\].cont is not a field .* expected one of like, count$",
            id="deepest",
        ),
        pytest.param(HEAD + "nodes: {remove: b}\n", "nodes.remove is a text; write a list", id="no list"),
        pytest.param(HEAD + "afresh: maybe\n", "afresh is a text; write true or false", id="not a bool"),
        pytest.param(
            HEAD + "prices: {perHour: {m7: -1}}\n", "prices.perHour.m7 is not a price; expected a number", id="price"
        ),
        pytest.param(HEAD + "configuration: none.yaml\n", "configuration: .*none.yaml cannot be read", id="no file"),
        pytest.param(
            HEAD + "---\napiVersion: v1\nkind: Secret\n",
            "document 2: Secret of v1 does not affect scheduling",
            id="a secret",
        ),
        pytest.param(
            HEAD + "---\napiVersion: v1\nkind: Pod\nspec: 1\n", "document 2: .* spec is a whole number", id="no pod"
        ),
    ],
)
def test_an_invalid_file_is_rejected_with_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "change.yaml"
    path.write_text(text)
    with pytest.raises(BayplanError, match=message):
        read_whatif_file(path)
