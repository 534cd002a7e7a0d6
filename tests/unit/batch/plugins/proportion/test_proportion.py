from __future__ import annotations

from typing import Any

import pytest

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.plugins.proportion.plugin import ProportionPlugin
from bayplan.batch.plugins.proportion.water_filling import QueueShareRequest, divide_by_weight
from bayplan.batch.session.session import Session
from bayplan.batch.session.simulation import Simulation
from bayplan.objects.meta import ResourceList
from bayplan.objects.volcano.types import Guarantee, Queue, QueueStatus
from bayplan.testing.builders import make_node
from support.builders.batch import (
    make_group,
    make_member,
    make_queue,
    open_session,
    pod_group_messages,
    task_names,
    tasks_of,
)

GPU = "nvidia.com/gpu"
NODE = make_node("n", allocatable={"cpu": "12", "memory": "12Gi", "pods": "100"})
UNLIMITED = Amounts.of({"cpu": "1000", "memory": "1000Gi", GPU: "1000", "pods": "1000"})


def share_request(
    weight: int, request: ResourceList, limit: ResourceList | None = None, **guarantee: str
) -> QueueShareRequest:
    return QueueShareRequest(
        weight, Amounts.of(request), UNLIMITED if limit is None else Amounts.of(limit), Amounts.of(guarantee)
    )


@pytest.mark.parametrize(
    ("share_requests", "deserved"),
    [
        pytest.param([share_request(1, {"cpu": "99"}), share_request(2, {"cpu": "99"})], [4000, 8000], id="by-weight"),
        pytest.param(
            [share_request(1, {"cpu": "1"}), share_request(1, {"cpu": "99"})], [1000, 11000], id="at-most-the-request"
        ),
        pytest.param(
            [share_request(1, {"cpu": "99"}, {"cpu": "2"}), share_request(1, {"cpu": "99"})],
            [2000, 10000],
            id="at-most-the-limit",
        ),
        pytest.param(
            [share_request(1, {}, cpu="5"), share_request(1, {"cpu": "99"})],
            [5000, 7000],
            id="never-below-the-guarantee",
        ),
        pytest.param([share_request(0, {"cpu": "9"})], [0], id="without-weight"),
        pytest.param([], [], id="no-queues"),
    ],
)
def test_divide_by_weight(share_requests: list[QueueShareRequest], deserved: list[float]) -> None:
    found = divide_by_weight(Amounts.of({"cpu": "12", "memory": "12Gi", "pods": "100"}), share_requests)
    assert [each.milli_cpu for each in found] == pytest.approx(deserved)


def test_scalars_are_divided_too() -> None:
    first, second = divide_by_weight(
        Amounts.of({"cpu": "12", GPU: "4"}),
        [share_request(1, {"cpu": "1", GPU: "8"}), share_request(3, {"cpu": "1", GPU: "8"})],
    )
    assert (first.get(GPU), second.get(GPU)) == (1000, 3000)


def two_queues(first: int = 0, second: int = 0, *, waiting: int = 12, **spec: Any) -> dict[str, Any]:
    """Queues `q` and `r` of equal weight that request everything, with the given numbers of running one-core tasks."""
    pods = [make_member(f"q-{number}", "mine", node="n") for number in range(first)]
    pods += [make_member(f"r-{number}", "theirs", node="n") for number in range(second)]
    pods += [make_member(f"q-w-{number}", "mine") for number in range(waiting)]
    pods += [make_member(f"r-w-{number}", "theirs") for number in range(waiting)]
    groups = [make_group("mine", phase="Inqueue"), make_group("theirs", phase="Inqueue", queue="r")]
    return {"nodes": [NODE], "pods": pods, "objects": [make_queue("r", **spec), *groups]}


def test_the_queue_with_the_smaller_share_comes_first() -> None:
    with open_session(ProportionPlugin, **two_queues(2, 1)) as session:
        assert [queue.name for queue in _ordered(session, "q", "r")] == ["r", "q"]


def test_priority_goes_before_share() -> None:
    with open_session(ProportionPlugin, **two_queues(1, 2, priority=1)) as session:
        assert [queue.name for queue in _ordered(session, "q", "r")] == ["r", "q"]


def _ordered(session: Session, left: str, right: str) -> list[Any]:
    one, other = session.queues[left], session.queues[right]
    return [one, other] if session.queue_order(one, other) else [other, one]


def test_a_queue_is_allocatable_up_to_its_deserved_share() -> None:
    with open_session(ProportionPlugin, **two_queues(5)) as session:
        queue, (sixth, seventh) = session.queues["q"], tasks_of(session, "q-w-0", "q-w-1")
        assert session.allocatable(queue, sixth)
        statement = session.statement()
        assert statement.allocate(sixth, "n")
        assert not session.allocatable(queue, seventh)
        statement.discard()
        assert session.allocatable(queue, seventh)
        assert not session.preemptive(queue, [sixth, seventh])
        assert session.preemptive(queue, [sixth])


def test_a_queue_is_overused_if_all_resources_are_used_up() -> None:
    """Pods count as a resource: a queue with free pods is not overused."""
    tight = make_node("n", allocatable={"cpu": "2", "memory": "0", "pods": "2"})
    groups = [make_group("mine", phase="Inqueue"), make_group("theirs", phase="Inqueue", queue="r")]
    pods = [make_member("q-0", "mine", node="n"), make_member("q-1", "mine"), make_member("r-0", "theirs")]
    with open_session(ProportionPlugin, nodes=[tight], pods=pods, objects=[make_queue("r"), *groups]) as session:
        assert session.overused(session.queues["q"])
        assert not session.overused(session.queues["r"])


def test_a_closed_queue_is_not_allocatable() -> None:
    closed = Queue(metadata=make_queue().metadata, spec=make_queue().spec, status=QueueStatus(state="Closed"))
    objects = [closed, make_group(phase="Inqueue")]
    with open_session(ProportionPlugin, nodes=[NODE], pods=[make_member("p")], objects=objects) as session:
        queue, (task,) = session.queues["q"], tasks_of(session, "p")
        assert not session.allocatable(queue, task)
        assert not session.preemptive(queue, [task])
        assert not session.job_enqueueable(session.jobs["default/job"])


def test_victims_are_tasks_of_queues_above_their_deserved_share() -> None:
    with open_session(ProportionPlugin, **two_queues(1, 8)) as session:
        reclaimer, *running = tasks_of(session, "q-w-0", *(f"r-{number}" for number in range(8)))
        assert task_names(session.reclaimable(reclaimer, running)) == ["r-0", "r-1"]


@pytest.mark.parametrize(
    ("wanted", "admitted"),
    [
        pytest.param({"cpu": "4"}, True, id="elastic-amounts-do-not-count"),
        pytest.param({"cpu": "5"}, False, id="too-much"),
        pytest.param(None, True, id="no-minimum"),
    ],
)
def test_job_enqueueable(wanted: ResourceList | None, admitted: bool) -> None:
    groups = [
        make_group("runs", phase="Running", min_resources={"cpu": "1"}),
        make_group("waits", phase="Inqueue", min_resources={"cpu": "3"}),
        make_group("new", min_resources=wanted),
        make_group("next", min_resources={"cpu": "1"}),
    ]
    pods = [make_member("p", "runs", node="n", requests={"cpu": "2"})]
    queue = make_queue(capability={"cpu": "8"})
    with open_session(ProportionPlugin, nodes=[NODE], pods=pods, objects=[queue, *groups]) as session:
        assert session.job_enqueueable(session.jobs["default/new"]) is admitted
        assert pod_group_messages(session) == (
            [] if admitted else ["new: queue resource quota insufficient: insufficient cpu"]
        )
        if wanted and admitted:
            assert not session.job_enqueueable(session.jobs["default/next"])


def test_guarantees_of_other_queues_limit_a_queue() -> None:
    guaranteed = make_queue("r", guarantee=Guarantee(resource={"cpu": "10"}))
    objects = [guaranteed, make_group(min_resources={"cpu": "3"})]
    with open_session(ProportionPlugin, nodes=[NODE], objects=objects) as session:
        assert not session.job_enqueueable(session.jobs["default/job"])


def test_simulation_without_a_victim() -> None:
    with open_session(ProportionPlugin, **two_queues(6)) as session:
        (mine, victim), node = tasks_of(session, "q-w-0", "q-0"), session.node("n")
        assert node is not None
        simulation = Simulation(mine, node)
        assert not session.simulate_allocatable(simulation, session.queues["q"])
        session.simulate_remove_task(simulation, victim)
        assert session.simulate_allocatable(simulation, session.queues["q"])
        session.simulate_add_task(simulation, victim)
        assert not session.simulate_allocatable(simulation, session.queues["q"])
        assert not session.allocatable(session.queues["q"], mine), "a simulation changes nothing"


def test_gauges() -> None:
    with open_session(ProportionPlugin, **two_queues(3)) as session:
        gauges = session.queue_gauges["q"]
        assert gauges["deserved_milli_cpu"] == 6000
        assert gauges["allocated_milli_cpu"] == 3000
        assert gauges["request_milli_cpu"] == 15000
        assert gauges["allocated_scalar_resources/pods"] == 3
        assert (gauges["weight"], gauges["share"]) == (1, 0.5)


def test_gauges_of_queues_without_jobs_are_zero() -> None:
    with open_session(ProportionPlugin, nodes=[NODE]) as session:
        assert session.queue_gauges == {
            "q": {
                "allocated_milli_cpu": 0,
                "allocated_memory_bytes": 0,
                "request_milli_cpu": 0,
                "request_memory_bytes": 0,
            }
        }
        assert not session.overused(session.queues["q"])


def test_gauges_after_the_session() -> None:
    with open_session(ProportionPlugin, **two_queues(3)) as session:
        assert session.statement().allocate(tasks_of(session, "q-w-0")[0], "n")
        session.plugins["proportion"].on_session_close(session)
        gauges = session.queue_gauges["q"]
        assert (gauges["allocated_milli_cpu"], gauges["share"]) == (4000, pytest.approx(4 / 6))
