"""Inter-pod affinity and anti-affinity: both directions, required and preferred terms, and hints."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.framework.api.status import SKIP
from bayplan.objects.core import Affinity, Namespace, Node, Pod, PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from bayplan.objects.meta import LabelSelector, LabelSelectorRequirement, ObjectMeta
from bayplan.objects.selectors.pod_affinity import affinity_terms
from bayplan.plugins.inter_pod_affinity.args import InterPodAffinityArgs
from bayplan.plugins.inter_pod_affinity.plugin import PREFERRED, REQUIRED, InterPodAffinity
from support.builders.framework import (
    FEASIBLE,
    errored,
    evaluate_hints,
    make_cycle,
    make_filtering,
    make_node,
    make_plugin,
    make_pod,
    make_snapshot,
    rejected,
    replace_fields,
    run_filter,
    run_score,
    unresolvable,
)

ZONE = "zone"
LONELY = unresolvable("node(s) didn't match pod affinity rules")
CROWDED = rejected("node(s) didn't match pod anti-affinity rules")
UNWELCOME = rejected("node(s) didn't satisfy existing pods anti-affinity rules")


def selects(**labels: str) -> LabelSelector:
    return LabelSelector(match_labels=labels)


def term(key: str = ZONE, app: str = "web", **fields: Any) -> PodAffinityTerm:
    return PodAffinityTerm(topology_key=key, **{"label_selector": selects(app=app), **fields})


def weighted(weight: int, *arguments: Any, **fields: Any) -> WeightedPodAffinityTerm:
    return WeightedPodAffinityTerm(weight=weight, pod_affinity_term=term(*arguments, **fields))


def near(*terms: PodAffinityTerm) -> Affinity:
    return Affinity(pod_affinity=PodAffinity(required=terms))


def far(*terms: PodAffinityTerm) -> Affinity:
    return Affinity(pod_anti_affinity=PodAffinity(required=terms))


def likes(*terms: WeightedPodAffinityTerm) -> Affinity:
    return Affinity(pod_affinity=PodAffinity(preferred=terms))


def dislikes(*terms: WeightedPodAffinityTerm) -> Affinity:
    return Affinity(pod_anti_affinity=PodAffinity(preferred=terms))


BOTH_WAYS = PodAffinity(preferred=(weighted(5),))


def pod(name: str = "incoming", app: str = "", node: str = "", affinity: Affinity | None = None, **fields: Any) -> Pod:
    return make_pod(name, labels={"app": app} if app else {}, node=node, affinity=affinity, **fields)


A1, A2 = make_node("a1", labels={ZONE: "a", "host": "a1"}), make_node("a2", labels={ZONE: "a", "host": "a2"})
B = make_node("b", labels={ZONE: "b", "host": "b"})
X = make_node("x", labels={"host": "x"})
NODES = (A1, A2, B, X)
NAMESPACES = [
    Namespace(metadata=ObjectMeta(name="default", labels={"team": "a"})),
    Namespace(metadata=ObjectMeta(name="other", labels={"team": "b"})),
]


def answers(*found: Any) -> dict[str, Any]:
    return dict(zip(("a1", "a2", "b", "x"), found, strict=True))


# required


@pytest.mark.parametrize(
    ("incoming", "there", "found"),
    [
        pytest.param(
            pod(affinity=near(term())),
            [pod("w", "web", "a1")],
            answers(FEASIBLE, FEASIBLE, LONELY, LONELY),
            id="same-zone",
        ),
        pytest.param(
            pod(affinity=near(term("host"))),
            [pod("w", "web", "a1")],
            answers(FEASIBLE, LONELY, LONELY, LONELY),
            id="same-host",
        ),
        pytest.param(
            pod(affinity=near(term())),
            [pod("w", "web", "a1", terminating=True)],
            answers(FEASIBLE, FEASIBLE, LONELY, LONELY),
            id="terminating-pods-count",
        ),
        pytest.param(pod(affinity=near(term())), [], answers(LONELY, LONELY, LONELY, LONELY), id="nobody-there"),
        pytest.param(
            pod(app="web", affinity=near(term())),
            [],
            answers(FEASIBLE, FEASIBLE, FEASIBLE, LONELY),
            id="the-first-of-its-kind",
        ),
        pytest.param(
            pod(app="web", affinity=near(term())),
            [pod("w", "web", "b")],
            answers(LONELY, LONELY, FEASIBLE, LONELY),
            id="not-the-first-of-its-kind",
        ),
        pytest.param(
            pod(app="web", affinity=near(term())),
            [pod("w", "web", "x")],
            answers(FEASIBLE, FEASIBLE, FEASIBLE, LONELY),
            id="one-on-a-node-without-the-key-does-not-count",
        ),
        pytest.param(
            pod(affinity=near(term(), term("host", "web"))),
            [pod("w", "web", "a1")],
            answers(FEASIBLE, LONELY, LONELY, LONELY),
            id="every-term-must-hold",
        ),
        pytest.param(
            pod(affinity=near(term(), term(app="db"))),
            [pod("w", "web", "a1"), pod("d", "db", "a1")],
            answers(LONELY, LONELY, LONELY, LONELY),
            id="one-pod-must-match-all-terms",
        ),
        pytest.param(
            pod(affinity=far(term())), [pod("w", "web", "a1")], answers(CROWDED, CROWDED, FEASIBLE, FEASIBLE), id="away"
        ),
        pytest.param(
            pod(affinity=far(term(), term("host", "db"))),
            [pod("w", "web", "a1"), pod("d", "db", "b")],
            answers(CROWDED, CROWDED, CROWDED, FEASIBLE),
            id="any-term-refuses",
        ),
        pytest.param(
            pod(app="web"),
            [pod("grump", "db", "a1", far(term()))],
            answers(UNWELCOME, UNWELCOME, FEASIBLE, FEASIBLE),
            id="others-keep-us-away",
        ),
        pytest.param(
            pod(app="db"),
            [pod("grump", "db", "a1", far(term()))],
            answers(FEASIBLE, FEASIBLE, FEASIBLE, FEASIBLE),
            id="others-do-not-mind-us",
        ),
        pytest.param(
            pod(app="web", affinity=far(term("host"))),
            [pod("grump", "web", "a1", far(term()))],
            answers(CROWDED, UNWELCOME, FEASIBLE, FEASIBLE),
            id="our-reason-comes-first",
        ),
        pytest.param(
            pod(affinity=near(term(label_selector=None))),
            [pod("w", "web", "a1")],
            answers(LONELY, LONELY, LONELY, LONELY),
            id="no-selector-means-nobody",
        ),
    ],
)
def test_required_terms(incoming: Pod, there: list[Pod], found: dict[str, Any]) -> None:
    assert run_filter(InterPodAffinity, incoming, *NODES, pods=there) == found


def not_team(value: str) -> LabelSelector:
    return LabelSelector(match_expressions=(LabelSelectorRequirement(key="team", operator="NotIn", values=(value,)),))


@pytest.mark.parametrize(
    ("fields", "where", "meant"),
    [
        pytest.param({}, "default", True, id="own-namespace"),
        pytest.param({}, "other", False, id="own-namespace-only"),
        pytest.param({"namespaces": ("other",)}, "other", True, id="named"),
        pytest.param({"namespaces": ("other",)}, "default", False, id="named-instead-of-own"),
        pytest.param({"namespace_selector": LabelSelector()}, "nowhere", True, id="all-namespaces"),
        pytest.param({"namespace_selector": selects(team="b")}, "other", True, id="selected"),
        pytest.param({"namespace_selector": selects(team="b")}, "default", False, id="not-selected"),
        pytest.param({"namespace_selector": selects(team="b")}, "nowhere", False, id="unknown"),
        pytest.param(
            {"namespace_selector": selects(team="b"), "namespaces": ("default",)},
            "default",
            True,
            id="named-or-selected",
        ),
        pytest.param({"namespace_selector": not_team("b")}, "other", True, id="only-negations-mean-all-as-in-1.36"),
    ],
)
def test_namespaces_of_the_incoming_pods_terms(fields: dict[str, Any], where: str, meant: bool) -> None:
    incoming = pod(affinity=far(term(**fields)))
    there = [pod("w", "web", "b", namespace=where)]
    found = run_filter(InterPodAffinity, incoming, *NODES, pods=there, objects=NAMESPACES)
    assert found["b"] == (CROWDED if meant else FEASIBLE)


@pytest.mark.parametrize(
    ("selector", "ours", "meant"),
    [
        pytest.param(selects(team="b"), "other", True, id="selected"),
        pytest.param(selects(team="b"), "default", False, id="not-selected"),
        pytest.param(selects(team="b"), "nowhere", False, id="unknown-has-no-labels"),
        pytest.param(not_team("b"), "other", False, id="negation-looks-at-real-labels"),
        pytest.param(not_team("b"), "nowhere", True, id="negation-of-no-labels"),
    ],
)
def test_namespaces_of_terms_of_pods_already_there(selector: LabelSelector, ours: str, meant: bool) -> None:
    there = [pod("grump", "db", "b", far(term(namespace_selector=selector)))]
    incoming = pod(app="web", namespace=ours)
    found = run_filter(InterPodAffinity, incoming, *NODES, pods=there, objects=NAMESPACES)
    assert found["b"] == (UNWELCOME if meant else FEASIBLE)


def test_nothing_required_is_skipped() -> None:
    plugin = make_plugin(InterPodAffinity)
    assert plugin.pre_filter(make_cycle(pod(), make_snapshot(NODES))) is SKIP
    existing = pod("grump", "db", "x", far(term()))  # on a node without its key: rejects no pod
    assert plugin.pre_filter(make_cycle(pod(app="web"), make_snapshot(NODES, [existing]))) is SKIP
    liked = pod(affinity=likes(weighted(1)))
    assert plugin.pre_filter(make_cycle(liked, make_snapshot(NODES))) is SKIP


def test_filter_without_pre_filter_is_an_error() -> None:
    snapshot = make_snapshot([B])
    status = (
        make_filtering(make_plugin(InterPodAffinity))
        .filter_table(make_cycle(pod(), snapshot), snapshot.table)
        .status(0)
    )
    expected = (
        'running "InterPodAffinity" filter plugin: error reading "PreFilterInterPodAffinity" from cycleState: not found'
    )
    assert (status.code.label, status.reasons) == errored(expected)


def test_added_pods_do_not_change_the_original_cycle() -> None:
    snapshot = make_snapshot(NODES, [pod("w", "web", "a1")])
    plugin = make_plugin(InterPodAffinity)
    filtering, cycle = make_filtering(plugin), make_cycle(pod(affinity=far(term())), snapshot)
    filtering.pre_filter(cycle)
    trial, fork = cycle.clone(), snapshot.nodes.fork([0])
    filtering.remove_pod(trial, fork, fork.pods[0][0])
    assert not trial.get(REQUIRED).anti_affinity.any
    assert cycle.get(REQUIRED).anti_affinity.any
    assert filtering.filter_fork(trial, fork).ok


# preferred


@pytest.mark.parametrize(
    ("incoming", "there", "scores"),
    [
        pytest.param(
            pod(affinity=likes(weighted(10))), [pod("w", "web", "a1")], answers(100, 100, 0, 0), id="near-the-liked"
        ),
        pytest.param(
            pod(affinity=dislikes(weighted(10))),
            [pod("w", "web", "a1")],
            answers(0, 0, 100, 100),
            id="far-from-the-disliked",
        ),
        pytest.param(
            pod(affinity=likes(weighted(50), weighted(29, "host"))),
            [pod("w", "web", "a1"), pod("v", "web", "b")],
            answers(100, 63, 100, 0),
            id="weights-add-up",
        ),
        pytest.param(
            pod(app="web"), [pod("fan", "db", "b", likes(weighted(7)))], answers(0, 0, 100, 0), id="others-like-us"
        ),
        pytest.param(
            pod(app="web"),
            [pod("grump", "db", "b", dislikes(weighted(7)))],
            answers(100, 100, 0, 100),
            id="others-dislike-us",
        ),
        pytest.param(
            pod(app="web"),
            [pod("fan", "db", "b", near(term()))],
            answers(0, 0, 100, 0),
            id="required-terms-of-others-count",
        ),
        pytest.param(
            pod(affinity=likes(weighted(5), weighted(5, "zone", "db"))),
            [pod("w", "web", "a1"), pod("d", "db", "b")],
            answers(100, 100, 100, 0),
            id="equal-liking",
        ),
        pytest.param(pod(affinity=likes(weighted(5))), [pod("d", "db", "b")], {}, id="nobody-liked-is-skipped"),
        pytest.param(pod(affinity=likes(weighted(5))), [pod("w", "web", "x")], {}, id="no-key-no-entry"),
        pytest.param(
            pod(affinity=Affinity(None, BOTH_WAYS, BOTH_WAYS)),
            [pod("w", "web", "b")],
            answers(0, 0, 0, 0),
            id="what-cancels-out-still-counts",
        ),
    ],
)
def test_preferred_terms(incoming: Pod, there: list[Pod], scores: dict[str, int]) -> None:
    assert run_score(InterPodAffinity, incoming, *NODES, pods=there) == scores


def test_the_quotient_is_taken_first() -> None:
    """29 of 50 is 0.58, and a hundred times that in floats is 57.99…: 57, as upstream has it."""
    incoming = pod(affinity=likes(weighted(29, "host"), weighted(50, "host", "db")))
    there = [pod("w", "web", "a1"), pod("d", "db", "b")]
    assert run_score(InterPodAffinity, incoming, *NODES, pods=there) == answers(57, 0, 100, 0)


@pytest.mark.parametrize(
    ("args", "incoming", "there", "scores"),
    [
        pytest.param(
            InterPodAffinityArgs(hard_pod_affinity_weight=0),
            pod(app="web"),
            [pod("fan", "db", "b", near(term()))],
            {},
            id="required-terms-of-others-are-worth-nothing",
        ),
        pytest.param(
            InterPodAffinityArgs(ignore_preferred_terms_of_existing_pods=True),
            pod(app="web"),
            [pod("fan", "db", "b", likes(weighted(7)))],
            {},
            id="others-are-not-asked",
        ),
        pytest.param(
            InterPodAffinityArgs(ignore_preferred_terms_of_existing_pods=True),
            pod(app="web", affinity=likes(weighted(1, "zone", "db"))),
            [pod("fan", "db", "b", likes(weighted(7)))],
            answers(0, 0, 100, 0),
            id="unless-the-pod-itself-prefers-something",
        ),
    ],
)
def test_arguments(args: InterPodAffinityArgs, incoming: Pod, there: list[Pod], scores: dict[str, int]) -> None:
    assert run_score(InterPodAffinity, incoming, *NODES, pods=there, args=args) == scores


def test_scores_without_prescore_are_errors() -> None:
    plugin, cycle = make_plugin(InterPodAffinity), make_cycle(pod())
    expected = f'failed to read "{PREFERRED.name}" from cycleState: not found'
    assert plugin.score_nodes(cycle, cycle.snapshot.table).message == expected


# hints

WANTS, AVOIDS = pod(affinity=near(term())), pod(affinity=far(term()))
WANTS_TWO = pod(affinity=near(term(), term("host", "db")))
WEB, DB = pod("other", "web", "a1"), pod("other", "db", "a1")


@pytest.mark.parametrize(
    ("incoming", "old", "new", "hint"),
    [
        pytest.param(WANTS, None, WEB, "Queue", id="the-wanted-comes"),
        pytest.param(WANTS, None, DB, "Skip", id="another-comes"),
        pytest.param(WANTS, None, pod("other", "web"), "Skip", id="on-no-node"),
        pytest.param(WANTS, None, pod("other", "web", nominated="a1"), "Queue", id="nominated"),
        pytest.param(WANTS, WEB, None, "Skip", id="the-wanted-goes"),
        pytest.param(WANTS, DB, WEB, "Queue", id="becomes-wanted"),
        pytest.param(WANTS, WEB, DB, "Skip", id="is-no-longer-wanted"),
        pytest.param(WANTS, pod("other", "db"), WEB, "Skip", id="was-on-no-node-before"),
        pytest.param(WANTS_TWO, None, WEB, "Skip", id="one-of-two-terms-is-not-enough"),
        pytest.param(AVOIDS, WEB, None, "Queue", id="the-avoided-goes"),
        pytest.param(AVOIDS, DB, None, "Skip", id="another-goes"),
        pytest.param(AVOIDS, None, WEB, "Skip", id="the-avoided-comes"),
        pytest.param(AVOIDS, WEB, DB, "Queue", id="is-no-longer-avoided"),
        pytest.param(AVOIDS, DB, WEB, "Skip", id="becomes-avoided"),
        pytest.param(
            pod(app="web"), pod("grump", "db", "a1", far(term())), None, "Queue", id="one-who-kept-us-away-goes"
        ),
        pytest.param(
            pod(app="db"), pod("grump", "db", "a1", far(term())), None, "Skip", id="one-who-did-not-mind-us-goes"
        ),
        pytest.param(pod(), WEB, None, "Skip", id="no-terms-match-nobody"),
        pytest.param(
            WANTS, WANTS, replace_fields(WANTS, metadata={"labels": {"x": "y"}}), "Queue", id="the-pod-itself-changes"
        ),
        pytest.param(
            pod(affinity=near(term(namespace_selector=selects(team="b")))),
            None,
            pod("other", "web", "a1", namespace="other"),
            "Skip",
            id="selectors-of-namespaces-see-no-labels",
        ),
        pytest.param(
            pod(affinity=near(term(namespace_selector=not_team("b")))),
            None,
            pod("other", "web", "a1", namespace="other"),
            "Queue",
            id="and-negations-match-every-namespace",
        ),
    ],
)
def test_pod_hints(incoming: Pod, old: Pod | None, new: Pod | None, hint: str) -> None:
    assert evaluate_hints(make_plugin(InterPodAffinity), "Pod", incoming, old, new) == [hint]


def labelled(**labels: str) -> Node:
    return make_node("n", labels=labels)


@pytest.mark.parametrize(
    ("incoming", "old", "new", "hint"),
    [
        pytest.param(WANTS, None, labelled(zone="a"), "Queue", id="affinity-new-node-with-the-key"),
        pytest.param(WANTS, None, labelled(), "Skip", id="affinity-new-node-without-the-key"),
        pytest.param(WANTS, labelled(), labelled(zone="a"), "Queue", id="affinity-gets-the-key"),
        pytest.param(WANTS, labelled(zone="a"), labelled(zone="b"), "Queue", id="affinity-moves"),
        pytest.param(WANTS, labelled(zone="a"), labelled(), "Skip", id="affinity-loses-the-key"),
        pytest.param(WANTS, labelled(zone="a"), labelled(zone="a", x="y"), "Skip", id="affinity-stays"),
        pytest.param(AVOIDS, None, labelled(), "Queue", id="anti-any-new-node"),
        pytest.param(AVOIDS, labelled(zone="a"), labelled(), "Queue", id="anti-loses-the-key"),
        pytest.param(AVOIDS, labelled(zone="a"), labelled(zone="b"), "Queue", id="anti-moves"),
        pytest.param(AVOIDS, labelled(), labelled(zone="a"), "Skip", id="anti-gets-the-key"),
        pytest.param(AVOIDS, labelled(zone="a"), labelled(zone="a", x="y"), "Skip", id="anti-stays"),
        pytest.param(pod(), None, labelled(zone="a"), "Skip", id="no-terms"),
    ],
)
def test_node_hints(incoming: Pod, old: Node | None, new: Node, hint: str) -> None:
    assert evaluate_hints(make_plugin(InterPodAffinity), "Node", incoming, old, new) == [hint]


# terms and signatures


def test_equal_terms_are_equal_values() -> None:
    assert affinity_terms(pod("a", affinity=near(term()))) == affinity_terms(pod("b", affinity=near(term())))
    assert affinity_terms(pod("a", affinity=near(term()))) != affinity_terms(pod("a", affinity=far(term())))
    assert affinity_terms(pod(affinity=near(term()), namespace="x")) != affinity_terms(pod(affinity=near(term())))
    assert affinity_terms(pod()) is None
    assert affinity_terms(pod(affinity=Affinity())) is None


def test_a_malformed_selector_matches_no_pod() -> None:
    wrong = LabelSelector(match_expressions=(LabelSelectorRequirement(key="a", operator="Nope"),))
    terms = affinity_terms(pod(affinity=near(term(label_selector=wrong))))
    assert terms is not None
    assert terms.required[0].selector.nothing


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(pod("a", "web"), pod("b", "web"), True, id="another-name"),
        pytest.param(pod("a", "web"), pod("a", "db"), False, id="other-labels"),
        pytest.param(pod("a", "web"), pod("a", "web", namespace="x"), False, id="another-namespace"),
        pytest.param(pod("a"), pod("a", affinity=near(term())), False, id="other-terms"),
    ],
)
def test_signatures(one: Pod, other: Pod, same: bool) -> None:
    plugin = make_plugin(InterPodAffinity)
    assert (plugin.signature(one) == plugin.signature(other)) is same
