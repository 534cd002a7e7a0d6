from __future__ import annotations

import msgspec
import pytest

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.plugins.proportion.plugin import ProportionPlugin
from bayplan.batch.queue_accounts.queue_limits import is_within_limit, set_queue_gauges
from bayplan.batch.queue_accounts.queue_usage import QueueUsageCache, job_usage
from bayplan.objects.meta import ResourceList
from bayplan.testing.builders import make_node
from support.builders.batch import make_engine, make_group, make_member, make_queue, open_session

GPU = "nvidia.com/gpu"
NODE = make_node("n", allocatable={"cpu": "10", "memory": "10Gi", "pods": "10", GPU: "4"})


def test_usage_of_a_job() -> None:
    pods = [
        make_member("runs", node="n", requests={"cpu": "2"}),
        make_member("waits", requests={"cpu": "3"}),
        make_member("done", node="n", requests={"cpu": "4"}, phase="Succeeded"),
    ]
    group = make_group(phase="Running", min_resources={"cpu": "1", "memory": "1Gi"})
    with open_session(nodes=[NODE], pods=pods, objects=[group]) as session:
        found = job_usage(session.jobs["default/job"])
    assert found.allocated.milli_cpu == 2000
    assert found.request.milli_cpu == 5000
    assert (found.inqueue.milli_cpu, found.inqueue.memory) == (0, 2**30)
    assert found.elastic.milli_cpu == 1000


@pytest.mark.parametrize(
    ("phase", "min_member", "inqueue"),
    [
        pytest.param("Pending", 1, 0, id="not-in-yet"),
        pytest.param("Inqueue", 5, 3000, id="in-and-holds-a-part"),
        pytest.param("Running", 1, 3000, id="running"),
        pytest.param("Running", 2, 0, id="too-few-left-to-come-back"),
        pytest.param("Completed", 1, 0, id="over"),
    ],
)
def test_inqueue_resources_of_a_job(phase: str, min_member: int, inqueue: float) -> None:
    group = make_group(phase=phase, min_member=min_member, min_resources={"cpu": "4"})
    with open_session(nodes=[NODE], pods=[make_member("runs", node="n")], objects=[group]) as session:
        assert job_usage(session.jobs["default/job"]).inqueue.milli_cpu == inqueue


def test_sums_follow_changes_between_sessions() -> None:
    groups = [make_group("a"), make_group("b", queue="other")]
    pods = [make_member("a-0", "a", node="n"), make_member("b-0", "b")]
    engine = make_engine(nodes=[NODE], pods=pods, objects=[make_queue("other"), *groups])
    sums = QueueUsageCache()

    def totals() -> dict[str, tuple[float, float]]:
        with engine.session() as session:
            found = sums.refresh(session.jobs)
            return {name: (each.allocated.milli_cpu, each.request.milli_cpu) for name, each in found.items()}

    assert totals() == {"q": (1000, 1000), "other": (0, 1000)}
    engine.handle_update(make_member("b-1", "b", requests={"cpu": "3"}))
    assert totals() == {"q": (1000, 1000), "other": (0, 4000)}
    engine.cache.upsert(msgspec.structs.replace(groups[1], spec=msgspec.structs.replace(groups[1].spec, queue="q")))
    assert totals() == {"q": (1000, 5000)}
    engine.handle_delete(pods[0])
    engine.cache.delete(groups[0])
    assert totals() == {"q": (0, 4000)}


def test_jobs_that_did_not_change_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [make_group("a"), make_group("b")]
    engine = make_engine(ProportionPlugin, nodes=[NODE], pods=[make_member("a-0", "a", node="n")], objects=groups)
    read: list[str] = []

    def counting(job: object) -> object:
        read.append(str(job))
        return job_usage(job)  # type: ignore[arg-type]

    monkeypatch.setattr("bayplan.batch.queue_accounts.queue_usage.job_usage", counting)
    for _ in range(2):
        with engine.session():
            pass
    assert sorted(read) == ["Job(default/a)", "Job(default/b)"]
    engine.handle_update(make_member("b-0", "b"))
    with engine.session():
        pass
    assert read[2:] == ["Job(default/b)"]
    engine.handle_update(make_member("a-0", "a", node="n", labels={"another": "version"}))
    with engine.session():
        pass
    assert read[3:] == [], "holds what it held, and nothing waits"
    engine.handle_update(make_member("a-0", "a", node="n", requests={"cpu": "2"}))
    with engine.session():
        pass
    assert read[3:] == ["Job(default/a)"]


def test_gauges_of_missing_scalars_become_zero() -> None:
    with open_session() as session:
        set_queue_gauges(session, "q", "allocated", Amounts(1.0, 2.0, {GPU: 3.0, "pods": 1.0}))
        set_queue_gauges(session, "q", "request", Amounts(1.0, 2.0, {GPU: 3.0}))
        set_queue_gauges(session, "q", "allocated", Amounts(4.0, 5.0, {"pods": 6.0}))
        assert session.queue_gauges["q"] == {
            "allocated_milli_cpu": 4.0,
            "allocated_memory_bytes": 5.0,
            f"allocated_scalar_resources/{GPU}": 0.0,
            "allocated_scalar_resources/pods": 6.0,
            "request_milli_cpu": 1.0,
            "request_memory_bytes": 2.0,
            f"request_scalar_resources/{GPU}": 3.0,
        }


@pytest.mark.parametrize(
    ("limit", "allocated", "requested"),
    [
        pytest.param({"cpu": "2"}, {"cpu": "1"}, {"cpu": "1"}, id="just-enough"),
        pytest.param({"cpu": "2"}, {"cpu": "1"}, {"cpu": "1001m"}, id="a-crumb-too-much"),
        pytest.param({"cpu": "2"}, {"cpu": "3"}, {"memory": "0"}, id="above-in-a-resource-not-requested"),
        pytest.param({"memory": "1Gi"}, {}, {"memory": "1Gi"}, id="memory-fits"),
        pytest.param({"memory": "1Gi"}, {"memory": "1"}, {"memory": "1Gi"}, id="memory-does-not"),
        pytest.param({}, {}, {GPU: "1"}, id="an-unnamed-scalar"),
        pytest.param({GPU: "2"}, {GPU: "1"}, {GPU: "1"}, id="a-scalar-that-fits"),
        pytest.param({"pods": "1"}, {"pods": "5"}, {"pods": "1"}, id="pods-never-count"),
        pytest.param({}, {}, {}, id="nothing"),
    ],
)
def test_is_within_limit_equals_the_comparison_of_the_sum(
    limit: ResourceList, allocated: ResourceList, requested: ResourceList
) -> None:
    most, have, more = Amounts.of(limit), Amounts.of(allocated), Amounts.of(requested)
    assert is_within_limit(most, have, more) is not bool(have.clone().add(more).requested_names_above(most, more))
