"""kube-scheduler's metrics."""

from __future__ import annotations

import pytest

from bayplan.telemetry.metrics import MetricsRegistry, Stability
from bayplan.telemetry.plugin_timings import PluginTimings
from bayplan.telemetry.scheduler_metrics import SCHEDULED, SchedulerMetrics

DEFAULT_GATES = (
    "SchedulerQueueingHints",
    "SchedulerAsyncPreemption",
    "DRAExtendedResource",
    "DRADeviceBindingConditions",
)
PROFILE = "default-scheduler"
GOOD = 'status="Success"'


def build_metrics(*gates: str) -> tuple[MetricsRegistry, SchedulerMetrics, PluginTimings]:
    registry, timings = MetricsRegistry(), PluginTimings()
    return registry, SchedulerMetrics(registry, timings, gates=gates or DEFAULT_GATES), timings


def lines(registry: MetricsRegistry) -> list[str]:
    return b"".join(registry.render()).decode().splitlines()


def test_the_stability_levels_are_upstreams() -> None:
    registry, _, _ = build_metrics()
    assert {family.name.removeprefix("scheduler_") for family in registry if family.stability is Stability.STABLE} == {
        "schedule_attempts_total",
        "scheduling_attempt_duration_seconds",
        "preemption_victims",
        "preemption_attempts_total",
        "pending_pods",
        "pod_scheduling_attempts",
        "framework_extension_point_duration_seconds",
        "queue_incoming_pods_total",
    }
    assert {family.name.removeprefix("scheduler_") for family in registry if family.stability is Stability.BETA} == {
        "goroutines",
        "pod_scheduling_sli_duration_seconds",
        "permit_wait_duration_seconds",
        "unschedulable_pods",
        "plugin_evaluation_total",
    }


@pytest.mark.parametrize(
    ("gate", "names"),
    [
        ("SchedulerQueueingHints", {"queueing_hint_execution_duration_seconds", "inflight_events"}),
        (
            "SchedulerAsyncPreemption",
            {"preemption_goroutines_duration_seconds", "preemption_goroutines_execution_total"},
        ),
        (
            "SchedulerAsyncAPICalls",
            {"async_api_call_execution_total", "async_api_call_execution_duration_seconds", "pending_async_api_calls"},
        ),
        ("DRAExtendedResource", {"resourceclaim_creates_total"}),
        (
            "GenericWorkload",
            {
                "podgroup_schedule_attempts_total",
                "podgroup_scheduling_attempt_duration_seconds",
                "podgroup_scheduling_algorithm_duration_seconds",
            },
        ),
        (
            "DRADeviceBindingConditions",
            {"dra_bindingconditions_allocations_total", "dra_bindingconditions_wait_duration_seconds"},
        ),
    ],
)
def test_gated_metrics_exist_only_with_their_feature_gate(gate: str, names: set[str]) -> None:
    without, with_gate = ({family.name for family in build_metrics(each)[0]} for each in ("Nothing", gate))
    assert {name.removeprefix("scheduler_") for name in with_gate - without} == names
    assert without < with_gate


def test_the_metrics_of_a_bound_pod() -> None:
    registry, metrics, _ = build_metrics()
    metrics.observe_attempt(SCHEDULED, PROFILE, 0.003)
    metrics.observe_scheduled(2, 0.5)
    metrics.observe_scheduled(14, 1.0)
    metrics.observe_scheduled(15, 2.0, after_flush=True)
    metrics.observe_scheduled(40, None)
    found = lines(registry)
    assert f'scheduler_schedule_attempts_total{{profile="{PROFILE}",result="scheduled"}} 1' in found
    took = f'scheduler_scheduling_attempt_duration_seconds_bucket{{profile="{PROFILE}",result="scheduled",le='
    assert f'{took}"0.002"}} 0' in found
    assert f'{took}"0.004"}} 1' in found
    assert 'scheduler_pod_scheduling_sli_duration_seconds_sum{attempts="2"} 0.5' in found
    assert 'scheduler_pod_scheduling_sli_duration_seconds_sum{attempts="14"} 1' in found
    assert 'scheduler_pod_scheduling_sli_duration_seconds_sum{attempts="15+"} 2' in found
    assert "scheduler_pod_scheduling_attempts_sum 71" in found
    assert "scheduler_pod_scheduled_after_flush_total 1" in found


def test_timings_of_points_are_copied_at_a_scrape() -> None:
    registry, _, timings = build_metrics()
    points = timings.points(PROFILE)
    points.count("NodeName", "Filter", 7)
    points.count("NodeName", "Score", 0)
    points.count("DefaultPreemption", "PostFilter")
    points.observe("Filter", 0.001)
    points.observe("PostFilter", 0.002, "Unschedulable")
    points.observe_class_lookup(0.00002, found=True)
    points.observe_class_lookup(0.00001, found=False)
    points.observe_class_lookup(0.00001, found=False)
    for _ in range(2):  # a second scrape counts nothing twice
        found = lines(registry)
    assert [line for line in found if line.startswith("scheduler_plugin_evaluation_total{")] == [
        f'scheduler_plugin_evaluation_total{{extension_point="Filter",plugin="NodeName",profile="{PROFILE}"}} 7',
        f'scheduler_plugin_evaluation_total{{extension_point="Score",plugin="NodeName",profile="{PROFILE}"}} 0',
    ]
    took = "scheduler_framework_extension_point_duration_seconds_sum"
    assert f'{took}{{extension_point="Filter",profile="{PROFILE}",{GOOD}}} 0.001' in found
    assert f'{took}{{extension_point="PostFilter",profile="{PROFILE}",status="Unschedulable"}} 0.002' in found
    assert "scheduler_preemption_attempts_total 1" in found
    assert f'scheduler_batch_attempts_total{{profile="{PROFILE}",result="hint_used"}} 1' in found
    assert f'scheduler_batch_attempts_total{{profile="{PROFILE}",result="no_hint"}} 2' in found
    assert f'scheduler_get_node_hint_duration_seconds_count{{hinted="no_hint",profile="{PROFILE}"}} 2' in found
    registry.reset()
    expected = [("NodeName", "Filter"), ("NodeName", "Score"), ("DefaultPreemption", "PostFilter")]
    assert points.call_counts == dict.fromkeys(expected, 0)


def test_timings_of_plugins_are_copied_at_a_scrape() -> None:
    registry, _, timings = build_metrics()
    timings.observe("NodeName", "preFilter", 0.000012)
    timings.observe("NodeName", "preFilter", 0.5, "Error")
    found = lines(registry)
    name = 'scheduler_plugin_execution_duration_seconds_{}{{extension_point="PreFilter",plugin="NodeName",status="{}"'
    assert f'{name.format("bucket", "Success")},le="1e-05"}} 0' in found
    assert f'{name.format("bucket", "Success")},le="1.5000000000000002e-05"}} 1' in found
    assert f"{name.format('sum', 'Error')}}} 0.5" in found
    registry.reset()
    assert timings.of("NodeName", "preFilter").calls == 0


def test_every_other_method_updates_its_metric() -> None:
    registry, metrics, _ = build_metrics(*DEFAULT_GATES, "GenericWorkload", "SchedulerAsyncAPICalls")
    metrics.observe_decision(0.001)
    metrics.add_rejected("NodeName", PROFILE, 2)
    metrics.in_flight("PodPopped", 1)
    metrics.observe_claim_created("success")
    metrics.observe_volume_failure("bind")
    metrics.hint("NodeName", "NodeAdd", "Queue", 0.00001)
    metrics.incoming("active", "UnschedulablePodAdd", 3)
    metrics.pending(active=1, backoff=2, unschedulable=3, gated=4)
    metrics.cache_size(assumed_pods=1, pods=2, nodes=3)
    metrics.observe_event("NodeAdd", 0.001)
    metrics.goroutine_gauge("binding").inc()
    metrics.observe_permit_wait("Success", 1)
    metrics.observe_victims(2)
    metrics.observe_preemption("success", 0.1)
    metrics.observe_group_attempt("scheduled", PROFILE, 0.1)
    metrics.api_call("pod_binding", "success", 0.1)
    metrics.observe_device_wait(PROFILE, "gpu", "success", 3)
    found = lines(registry)
    for line in (
        "scheduling_algorithm_duration_seconds_count 1",
        f'unschedulable_pods{{plugin="NodeName",profile="{PROFILE}"}} 2',
        'inflight_events{event="PodPopped"} 1',
        'resourceclaim_creates_total{status="success"} 1',
        'volume_scheduling_stage_error_total{operation="bind"} 1',
        'queueing_hint_execution_duration_seconds_count{event="NodeAdd",hint="Queue",plugin="NodeName"} 1',
        'queue_incoming_pods_total{event="UnschedulablePodAdd",queue="active"} 3',
        'pending_pods{queue="gated"} 4',
        'cache_size{type="assumed_pods"} 1',
        'cache_size{type="nodes"} 3',
        'event_handling_duration_seconds_count{event="NodeAdd"} 1',
        'goroutines{operation="binding"} 1',
        'permit_wait_duration_seconds_count{result="Success"} 1',
        "preemption_victims_sum 2",
        'preemption_goroutines_execution_total{result="success"} 1',
        f'podgroup_schedule_attempts_total{{profile="{PROFILE}",result="scheduled"}} 1',
        'async_api_call_execution_total{call_type="pod_binding",result="success"} 1',
        f'dra_bindingconditions_wait_duration_seconds_sum{{driver="gpu",profile="{PROFILE}",status="success"}} 3',
    ):
        assert f"scheduler_{line}" in found
