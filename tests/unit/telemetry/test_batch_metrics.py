"""Metrics of jobs: creation, latency, share; and their removal with the job."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bayplan.batch.session.outcome import GroupOutcome, SessionResult
from bayplan.clock import ManualClock
from bayplan.objects.volcano.types import PodGroupStatus
from bayplan.telemetry.batch_metrics import BatchMetrics
from bayplan.telemetry.metrics import MetricsRegistry, exponential_range
from bayplan.testing.builders import make_node
from support.builders.batch import CREATED, make_group, make_member
from support.builders.batch_engines import GANGS, build_engine
from support.harness.metrics_scrape import MetricFamily, parse_families

JOB = "default/job"
LABELS = {"job_name": "job", "queue": "q", "job_namespace": "default"}


def outcome(
    *, queue: str = "q", phase: str = "Running", started: bool = False, share: float | None = None
) -> SessionResult:
    found = SessionResult()
    found.groups[JOB] = GroupOutcome(PodGroupStatus(phase=phase), True, waiting=2, queue=queue, created=CREATED)
    found.started |= {JOB} if started else set()
    found.shares |= {} if share is None else {JOB: share}
    return found


class MetricsHarness:
    """`BatchMetrics` with a clock that is set relative to the creation of the job."""

    def __init__(self) -> None:
        self.registry, self.clock = MetricsRegistry(), ManualClock(CREATED)
        self.metrics = BatchMetrics(self.registry, self.clock.now)

    def session(self, found: SessionResult, *, at_s: float) -> None:
        self.clock.advance((CREATED + timedelta(seconds=at_s) - self.clock.now()).total_seconds())
        self.metrics.observe_session(found, 0.01, 0.001)

    def family(self, name: str) -> MetricFamily:
        return parse_families(b"".join(self.registry.render()).decode()).get(f"volcano_{name}", MetricFamily([]))


def test_the_latency_of_a_job_ends_with_its_last_pod() -> None:
    harness = MetricsHarness()
    harness.session(outcome(phase="Pending"), at_s=1.0)
    assert harness.family("e2e_job_scheduling_start_time").value(**LABELS) == CREATED.timestamp() + 1.0
    assert harness.family("e2e_job_scheduling_last_time").values == {}
    harness.session(outcome(started=True), at_s=2.5)
    assert harness.family("e2e_job_scheduling_duration").value(**LABELS) == 2500.0
    assert harness.family("e2e_job_scheduling_last_time").value(**LABELS) == CREATED.timestamp() + 2.5
    assert harness.family("e2e_job_scheduling_start_time").value(**LABELS) == CREATED.timestamp() + 1.0
    latency = harness.family("e2e_job_scheduling_latency_milliseconds")
    assert latency.value() == 1
    assert (latency.bounds[0], float(latency.bounds[-2]), len(latency.bounds)) == ("100", pytest.approx(120_000), 31)


def test_shares_and_retries() -> None:
    harness = MetricsHarness()
    harness.session(outcome(share=0.25), at_s=1.0)
    harness.metrics.observe_failed(make_member("job-w-0"))
    assert harness.family("job_share").value(job_ns="default", job_id="job") == 0.25
    assert harness.family("job_retry_counts").value(job_id=JOB) == 1


def test_metrics_of_a_job_are_removed_with_the_job_and_with_its_queue() -> None:
    harness = MetricsHarness()
    harness.session(outcome(started=True, share=0.5, phase="Pending"), at_s=1.0)
    harness.session(outcome(queue="other", phase="Pending"), at_s=2.0)
    assert harness.family("e2e_job_scheduling_start_time").label_values("queue") == {"other"}
    assert harness.family("unschedule_task_count").value(job_id=JOB) == 2
    harness.metrics.forget([JOB])
    for name in ("start_time", "last_time", "duration"):
        assert harness.family(f"e2e_job_scheduling_{name}").values == {}
    for name in ("job_share", "job_retry_counts", "unschedule_task_count"):
        assert harness.family(name).values == {}


def test_a_session_reports_started_jobs_and_shares() -> None:
    conf = GANGS.replace("  - name: gang\n", "  - name: gang\n  - name: drf\n")
    pods = [make_member("job-w-0", requests={"cpu": "1"}), make_member("late-w-0", "late", requests={"cpu": "9"})]
    groups = [make_group("job"), make_group("late")]
    engine = build_engine(conf=conf, nodes=[make_node("n", cpu=4)], pods=pods, objects=groups)
    found = engine.run_session()
    assert found.started == {JOB}
    assert found.shares == {JOB: 0.25, "default/late": 0.0}
    assert {uid: (each.queue, each.created) for uid, each in found.groups.items()} == {
        JOB: ("q", CREATED),
        "default/late": ("q", CREATED),
    }


def test_an_exponential_range_includes_both_ends() -> None:
    assert exponential_range(1, 100, 3) == pytest.approx((1, 10, 100))
