"""The plugins of `examples/plugins` do what their first sentence promises."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from bayplan.errors import ConfigError
from bayplan.framework import unresolvable
from bayplan.framework.runtime.plugin_discovery import with_plugins_from
from bayplan.framework.runtime.registry import Registry
from bayplan.testing import (
    Harness,
    RandomCluster,
    check_forms_agree,
    clusters,
    label_sets,
    make_node,
    make_pod,
    nodes,
    pods,
)
from docs.fences import ROOT

FOUND = with_plugins_from(Registry(), ROOT / "examples" / "plugins", trust_writable=True)


def example(name: str) -> type[Any]:
    entry = FOUND.get(name)
    assert entry is not None
    return entry.plugin


def test_every_file_holds_one_plugin() -> None:
    files = {path.stem for path in (ROOT / "examples" / "plugins").glob("*.py")}
    assert {entry.name for entry in FOUND} == {stem.title().replace("_", "") for stem in files}


# a node group for a team


def team_cluster() -> Harness:
    return Harness(
        [example("TeamNodes")], nodes=[make_node("pay", labels={"team": "payments"}), make_node("open", cpu=64)]
    )


def test_nodes_of_a_team_reject_other_pods() -> None:
    refused = unresolvable("node(s) are kept for another team").by("TeamNodes")
    cluster = team_cluster()
    assert cluster.filter(make_pod()) == {"pay": refused, "open": "ok"}
    assert cluster.filter(make_pod(labels={"team": "search"})) == {"pay": refused, "open": "ok"}


def test_pods_of_a_team_go_to_its_nodes_first_and_elsewhere_when_those_are_full() -> None:
    cluster = team_cluster()
    placed = [cluster.place(make_pod(f"p{number}", cpu=5, labels={"team": "payments"})) for number in range(2)]
    assert placed == ["pay", "open"]


# cheap nodes

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
PRICES = {"prices": {"small": 0.10, "middle": 0.15, "large": 0.30}}


def priced(*kinds: str) -> list[Any]:
    return [make_node(kind, labels={INSTANCE_TYPE: kind}) for kind in kinds]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        pytest.param(("small", "middle", "large"), [100, 75, 0], id="cheapest-to-dearest"),
        pytest.param(("middle", "large"), [100, 0], id="only-what-can-be-had-counts"),
        pytest.param(("small", "unknown"), [100, 0], id="unknown-is-dear"),
        pytest.param(("large",), [100], id="one-price"),
    ],
)
def test_cheap_nodes_score_by_price(kinds: tuple[str, ...], expected: list[int]) -> None:
    cluster = Harness([example("CheapNodes")], nodes=priced(*kinds), args={"CheapNodes": PRICES}, only=True)
    found = cluster.scores(make_pod())
    assert [found[kind]["CheapNodes"] for kind in kinds] == expected


def test_a_node_without_a_type_counts_as_the_dearest() -> None:
    nodes = [*priced("middle"), make_node("bare")]
    cluster = Harness([example("CheapNodes")], nodes=nodes, args={"CheapNodes": PRICES}, only=True)
    assert cluster.scores(make_pod()) == {"middle": {"CheapNodes": 100}, "bare": {"CheapNodes": 0}}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param(None, "there are none", id="nothing-given"),
        pytest.param({"prices": {"small": "cheap"}}, "amounts; small", id="no-amount"),
    ],
)
def test_an_invalid_price_table_is_refused(args: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f'initializing plugin "CheapNodes": ValueError: .*{words}'):
        Harness([example("CheapNodes")], args={} if args is None else {"CheapNodes": args})


# racks


def test_pods_of_an_app_spread_over_racks() -> None:
    nodes = [make_node(f"{rack}{number}", labels={"rack": rack}) for rack in "ab" for number in range(2)]
    cluster = Harness([example("RackSpread")], nodes=nodes, only=True)
    racks = [cluster.place(make_pod(f"web-{number}", labels={"app": "web"}))[0] for number in range(4)]
    assert sorted(racks) == ["a", "a", "b", "b"]
    assert racks[0] != racks[1]


def test_pods_of_other_apps_and_namespaces_do_not_count() -> None:
    running = [
        make_pod("db", node="a", labels={"app": "db"}),
        make_pod("other", namespace="elsewhere", node="a", labels={"app": "web"}),
        make_pod("web", node="b", labels={"app": "web"}),
    ]
    cluster = Harness(
        [example("RackSpread")],
        nodes=[make_node("a", labels={"rack": "1"}), make_node("b", labels={"rack": "2"}), make_node("none")],
        pods=running,
        only=True,
    )
    found = cluster.scores(make_pod("new", labels={"app": "web"}))
    assert found == {"a": {"RackSpread": 100}, "b": {"RackSpread": 0}, "none": {"RackSpread": 0}}
    assert cluster.scores(make_pod("appless"))["a"] == {}


# a time window

NIGHTLY = {"window": "night"}


def at(hour: int, minute: int = 0) -> Harness:
    return Harness([example("NightWindow")], nodes=[make_node("a")], now=datetime(2026, 3, 1, hour, minute, tzinfo=UTC))


def test_a_pod_for_the_night_is_not_tried_by_day() -> None:
    cluster = at(12)
    assert cluster.place(make_pod("job", labels=NIGHTLY)) == "waiting for the window that opens at 22:00 UTC"
    assert cluster.place(make_pod("web")) == "a"


@pytest.mark.parametrize("hour", [22, 23, 0, 5])
def test_it_is_placed_at_night(hour: int) -> None:
    assert at(hour).place(make_pod("job", labels=NIGHTLY)) == "a"


def test_shortly_before_the_window_it_waits_at_permit() -> None:
    cluster = at(21, 55)
    job = make_pod("job", labels=NIGHTLY)
    assert cluster.place(job) == "waiting on a for NightWindow"
    cluster.advance(301)
    assert cluster.waiting == {"job": ["NightWindow"]}
    cluster.place(make_pod("web"))
    assert cluster.waiting == {}
    assert cluster.node_of(job) == "a"


def test_a_wait_that_runs_out_gives_the_node_back_and_the_next_try_succeeds() -> None:
    cluster = at(21, 55)
    job = make_pod("job", labels=NIGHTLY)
    cluster.place(job)
    cluster.advance(360)
    assert cluster.node_of(job) is None
    assert "rejected due to timeout after waiting 6m0s at plugin NightWindow" in cluster.why(job)
    assert cluster.place(job) == "a"


# queue sort


def due(name: str, deadline: str | None = None, priority: int = 0) -> Any:
    notes = {} if deadline is None else {"example.com/deadline": deadline}
    return make_pod(name, annotations=notes, priority=priority)


def test_pods_are_tried_by_priority_then_deadline_then_age() -> None:
    cluster = Harness([example("DeadlineFirst")])
    arrivals = [
        due("whenever"),
        due("garbled", "soon"),
        due("friday", "2026-03-06T12:00:00Z"),
        due("monday", "2026-03-02T12:00:00"),
        due("boss", priority=10),
    ]
    assert cluster.order(arrivals) == ["boss", "monday", "friday", "whenever", "garbled"]


def test_the_configuration_of_the_queue_order_is_the_one_that_the_harness_makes() -> None:
    text = (ROOT / "examples" / "config" / "deadline-first.yaml").read_text(encoding="utf-8")
    stored = Harness([example("DeadlineFirst")], config=text)
    assert stored.profile().describe() == Harness([example("DeadlineFirst")]).profile().describe()


# all


@pytest.mark.parametrize(
    ("name", "args"),
    [("FastDisks", None), ("TeamNodes", None), ("CheapNodes", PRICES), ("RackSpread", None)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_forms_agree(name: str, args: Any) -> None:
    labels = label_sets(
        {"disk": ["ssd", "hdd"], "team": ["red", "blue"], INSTANCE_TYPE: ["small", "large"], "rack": ["1", "2"]}
    )
    own = label_sets({"disk": ["fast"], "team": ["red", "blue"], "app": ["web"]})
    tried: list[RandomCluster] = []

    def noted(cluster: RandomCluster) -> RandomCluster:
        tried.append(cluster)
        return cluster

    some = clusters(nodes(labels=labels)).map(noted)
    check_forms_agree(example(name), pods=pods(labels=own), clusters=some, args=args, max_examples=25)
    assert len(tried) >= 25
