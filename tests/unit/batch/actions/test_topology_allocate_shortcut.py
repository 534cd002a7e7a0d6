"""When is the best hypernode found by trying few of them, and when are all of them tried?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from bayplan.app import known_batch_plugins
from bayplan.batch import Arguments, HyperNode, Nodes, SearchPurpose, Session, SubJob
from bayplan.batch.actions.topology_allocate import TopologyAllocator
from bayplan.batch.engine import BatchEngine
from bayplan.objects.meta import KubeObject, ObjectMeta
from bayplan.objects.volcano import types as volcano
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import build_engine

CONF = """\
actions: "allocate"
tiers:
- plugins:
  - name: odd
  - name: gang
  - name: predicates
  - name: nodeorder
  - name: network-topology-aware
"""
SWITCHES = 5


class Odd:
    """Has an opinion about hypernodes where a test gives it one."""

    name = "odd"
    score: float | None = None
    scatters = False

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        self._session = session
        if self.score is not None:
            session.add_hyper_node_order_fn(self.name, self._score)
        if self.scatters:
            session.add_hyper_node_gradient_for_sub_job_fn(self.name, self._each_alone)

    def _score(self, sub_job: SubJob, places: Mapping[str, Nodes]) -> dict[str, float]:  # noqa: ARG002
        assert self.score is not None
        return dict.fromkeys(places, self.score)

    def _each_alone(self, sub_job: SubJob, place: HyperNode, purpose: SearchPurpose) -> Sequence[Sequence[HyperNode]]:  # noqa: ARG002
        tree = self._session.hyper_nodes
        return [[place], [tree["t"]]] if place.name != "t" else [[place]]


def switches() -> Iterator[KubeObject]:
    """Switches of two nodes each, below one."""
    for tier, name, kind, members in (
        *((1, f"s{number}", "Node", [f"s{number}-a", f"s{number}-b"]) for number in range(SWITCHES)),
        (2, "t", "HyperNode", [f"s{number}" for number in range(SWITCHES)]),
    ):
        listed = tuple(
            volcano.MemberSpec(kind, volcano.MemberSelector(exact_match=volcano.ExactMatch(each))) for each in members
        )
        yield volcano.HyperNode(metadata=ObjectMeta(name=name), spec=volcano.HyperNodeSpec(tier, "", listed))


def cluster(size: int = 2, *, cpu: int = 2, plugin: type[Any] = Odd, **group: Any) -> BatchEngine:
    topology = volcano.NetworkTopology("hard", 1)
    nodes = [make_node(f"s{number}-{half}", cpu=cpu) for number in range(SWITCHES) for half in "ab"]
    job = make_group(phase="Inqueue", **{"min_member": size, "network_topology": topology, **group})
    pods = [make_member(f"job-w-{number}", labels={"half": "ab"[number % 2]}) for number in range(size)]
    plugins = known_batch_plugins().with_plugins(plugin)
    return build_engine(conf=CONF, nodes=nodes, pods=pods, objects=[*switches(), job], plugins=plugins)


@contextmanager
def counting() -> Iterator[list[str]]:
    """Names of the hypernodes in which a job was tried."""
    tried: list[str] = []
    plain = TopologyAllocator._try_job

    def counted(self: TopologyAllocator, job: Any, sheet: Any, place: HyperNode, before: Any) -> Any:
        tried.append(place.name)
        return plain(self, job, sheet, place, before)

    with patch.object(TopologyAllocator, "_try_job", counted):
        yield tried


def test_a_gang_is_tried_in_the_last_and_in_the_best() -> None:
    with counting() as tried:
        assert len(cluster().run_session().binds) == 2
    assert len(tried) <= 2


def odd(**fields: Any) -> type[Odd]:
    return type("Made", (Odd,), fields)


HALVES = volcano.SubGroupPolicy(
    name="halves",
    match_label_keys=("half",),
    sub_group_size=1,
    network_topology=volcano.NetworkTopology("hard", 1),
)


@pytest.mark.parametrize(
    ("world", "bound"),
    [
        pytest.param({"plugin": odd(score=float("inf"))}, 2, id="scores-that-cannot-be-compared"),
        pytest.param({"plugin": odd(scatters=True)}, 2, id="more-than-one-place-below"),
        pytest.param({"sub_group_policy": (HALVES,)}, 2, id="sub-groups"),
        pytest.param({"size": 4, "min_member": 2}, 4, id="more-than-it-needs-to-start"),
    ],
)
def test_all_are_tried_where_only_that_tells(world: dict[str, Any], bound: int) -> None:
    with counting() as tried:
        outcome = cluster(**world).run_session()
    assert len(outcome.binds) == bound
    assert {f"s{number}" for number in range(SWITCHES)} <= set(tried)


def test_what_was_tried_in_vain_leaves_no_mark() -> None:
    """Where few do not do, tasks are as they were before: no transaction of a trial is taken for the gang's own."""
    engine = cluster(4, cpu=1, min_member=4)  # two a switch
    with counting() as tried:
        outcome = engine.run_session()
    assert not outcome.binds
    assert len(tried) > SWITCHES
    with engine.session() as session:
        assert all(task.last_transaction is None for task in session.jobs["default/job"].tasks.values())
