"""Trials of hypernodes: when few trials find the best hypernode, and when all are tried."""

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
  - name: scores-hypernodes
  - name: gang
  - name: predicates
  - name: nodeorder
  - name: network-topology-aware
"""
SWITCHES = 5


class ScoresHyperNodes:
    """Scores hypernodes and defines gradients as a test configures it."""

    name = "scores-hypernodes"
    score: float | None = None
    scatters = False

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        self._session = session
        if self.score is not None:
            session.add_hyper_node_order_fn(self.name, self._score)
        if self.scatters:
            session.add_hyper_node_gradient_for_sub_job_fn(self.name, self._own_gradients)

    def _score(self, sub_job: SubJob, places: Mapping[str, Nodes]) -> dict[str, float]:  # noqa: ARG002
        assert self.score is not None
        return dict.fromkeys(places, self.score)

    def _own_gradients(
        self,
        sub_job: SubJob,  # noqa: ARG002
        place: HyperNode,
        purpose: SearchPurpose,  # noqa: ARG002
    ) -> Sequence[Sequence[HyperNode]]:
        tree = self._session.hyper_nodes
        return [[place], [tree["t"]]] if place.name != "t" else [[place]]


def switches() -> Iterator[KubeObject]:
    """Hypernodes of two nodes each, below one top hypernode."""
    for tier, name, kind, members in (
        *((1, f"s{number}", "Node", [f"s{number}-a", f"s{number}-b"]) for number in range(SWITCHES)),
        (2, "t", "HyperNode", [f"s{number}" for number in range(SWITCHES)]),
    ):
        listed = tuple(
            volcano.MemberSpec(kind, volcano.MemberSelector(exact_match=volcano.ExactMatch(each))) for each in members
        )
        yield volcano.HyperNode(metadata=ObjectMeta(name=name), spec=volcano.HyperNodeSpec(tier, "", listed))


def cluster(size: int = 2, *, cpu: int = 2, plugin: type[Any] = ScoresHyperNodes, **group: Any) -> BatchEngine:
    topology = volcano.NetworkTopology("hard", 1)
    nodes = [make_node(f"s{number}-{half}", cpu=cpu) for number in range(SWITCHES) for half in "ab"]
    job = make_group(phase="Inqueue", **{"min_member": size, "network_topology": topology, **group})
    pods = [make_member(f"job-w-{number}", labels={"half": "ab"[number % 2]}) for number in range(size)]
    plugins = known_batch_plugins().with_plugins(plugin)
    return build_engine(conf=CONF, nodes=nodes, pods=pods, objects=[*switches(), job], plugins=plugins)


@contextmanager
def recorded_trials() -> Iterator[list[str]]:
    """Names of the hypernodes in which a job was tried."""
    tried: list[str] = []
    original = TopologyAllocator._try_job

    def recorded(self: TopologyAllocator, job: Any, pending: Any, place: HyperNode, before: Any) -> Any:
        tried.append(place.name)
        return original(self, job, pending, place, before)

    with patch.object(TopologyAllocator, "_try_job", recorded):
        yield tried


def test_a_gang_is_tried_in_the_last_and_in_the_best_hypernode_only() -> None:
    with recorded_trials() as tried:
        assert len(cluster().run_session().binds) == 2
    assert len(tried) <= 2


def plugin_with(**fields: Any) -> type[ScoresHyperNodes]:
    return type("Configured", (ScoresHyperNodes,), fields)


HALVES = volcano.SubGroupPolicy(
    name="halves", match_label_keys=("half",), sub_group_size=1, network_topology=volcano.NetworkTopology("hard", 1)
)


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        pytest.param({"plugin": plugin_with(score=float("inf"))}, 2, id="infinite-scores"),
        pytest.param({"plugin": plugin_with(scatters=True)}, 2, id="several-hypernodes-below"),
        pytest.param({"sub_group_policy": (HALVES,)}, 2, id="sub-groups"),
        pytest.param({"size": 4, "min_member": 2}, 4, id="elastic-tasks"),
    ],
)
def test_all_hypernodes_are_tried_if_scores_are_not_known_in_advance(options: dict[str, Any], bound: int) -> None:
    with recorded_trials() as tried:
        outcome = cluster(**options).run_session()
    assert len(outcome.binds) == bound
    assert {f"s{number}" for number in range(SWITCHES)} <= set(tried)


def test_failed_trials_leave_no_transaction() -> None:
    """If no trial succeeds, the tasks keep their state: no transaction of a trial remains."""
    engine = cluster(4, cpu=1, min_member=4)  # two tasks fit in each hypernode
    with recorded_trials() as tried:
        outcome = engine.run_session()
    assert not outcome.binds
    assert len(tried) > SWITCHES
    with engine.session() as session:
        assert all(task.last_transaction is None for task in session.jobs["default/job"].tasks.values())
