"""Invalid and negative amounts of pod groups and queues: reported, left out, and without effect on other objects."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.batch.engine import BatchEngine
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import Guarantee
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.batch_engines import build_engine

CONF = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: {divider}
  - name: nodeorder
"""
MISSING = "not a quantity such as 500m or 1.5Gi; it counts as missing"


def engine_with(*objects: KubeObject, divider: str = "proportion") -> BatchEngine:
    """A valid queue, and `x`, with one job that requests one CPU and one that requests two."""
    pods = [make_member("good", "good"), make_member("odd", "odd"), make_member("big", "big", requests={"cpu": "2"})]
    groups = [make_group("good"), make_group("big", queue="x")]
    return build_engine(
        conf=CONF.format(divider=divider), nodes=[make_node("a")], pods=pods, objects=[*groups, *objects]
    )


@pytest.mark.parametrize(
    ("queue", "field"),
    [
        pytest.param({"capability": {"cpu": "1", "memory": "much"}}, "capability.memory", id="capability"),
        pytest.param({"deserved": {"memory": "much"}}, "deserved.memory", id="deserved"),
        pytest.param(
            {"guarantee": Guarantee(resource={"memory": "much"})}, "guarantee.resource.memory", id="guarantee"
        ),
    ],
)
@pytest.mark.parametrize("divider", ["proportion", "capacity"])
def test_an_invalid_amount_of_a_queue_is_reported(queue: dict[str, Any], field: str, divider: str) -> None:
    outcome = engine_with(make_queue("x", **queue), make_group("odd", queue="x"), divider=divider).run_session()
    assert outcome.faults == [f'queue x: {field} is "much", {MISSING}']
    assert {"default/good", "default/odd"} <= outcome.binds.keys()
    assert ("default/big" in outcome.binds) is (field != "capability.memory")  # the valid amounts count


def test_an_invalid_allocated_amount_in_a_queue_status_is_reported() -> None:
    queue = make_queue("x")
    engine = engine_with(replace(queue, status=replace(queue.status, allocated={"cpu": "much"})), make_group("odd"))
    outcome = engine.run_session()
    assert outcome.faults == [f'queue x: status.allocated.cpu is "much", {MISSING}']
    assert str(outcome.queues["x"]["cpu"]) == "2"


@pytest.mark.parametrize("divider", ["proportion", "capacity", "overcommit"])
def test_an_invalid_minimum_of_a_group_is_reported(divider: str) -> None:
    odd = make_group("odd", queue="x", min_resources={"cpu": "1", "memory": "much"})
    engine = engine_with(make_queue("x"), odd, divider=divider)
    outcome = engine.run_session()
    assert outcome.faults == [f'pod group default/odd: minResources.memory is "much", {MISSING}']
    assert len(outcome.binds) == 3
    with engine.session() as session:
        assert session.jobs["default/odd"].min_resources().milli_cpu == 1000


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        pytest.param({"capability": {"cpu": "-1"}}, 'capability.cpu is "-1"', id="capability"),
        pytest.param({"deserved": {"cpu": "-1m"}}, 'deserved.cpu is "-1m"', id="deserved"),
        pytest.param(
            {"guarantee": Guarantee(resource={"cpu": "-5"})}, 'guarantee.resource.cpu is "-5"', id="guarantee"
        ),
    ],
)
@pytest.mark.parametrize("divider", ["proportion", "capacity"])
def test_a_negative_amount_of_a_queue_is_reported(queue: dict[str, Any], words: str, divider: str) -> None:
    outcome = engine_with(make_queue("x", **queue), make_group("odd", queue="x"), divider=divider).run_session()
    assert outcome.faults == [f"queue x: {words}, which is below zero; it counts as missing"]
    assert len(outcome.binds) == 3


def test_a_negative_weight_counts_as_one() -> None:
    queue = make_queue("x")
    engine = engine_with(replace(queue, spec=replace(queue.spec, weight=-4)), make_group("odd", queue="x"))
    assert engine.run_session().faults == ["queue x: weight is -4, which is below zero; it counts as 1"]
    assert engine.cluster_state.queues["x"].weight == 1


@pytest.mark.parametrize("divider", ["proportion", "capacity", "overcommit"])
def test_a_negative_minimum_does_not_extend_a_quota(divider: str) -> None:
    """`huge` requests more than the queue has, which a group with an equal negative amount must not cover."""
    odd = make_group("odd", queue="x", min_resources={"cpu": "-300", "memory": "1Gi"}, phase="Inqueue")
    huge = make_group("huge", queue="x", min_resources={"cpu": "100"})
    engine = engine_with(make_queue("x", capability={"cpu": "4"}), odd, huge, divider=divider)
    outcome = engine.run_session()
    assert outcome.faults == [
        'pod group default/odd: minResources.cpu is "-300", which is below zero; it counts as missing'
    ]
    assert outcome.groups["default/huge"].status.phase == "Pending"


def test_a_fault_is_reported_until_it_is_corrected() -> None:
    engine = engine_with(make_queue("x"), make_group("odd", min_resources={"cpu": "much"}))
    for _ in range(2):
        assert len(engine.run_session().faults) == 1
    engine.cache.upsert(make_group("odd", min_resources={"cpu": "1"}))
    assert not engine.run_session().faults
    engine.cache.upsert(make_group("odd", min_resources={"cpu": "more"}))
    assert len(engine.run_session().faults) == 1
    engine.cache.delete(make_group("odd"))
    assert not [fault for fault in engine.run_session().faults if "quantity" in fault]
