"""Decisions of the queue, pod group, cron job, job flow and hypernode controllers, mostly without an API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from bayplan.client import Client
from bayplan.clock import SystemClock
from bayplan.controllers import CONTROLLER_NAMES, ControllerManager, select_controllers
from bayplan.controllers.core.api_types import PodFields, UntypedObject
from bayplan.controllers.volcano import VOLCANO_CONTROLLER_NAMES, enabled_volcano_controllers, volcano_controller_name
from bayplan.controllers.volcano.cron_jobs import cron_job_run
from bayplan.controllers.volcano.hyper_nodes import discover_hypernodes, label_networks, node_count
from bayplan.controllers.volcano.job_flows import flow_phase, flow_status
from bayplan.controllers.volcano.pod_groups import group_for
from bayplan.controllers.volcano.queues import state_after
from bayplan.controllers.volcano.resources import QUEUES
from bayplan.controllers.volcano.ttl_after_finished import remaining_ttl_s
from bayplan.errors import NotFound, UsageError
from bayplan.objects.core import Node
from bayplan.objects.kinds import convert
from bayplan.objects.volcano.definitions import volcano_definitions
from support.harness.async_tests import async_test
from support.harness.embedded_cluster import run_embedded_cluster
from support.harness.volcano_controllers import DEFINITIONS

Tree = dict[str, Any]
KUBERNETES = {"cronjob-controller", "disruption-controller"}
NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)


def make_object(
    name: str, *, status: Tree | None = None, created: str = "2026-01-01T11:00:00Z", **spec: Any
) -> UntypedObject:
    metadata = {"name": name, "namespace": "ml", "uid": f"uid-{name}", "creationTimestamp": created}
    return convert({"metadata": metadata, "spec": spec, "status": status or {}}, UntypedObject)


@pytest.mark.parametrize(
    ("state", "action", "groups", "expected"),
    [
        ("", "SyncQueue", 0, "Open"),
        ("Open", "SyncQueue", 3, "Open"),
        ("Open", "OpenQueue", 0, "Open"),
        ("Open", "CloseQueue", 0, "Closed"),
        ("Open", "CloseQueue", 2, "Closing"),
        ("Closing", "SyncQueue", 1, "Closing"),
        ("Closing", "SyncQueue", 0, "Closed"),
        ("Closing", "OpenQueue", 1, "Open"),
        ("Closing", "CloseQueue", 0, "Closed"),
        ("Closed", "SyncQueue", 1, "Closed"),
        ("Closed", "CloseQueue", 1, "Closed"),
        ("Closed", "OpenQueue", 0, "Open"),
        ("Unknown", "SyncQueue", 0, "Unknown"),
        ("Unknown", "CloseQueue", 1, "Closing"),
        ("Unknown", "OpenQueue", 0, "Open"),
    ],
)
def test_state_after(state: str, action: str, groups: int, expected: str) -> None:
    assert state_after(state, action, groups) == expected


def bare_pod(**annotations: str) -> PodFields:
    metadata = {"name": "p", "namespace": "ml", "uid": "u", "annotations": annotations, "labels": {}}
    container = {"name": "c", "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}, "limits": {"cpu": "2"}}}
    return convert({"metadata": metadata, "spec": {"containers": [container], "schedulerName": "volcano"}}, PodFields)


def test_the_group_of_a_bare_pod() -> None:
    pod = bare_pod(**{"volcano.sh/network-topology-mode": "Soft", "volcano.sh/network-topology-highest-tier": "2"})
    group = group_for(pod, {"volcano.sh/preemptable": "false", "other": "x"})
    assert group["metadata"]["name"] == "podgroup-u"
    assert group["metadata"]["annotations"] == {"volcano.sh/preemptable": "false"}
    assert group["spec"]["networkTopology"] == {"mode": "soft", "highestTierAllowed": 2}
    assert group["spec"]["minResources"] == {
        "count/pods": "1",
        "cpu": "1",
        "limits.cpu": "2",
        "nvidia.com/gpu": "2",
        "pods": "1",
        "requests.cpu": "1",
        "requests.nvidia.com/gpu": "2",
    }


@pytest.mark.parametrize(("text", "min_member"), [("3", 3), ("0", 0), ("-1", 1), ("many", 1)])
def test_min_member_of_the_owners_annotation(text: str, min_member: int) -> None:
    assert group_for(bare_pod(), {"scheduling.volcano.sh/group-min-member": text})["spec"]["minMember"] == min_member


def test_the_job_of_a_scheduled_time() -> None:
    cron = make_object("tick", jobTemplate={"metadata": {"labels": {"a": "b"}}, "spec": {"queue": "q"}})
    body = cron_job_run(cron, NOW, ZoneInfo("Europe/Berlin"))
    assert body["metadata"]["name"] == f"tick-{int(NOW.timestamp()) // 60}"
    assert body["metadata"]["annotations"] == {"volcano.sh/cronjob-scheduled-timestamp": "2026-01-01T13:00:30+01:00"}
    assert (body["metadata"]["labels"], body["spec"]) == ({"a": "b"}, {"queue": "q"})


@pytest.mark.parametrize(
    ("ttl", "phase", "remaining_s"),
    [(10, "Completed", 10.0), (0, "Failed", 0.0), (10, "Running", None), (None, "Completed", None)],
)
def test_remaining_ttl_s(ttl: int | None, phase: str, remaining_s: float | None) -> None:
    state = {"phase": phase, "lastTransitionTime": "2026-01-01T12:00:30Z"}
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    assert remaining_ttl_s(make_object("a", status={"state": state}, **spec), NOW) == remaining_s


@pytest.mark.parametrize(
    ("phase", "jobs", "expected"),
    [
        ("", {}, "Pending"),
        ("Pending", {"runningJobs": ["a"]}, "Running"),
        ("Pending", {"completedJobs": ["a", "b"]}, "Succeed"),
        ("Pending", {"terminatedJobs": ["a"]}, "Failed"),
        ("Running", {"completedJobs": ["a", "b"]}, "Succeed"),
        ("Running", {"completedJobs": ["a"], "failedJobs": ["b"]}, "Failed"),
        ("Running", {"completedJobs": ["a"]}, "Running"),
        ("Succeed", {}, "Succeed"),
    ],
)
def test_flow_phase(phase: str, jobs: Tree, expected: str) -> None:
    assert flow_phase(phase, jobs, 2) == expected


def test_the_status_of_a_flow_keeps_its_history() -> None:
    flow = make_object("f", status={"jobStatusList": [{"name": "f-a", "runningHistories": [{"state": "Running"}]}]})
    job = make_object("f-a", status={"state": {"phase": "Completed", "lastTransitionTime": "T"}})
    status = flow_status(flow, [job], "NOW")
    assert status["completedJobs"] == ["f-a"]
    (found,) = status["jobStatusList"]
    assert found["runningHistories"] == [
        {"state": "Running", "endTimestamp": "NOW"},
        {"state": "Completed", "startTimestamp": "NOW"},
    ]


def node(name: str, **labels: str) -> Node:
    return convert({"metadata": {"name": name, "labels": labels}}, Node)


def configuration(**changes: Any) -> str:
    types = {"net": [{"nodeLabel": "zone"}, {"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]}
    source = {"source": "label", "enabled": True, "config": {"networkTopologyTypes": types}, **changes}
    return json.dumps({"networkTopologyDiscovery": [source]})


def test_hypernodes_from_labels() -> None:
    networks = label_networks(configuration())
    assert networks == {"net": ["rack", "zone"]}
    nodes = [node("a", rack="1", zone="z"), node("b", rack="1", zone="z"), node("c", rack="2", zone="z"), node("d")]
    found = {(each.tier, each.value): each for each in discover_hypernodes(networks, nodes, {})}
    assert {key: len(each.names) for key, each in found.items()} == {(1, "1"): 2, (1, "2"): 1, (2, "z"): 2}
    assert found[2, "z"].names == {found[1, "1"].name, found[1, "2"].name}
    body = found[1, "1"].body()
    assert body["metadata"]["name"].startswith("hypernode-net-tier1-")
    assert body["spec"]["members"][0] == {"type": "Node", "selector": {"exactMatch": {"name": "a"}}}


def test_the_first_enabled_source_of_labels_counts() -> None:
    first, second = (
        json.loads(configuration(config={"networkTopologyTypes": {name: [{"nodeLabel": "zone"}, {"nodeLabel": name}]}}))
        for name in ("a", "b")
    )
    other = {"source": "ufm", "enabled": True}
    sources = [other, *first["networkTopologyDiscovery"], *second["networkTopologyDiscovery"]]
    assert label_networks(json.dumps({"networkTopologyDiscovery": sources})) == {"a": ["zone"]}


@pytest.mark.parametrize("text", ["", "no: topology", configuration(enabled=False), "{", configuration(source="ufm")])
def test_label_discovery_is_disabled(text: str) -> None:
    assert label_networks(text) is None


@pytest.mark.parametrize("types", [None, [], "rack", {"net": "rack"}, {"net": None}])
def test_invalid_networks_disable_label_discovery(types: Any) -> None:
    assert label_networks(configuration(config={"networkTopologyTypes": types})) is None


def test_node_count() -> None:
    members = [
        {"selector": {"exactMatch": {"name": "a"}}},
        {"selector": {"regexMatch": {"pattern": "^b"}}},
        {"selector": {"labelMatch": {"matchLabels": {"rack": "1"}}}},
        {"selector": {"regexMatch": {"pattern": "("}}},
        {"selector": {"exactMatch": {"name": "gone"}}},
    ]
    nodes = [node("a"), node("b1"), node("b2"), node("c", rack="1"), node("d")]
    assert node_count(make_object("h", members=members), nodes) == 4


@pytest.mark.parametrize(
    ("text", "disabled"),
    [
        ("*", set()),
        ("*,-job", {"volcano-job-controller"}),
        ("*,-job-controller,-pg-controller", {"volcano-job-controller", "volcano-podgroup-controller"}),
        ("*,-volcano-queue-controller", {"volcano-queue-controller"}),
        ("*,-sharding-controller", set()),
        ("-colocation-config-controller,*,+job-controller", set()),
        (
            "queue,hyperNode-controller",
            set(VOLCANO_CONTROLLER_NAMES) - {"volcano-queue-controller", "volcano-hypernode-controller"},
        ),
    ],
)
def test_enabled_volcano_controllers(text: str, disabled: set[str]) -> None:
    assert set(VOLCANO_CONTROLLER_NAMES) - set(enabled_volcano_controllers(text.split(","))) == disabled


@pytest.mark.parametrize(
    ("text", "disabled"),
    [
        ("*", set()),
        ("*,-job", {"volcano-job-controller"}),
        ("*,-sharding-controller", set()),
        ("*,-colocation-config-controller,-sharding-controller", set()),
        ("*,-volcano-queue-controller,-pg-controller", {"volcano-queue-controller", "volcano-podgroup-controller"}),
        ("*,-job-controller", {"job-controller", "volcano-job-controller"}),
        ("*,volcano-job-controller,-job-controller", {"job-controller"}),
        ("*,-volcano-job-controller", {"volcano-job-controller"}),
        ("*,-deployment-controller,-job-controller", {"deployment-controller", "job-controller"}),
        ("*,-volcano,-job-controller", {"job-controller", *VOLCANO_CONTROLLER_NAMES}),
        ("*,-sharding-controller,-job-controller", {"volcano-job-controller"}),
        ("-gc-controller,*,-cronjob-controller", {"volcano-gc-controller", "volcano-cronjob-controller"}),
    ],
)
def test_selection_of_kubernetes_and_volcano_controllers(text: str, disabled: set[str]) -> None:
    assert set(CONTROLLER_NAMES) - set(select_controllers(text.split(","))) == disabled


@pytest.mark.parametrize(
    ("text", "running"),
    [
        (
            "pg-controller,queue-controller,job-controller",
            {"volcano-podgroup-controller", "volcano-queue-controller", "volcano-job-controller"},
        ),
        ("+job-controller,+gc-controller", {"volcano-job-controller", "volcano-gc-controller"}),
        ("deployment-controller,job-controller", {"deployment-controller", "job-controller"}),
        ("queue-controller,cronjob-controller,disruption-controller", {*KUBERNETES, "volcano-queue-controller"}),
        ("job-controller", {"job-controller"}),
        ("sharding-controller,queue", {"volcano-queue-controller"}),
    ],
)
def test_shared_names_follow_the_remaining_list(text: str, running: set[str]) -> None:
    assert set(select_controllers(text.split(","))) == running


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("*,-job-controller", "also disables volcano-job-controller of Volcano"),
        ("*,sharding-controller", "Bayplan has no sharding-controller"),
        ("*,-sharding-controller,-job-controller", ""),
    ],
)
def test_ambiguous_selections_are_logged(text: str, warning: str, caplog: pytest.LogCaptureFixture) -> None:
    select_controllers(text.split(","))
    assert (warning in caplog.text) if warning else not caplog.text


class FastClock(SystemClock):
    """Shortens all sleeps."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 100)


@async_test
async def test_controllers_start_when_their_kinds_are_served(tmp_path: Path) -> None:
    queues = next(each for each in volcano_definitions() if each["spec"]["names"]["kind"] == "Queue")
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(run_embedded_cluster(tmp_path))
        admin = await stack.enter_async_context(cluster.client())
        client = Client(admin.target, clock=FastClock(), chance=random.Random(0), qps=-1.0)
        async with client:
            controllers = ControllerManager(client, only=["volcano-queue-controller", "deployment-controller"])
            running = asyncio.create_task(controllers.run())
            await controllers.wait_synced()  # does not wait for Volcano's kinds
            for definition in (queues, *(each for each in volcano_definitions() if each is not queues)):
                await admin.create(DEFINITIONS, definition)
            while True:
                with contextlib.suppress(NotFound):
                    found = await admin.get_raw(QUEUES, "", "default")
                    if (found.get("status") or {}).get("state") == "Open":
                        break
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert found["spec"]["parent"] == "root"


def test_an_unknown_controller_is_refused() -> None:
    assert volcano_controller_name("kubelet") is None
    with pytest.raises(UsageError, match="is no controller of Volcano"):
        enabled_volcano_controllers(["*", "-kubelet"])
