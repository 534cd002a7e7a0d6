"""Victim searches that skip nodes, against searches that evaluate every node for every task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.batch.actions import row_orders, victim_search
from bayplan.batch.session.outcome import SessionResult
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject, ObjectMeta
from bayplan.objects.workloads import PriorityClass
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.batch_engines import build_engine

CLASSES = {"low": 1, "middle": 5, "high": 9}
QUEUES = ("q", "other", "third")
TIERS = (
    (("priority", "gang", "conformance"), ("drf", "predicates", "proportion", "nodeorder")),
    (("priority", "gang"), ("cdp", "predicates", "capacity", "binpack")),
    (("gang", "pdb"), ("priority", "conformance", "drf", "proportion", "predicates")),
    (("drf", "tdm", "gang"), ("predicates", "proportion")),
    (("gang", "priority", "predicates", "conformance", "proportion", "drf"),),
)


@st.composite
def configurations(draw: st.DrawFn) -> str:
    lines = [f'actions: "{draw(st.sampled_from(["preempt", "reclaim", "allocate, reclaim, preempt"]))}"', "tiers:"]
    for tier in draw(st.sampled_from(TIERS)):
        lines.append("- plugins:")
        lines += [f"  - name: {plugin}" for plugin in tier]
    if draw(st.booleans()):
        lines += ["configurations:", "- name: preempt", "  arguments:"]
        lines += ["    enableTopologyAwarePreemption: true", "    minCandidateNodesPercentage: 100"]
    return "\n".join(lines) + "\n"


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], list[Pod], list[KubeObject]]:
    nodes = [make_node(f"n{number}", cpu=draw(st.integers(2, 4))) for number in range(draw(st.integers(1, 4)))]
    objects: list[KubeObject] = [make_queue(name, reclaimable=draw(st.booleans())) for name in QUEUES[1:]]
    objects += [PriorityClass(metadata=ObjectMeta(name=name), value=value) for name, value in CLASSES.items()]
    pods: list[Pod] = []
    free = {node.name: int(str(node.status.allocatable["cpu"])) for node in nodes}
    for number in range(draw(st.integers(2, 6))):
        name = f"job{number}"
        objects.append(
            make_group(
                name,
                phase="Running",
                queue=draw(st.sampled_from(QUEUES)),
                min_member=draw(st.integers(0, 3)),
                priority_class_name=draw(st.sampled_from(sorted(CLASSES))),
            )
        )
        pods += [draw(_pods(f"{name}-w-{task}", name, free)) for task in range(draw(st.integers(1, 5)))]
    return nodes, pods, objects


@st.composite
def _pods(draw: st.DrawFn, name: str, group: str, free: dict[str, int]) -> Pod:
    cpu = draw(st.integers(0, 2))
    node = draw(st.sampled_from(["", *(each for each, room in free.items() if room >= cpu)]))
    if node:
        free[node] -= cpu
    pod = make_member(
        name,
        group,
        node=node,
        requests={"cpu": cpu} if cpu else {},
        labels={"app": "x"},
        annotations={} if draw(st.integers(0, 5)) else {"volcano.sh/preemptable": "false"},
    )
    return replace(pod, spec=replace(pod.spec, priority=draw(st.sampled_from([None, 1, 5]))))


@contextmanager
def searching(*, patience: int, remembers: bool) -> Iterator[None]:
    """Rows that are evaluated before the remaining ones are narrowed down, and whether results are cached."""
    foreseeable, in_vain = victim_search.is_cacheable, victim_search.ExhaustedRows.rows
    with (
        patch.object(row_orders, "ROWS_BEFORE_NARROWING", patience),
        patch.object(row_orders, "_UNSORTED", int(remembers)),
        patch.object(victim_search.ExhaustedRows, "rows", in_vain if remembers else lambda *_: set()),
        patch.object(victim_search, "_SMALL_CLUSTER_ROWS", 0),
        patch.object(victim_search, "is_cacheable", foreseeable if remembers else lambda _: False),
    ):
        yield


def _told(outcome: SessionResult) -> tuple[object, ...]:
    return outcome.evicts, outcome.pipelined, outcome.binds, outcome.faults


@settings(max_examples=150, deadline=None)
@given(clusters(), configurations(), st.integers(0, 2), st.integers(0, 3))
def test_skipping_nodes_changes_no_result(
    cluster: tuple[list[Node], list[Pod], list[KubeObject]], conf: str, patience: int, seed: int
) -> None:
    nodes, pods, objects = cluster
    with searching(patience=10_000, remembers=False):
        plain = build_engine(conf=conf, nodes=nodes, pods=pods, objects=objects, seed=seed).run_session()
    with searching(patience=patience, remembers=True):
        quick = build_engine(conf=conf, nodes=nodes, pods=pods, objects=objects, seed=seed).run_session()
    assert _told(quick) == _told(plain)
