"""Node selectors, node affinity, and the affinity that a profile adds."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.framework.api.events import QueueingHint
from bayplan.framework.api.plugin import PreFilterResult
from bayplan.framework.runtime.filtering import PreFilterSummary
from bayplan.objects import core
from bayplan.objects.core import Affinity, Node, Pod
from bayplan.objects.selectors.label_selectors import SelectorError
from bayplan.plugins.node_affinity.plugin import CONFLICT, ENFORCED_MISMATCH, POD_MISMATCH, NodeAffinity
from support.builders.framework import (
    FEASIBLE,
    FilterResult,
    diagnose,
    evaluate_hints,
    from_api,
    make_cycle,
    make_filtering,
    make_node,
    make_plugin,
    make_pod,
    make_scoring,
    make_snapshot,
    run_filter,
    run_score,
    score,
    unresolvable,
)

MISMATCH = unresolvable(POD_MISMATCH)
ENFORCED = unresolvable(ENFORCED_MISMATCH)
Term = dict[str, Any]


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def named(*names: str, operator: str = "In") -> Term:
    return {"matchFields": [expression("metadata.name", operator, *names)]}


def labelled(key: str, operator: str, *values: str) -> Term:
    return {"matchExpressions": [expression(key, operator, *values)]}


def node_affinity(*required: Term, preferred: list[tuple[int, Term]] | None = None) -> core.NodeAffinity:
    manifest = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(required)} if required else None,
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": weight, "preference": term} for weight, term in preferred or []
        ],
    }
    pod = from_api(Pod, {"spec": {"affinity": {"nodeAffinity": manifest}}})
    assert pod.spec.affinity is not None
    assert pod.spec.affinity.node_affinity is not None
    return pod.spec.affinity.node_affinity


def requiring(*terms: Term, **spec: Any) -> Pod:
    return make_pod(affinity=Affinity(node_affinity=node_affinity(*terms)), **spec)


def preferring(*terms: tuple[int, Term]) -> Pod:
    return make_pod(affinity=Affinity(node_affinity=node_affinity(preferred=list(terms))))


SSD, HDD, BARE = (
    make_node("ssd", labels={"disk": "ssd", "gen": "3"}),
    make_node("hdd", labels={"disk": "hdd"}),
    make_node("bare"),
)


@pytest.mark.parametrize(
    ("pod", "fitting"),
    [
        pytest.param(make_pod(), {"ssd", "hdd", "bare"}, id="asks for nothing"),
        pytest.param(make_pod(node_selector={"disk": "ssd"}), {"ssd"}, id="node selector"),
        pytest.param(make_pod(node_selector={"disk": "ssd", "gen": "4"}), set(), id="node selector, all of it"),
        pytest.param(requiring(labelled("disk", "In", "ssd", "hdd")), {"ssd", "hdd"}, id="In"),
        pytest.param(requiring(labelled("disk", "NotIn", "ssd")), {"hdd", "bare"}, id="NotIn holds without the label"),
        pytest.param(requiring(labelled("disk", "Exists")), {"ssd", "hdd"}, id="Exists"),
        pytest.param(requiring(labelled("disk", "DoesNotExist")), {"bare"}, id="DoesNotExist"),
        pytest.param(requiring(labelled("gen", "Gt", "2")), {"ssd"}, id="Gt"),
        pytest.param(requiring(labelled("gen", "Lt", "2")), set(), id="Lt"),
        pytest.param(
            requiring(labelled("disk", "In", "ssd"), labelled("disk", "In", "hdd")), {"ssd", "hdd"}, id="terms are or"
        ),
        pytest.param(requiring({**labelled("disk", "Exists"), **named("hdd")}), {"hdd"}, id="a term is and"),
        pytest.param(
            requiring(labelled("disk", "Exists"), node_selector={"disk": "hdd"}), {"hdd"}, id="with the selector: and"
        ),
        pytest.param(requiring({}), set(), id="an empty term matches nothing"),
        pytest.param(
            requiring(labelled("disk", "In"), labelled("disk", "In", "hdd")),
            {"hdd"},
            id="a malformed term never matches",
        ),
        pytest.param(requiring(named("ssd", operator="NotIn")), {"hdd", "bare"}, id="all but one by name"),
    ],
)
def test_filter(pod: Pod, fitting: set[str]) -> None:
    found = run_filter(NodeAffinity, pod, SSD, HDD, BARE)
    absent = unresolvable("node(s) didn't satisfy plugin(s) [NodeAffinity]")
    assert {name for name, answer in found.items() if answer == FEASIBLE} == fitting
    assert set(found.values()) <= {FEASIBLE, MISMATCH, absent}


def test_no_terms_at_all_match_nothing() -> None:
    pod = make_pod(affinity=Affinity(node_affinity=core.NodeAffinity(required=core.NodeSelector())))
    assert run_filter(NodeAffinity, pod, SSD) == {"ssd": MISMATCH}


@pytest.mark.parametrize(
    ("terms", "names"),
    [
        pytest.param((named("ssd"),), {"ssd"}, id="one name"),
        pytest.param((named("ssd"), named("hdd")), {"ssd", "hdd"}, id="several terms"),
        pytest.param((named("ssd"), labelled("disk", "Exists")), None, id="one term leaves it open"),
        pytest.param((named("ssd", operator="NotIn"),), None, id="NotIn tells no names"),
        pytest.param((labelled("disk", "Exists"),), None, id="labels tell no names"),
        pytest.param(
            (
                {"matchFields": [expression("metadata.name", "In", "a"), expression("metadata.name", "In", "b")]},
                named("c"),
            ),
            {"c"},
            id="a term may contradict itself",
        ),
        pytest.param((named("a", "b"),), {"a", "b"}, id="two values, though no node can match them"),
        pytest.param(({"matchFields": [expression("metadata.uid", "In", "a")]},), None, id="another field"),
    ],
)
def test_pre_filter_narrows_to_node_names(terms: tuple[Term, ...], names: set[str] | None) -> None:
    found = make_plugin(NodeAffinity).pre_filter(make_cycle(requiring(*terms)))
    assert found == (None if names is None else PreFilterResult(frozenset(names)))


def test_contradicting_names_reject_the_pod() -> None:
    term = {"matchFields": [expression("metadata.name", "In", "a"), expression("metadata.name", "In", "b")]}
    diagnosis = diagnose(NodeAffinity, requiring(term), make_snapshot([SSD]))
    assert diagnosis.sentence() == f"0/1 nodes are available: {CONFLICT}."


@pytest.mark.parametrize(
    ("pod", "added", "skips"),
    [
        pytest.param(make_pod(), None, True, id="asks for nothing"),
        pytest.param(preferring((1, labelled("disk", "Exists"))), None, True, id="only prefers"),
        pytest.param(make_pod(node_selector={"a": "b"}), None, False, id="selects"),
        pytest.param(make_pod(), node_affinity(labelled("disk", "Exists")), False, id="the profile asks"),
        pytest.param(
            make_pod(), node_affinity(preferred=[(1, labelled("disk", "Exists"))]), True, id="the profile only prefers"
        ),
    ],
)
def test_pods_without_affinity_are_skipped(pod: Pod, added: core.NodeAffinity | None, skips: bool) -> None:
    cycle = make_cycle(pod)
    make_filtering(NodeAffinity(added)).pre_filter(cycle)
    assert bool(cycle.skip_filter) is skips


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(make_pod(), {"ssd": FEASIBLE, "hdd": ENFORCED, "bare": ENFORCED}, id="every pod"),
        pytest.param(
            make_pod(node_selector={"disk": "hdd"}),
            {"ssd": MISMATCH, "hdd": ENFORCED, "bare": ENFORCED},
            id="the profile's reason first",
        ),
    ],
)
def test_the_profile_may_add_an_affinity(pod: Pod, expected: dict[str, FilterResult]) -> None:
    assert run_filter(NodeAffinity(node_affinity(labelled("disk", "In", "ssd"))), pod, SSD, HDD, BARE) == expected


def test_filter_without_pre_filter_reads_the_pod_itself() -> None:
    cycle = make_cycle(make_pod(node_selector={"disk": "ssd"}), make_snapshot([SSD, HDD]))
    diagnosis = make_filtering(NodeAffinity()).run_filters(cycle, PreFilterSummary())
    assert [diagnosis.status(row).ok for row in range(2)] == [True, False]


HEAVY, LIGHT = (30, labelled("disk", "In", "ssd")), (10, labelled("disk", "Exists"))


@pytest.mark.parametrize(
    ("pod", "added", "expected"),
    [
        pytest.param(make_pod(), None, {}, id="no preference: skipped"),
        pytest.param(
            preferring(HEAVY, LIGHT),
            None,
            {"ssd": 100, "hdd": 25, "bare": 0},
            id="weights add up, the largest becomes 100",
        ),
        pytest.param(
            preferring((0, labelled("disk", "Exists"))),
            None,
            {"ssd": 0, "hdd": 0, "bare": 0},
            id="weight 0 counts for nothing",
        ),
        pytest.param(preferring((5, {})), None, {"ssd": 0, "hdd": 0, "bare": 0}, id="an empty term prefers no node"),
        pytest.param(make_pod(), [LIGHT], {"ssd": 100, "hdd": 100, "bare": 0}, id="the profile's preference"),
        pytest.param(preferring(HEAVY), [LIGHT], {"ssd": 100, "hdd": 25, "bare": 0}, id="both"),
        pytest.param(preferring((7, named("bare"))), None, {"ssd": 0, "hdd": 0, "bare": 100}, id="by name"),
    ],
)
def test_score(pod: Pod, added: list[tuple[int, Term]] | None, expected: dict[str, int]) -> None:
    plugin = NodeAffinity(None if added is None else node_affinity(preferred=added))
    assert run_score(plugin, pod, SSD, HDD, BARE) == expected


@pytest.mark.parametrize("with_pre_score", [True, False])
def test_a_malformed_preference_is_an_error(with_pre_score: bool) -> None:
    scoring = make_scoring(NodeAffinity())
    if not with_pre_score:
        scoring._pre_scores = ()
    pod = preferring((1, labelled("disk", "Exists", "ssd")))
    scores = scoring.score(make_cycle(pod, snapshot := make_snapshot([SSD])), snapshot.table)
    wrong = (
        '[0].matchExpressions[0].values: Invalid value: ["ssd"]: values set must be empty for exists and does not exist'
    )
    doing = (
        'running PreScore plugin "NodeAffinity": '
        if with_pre_score
        else 'running Score plugins: plugin "NodeAffinity" failed with: '
    )
    assert scores.status.message == doing + wrong


def test_score_without_pre_score_gives_0_instead_of_skipping() -> None:
    scoring = make_scoring(NodeAffinity())
    scoring._pre_scores = ()
    snapshot = make_snapshot([SSD])
    assert scoring.score(make_cycle(make_pod(), snapshot), snapshot.table).by_plugin["NodeAffinity"].tolist() == [0]
    assert score(NodeAffinity, make_pod(), snapshot).by_plugin == {}


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(None, SSD, "Queue", id="a matching node came"),
        pytest.param(None, HDD, "Skip", id="another node came"),
        pytest.param(HDD, SSD, "Queue", id="matches now"),
        pytest.param(SSD, SSD, "Skip", id="matched before"),
        pytest.param(SSD, HDD, "Skip", id="matches no more"),
    ],
)
def test_hints(old: Node | None, new: Node, hint: str) -> None:
    assert evaluate_hints(NodeAffinity(), "Node", make_pod(node_selector={"disk": "ssd"}), old, new) == [hint]


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(None, SSD, "Queue", id="matches both"),
        pytest.param(None, HDD, "Skip", id="not what the profile asks"),
        pytest.param(HDD, SSD, "Skip", id="the pod's own part matched before"),
    ],
)
def test_hints_with_an_added_affinity(old: Node | None, new: Node, hint: str) -> None:
    plugin = NodeAffinity(node_affinity(labelled("disk", "In", "ssd")))
    assert evaluate_hints(plugin, "Node", requiring(labelled("disk", "Exists")), old, new) == [hint]


@pytest.mark.parametrize(
    ("terms", "node", "expected"),
    [
        pytest.param((labelled("disk", "In"),), SSD, None, id="nothing to match: who knows"),
        pytest.param(
            (labelled("disk", "In"), labelled("disk", "In", "ssd")), SSD, QueueingHint.QUEUE, id="another term matches"
        ),
    ],
)
def test_a_hint_about_a_malformed_term_raises_unless_another_decides(
    terms: tuple[Term, ...], node: Node, expected: QueueingHint | None
) -> None:
    (registration,) = NodeAffinity().events_to_register
    assert registration.hint is not None
    if expected is None:
        with pytest.raises(SelectorError, match="values set can't be empty"):
            registration.hint(requiring(*terms), None, node)
    else:
        assert registration.hint(requiring(*terms), None, node) is expected


def test_signatures() -> None:
    sign = NodeAffinity().signature
    one = make_pod("x", node_selector={"a": "1", "b": "2"})
    assert sign(one) == sign(make_pod("y", node_selector={"b": "2", "a": "1"}))
    assert len({sign(one), sign(requiring(named("a"))), sign(preferring(HEAVY)), sign(make_pod())}) == 4
