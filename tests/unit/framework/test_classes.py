"""Who shares what with whom, how much of it is kept, and who is asked how often."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from bayplan.app import configured, filled_cache, known_plugins
from bayplan.clock import ManualClock
from bayplan.framework import Cycle, NodeTable, NodeView, Rejection, Status, row_alone, unschedulable
from bayplan.framework.classes import Shelf
from bayplan.objects.core import Pod
from bayplan.objects.resource import DeviceClass
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import IntVector
from builders import make_node, make_pod

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {{multiPoint: {{enabled: [{enabled}]}}}}
"""
DEFAULT = "default-scheduler"


class Counted:
    """Signs by the team, and counts how often it is asked about whom."""

    name = "Counted"
    depends_on = row_alone
    looks_at_pods = False
    asked: ClassVar[Counter[str]] = Counter()

    def signature(self, pod: Pod) -> Hashable:
        return pod.metadata.labels.get("team")

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        self.asked[cycle.pod.metadata.labels.get("team", "")] += len(nodes)
        yield Rejection(np.zeros(len(nodes), np.bool_), "never")


class Silent:
    """Signs nothing, and looks at the name."""

    name = "Silent"
    seen: ClassVar[list[tuple[str, str]]] = []

    def filter(self, cycle: Cycle, node: NodeView) -> Status | None:
        self.seen.append((cycle.pod.name, node.name))
        return unschedulable("named") if node.name == f"n{cycle.pod.name[1:]}" else None


class Breaks:
    """Fails for whoever is called so."""

    name = "Breaks"
    depends_on = row_alone

    def signature(self, pod: Pod) -> Hashable:
        return pod.name == "bad"

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        if cycle.pod.name == "bad":
            raise RuntimeError("no")
        return np.zeros(len(nodes), dtype=np.int64)


@pytest.fixture(autouse=True)
def _nobody_was_asked() -> None:
    Counted.asked.clear()
    Silent.seen.clear()


def engine(*plugins: type[Any], nodes: int = 4) -> PodEngine:
    registry = known_plugins().with_plugins(*plugins)
    config = CONFIG.format(enabled=", ".join(f"{{name: {plugin.name}}}" for plugin in plugins))
    cache = filled_cache([make_node(f"n{number}", cpu="64") for number in range(nodes)])
    return PodEngine(configured(config, registry), registry, cache, clock=ManualClock(), chance=random.Random(0))


def kept(of: PodEngine) -> int:
    classes = of.classes(DEFAULT)
    assert classes is not None
    return len(classes)


def test_what_came_once_is_not_kept() -> None:
    on = engine()
    on.place(make_pod("a", requests={"cpu": "1"}))
    on.place(make_pod("b", requests={"cpu": "2"}))
    assert kept(on) == 0
    on.place(make_pod("c", requests={"cpu": "1"}))
    assert kept(on) == 1


def test_pods_that_differ_elsewhere_share_what_a_plugin_says() -> None:
    on = engine(Counted)
    for number in range(8):
        on.place(make_pod(f"p{number}", requests={"cpu": f"{100 + number}m"}, labels={"team": "red"}))
    assert Counted.asked["red"] == 2 * 4, "once on its own, once to be kept; then never again"


def test_a_plugin_that_signs_nothing_is_asked_about_each_and_does_not_keep_others_from_sharing() -> None:
    on = engine(Counted, Silent)
    placed = [on.place(make_pod(f"p{number}", labels={"team": "red"})) for number in range(4)]
    assert Counted.asked["red"] == 2 * 4
    assert Counter(pod for pod, _ in Silent.seen) == {f"p{number}": 4 for number in range(4)}
    assert all(each.node != f"n{number}" for number, each in enumerate(placed))
    details = placed[2].decision.in_detail()
    assert details.diagnosis is not None
    assert details.diagnosis.status(2).reasons == ("named",)


def test_it_is_asked_only_about_rows_that_are_left() -> None:
    on = engine(Silent)
    on.cache.add_node(make_node("special", labels={"disk": "ssd"}))
    on.place(make_pod("p9", node_selector={"disk": "ssd"}))
    assert Silent.seen == [("p9", "special")]


def test_a_plugin_that_breaks_is_named_and_others_go_on() -> None:
    on = engine(Breaks)
    assert on.place(make_pod("good")).node is not None
    bad = on.place(make_pod("bad"))
    assert bad.node is None
    assert 'plugin "Breaks" failed with: RuntimeError: no' in bad.status.message
    assert on.place(make_pod("good-again")).node is not None


def test_device_classes_make_all_signatures_out_of_date() -> None:
    on = engine()
    for name in "abc":
        on.place(make_pod(name))
    assert kept(on) == 1
    on.cache.put(DeviceClass())
    on.place(make_pod("d"))
    assert kept(on) == 0


def test_a_shelf_keeps_so_many_and_drops_who_was_not_used_for_longest() -> None:
    shelf: Shelf[str] = Shelf(2)
    places = {name: shelf.place(name) for name in "abc"}
    for turn, name in enumerate("aabbaacc"):
        places[name].used = turn
        shelf.keep(places[name], name)
    assert len(shelf) == 2
    assert [places[name].value for name in "abc"] == ["a", None, "c"]
    assert shelf.place("a") is places["a"]


def test_a_shelf_forgets_keys_too() -> None:
    shelf: Shelf[str] = Shelf(2)
    first = shelf.place(0)
    for number in range(1, 5000):
        shelf.place(number)
    assert shelf.place(0) is not first
