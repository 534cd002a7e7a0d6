"""Decisions of the Volcano job controller: states, policies, pods, plugins, pod groups; without an API server."""

from __future__ import annotations

import base64
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.client import Client, GroupVersionResource
from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.clock import ManualClock
from bayplan.codec.quantity import parse_quantity
from bayplan.controllers.core.api_types import PodFields, UntypedObject
from bayplan.controllers.core.shared_informers import SharedInformerFactory
from bayplan.controllers.volcano.job_plugins import hosts_data, plugin_error, plugin_objects, ssh_data
from bayplan.controllers.volcano.job_pods import claims_of, job_pod
from bayplan.controllers.volcano.job_policies import (
    JobAction,
    JobEvent,
    due_action,
    eviction_event,
    job_events,
    with_first_seen_times,
)
from bayplan.controllers.volcano.job_resources import group_spec
from bayplan.controllers.volcano.job_states import transition_for
from bayplan.controllers.volcano.job_view import JobView, PodPhaseCounts
from bayplan.controllers.volcano.jobs import VolcanoJobController
from bayplan.controllers.volcano.min_resources import format_amounts, min_resources_of, multiply_amounts
from bayplan.controllers.volcano.resources import VC_JOBS
from bayplan.objects.kinds import convert
from bayplan.objects.meta import OwnerReference
from support.builders.volcano_manifests import container, job, task
from support.harness.async_tests import async_test
from support.harness.controllers import deliver_event

Tree = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def view(tree: Tree, **status: Any) -> JobView:
    metadata = {"namespace": "ml", "uid": "u1", **tree["metadata"]}
    return JobView(convert({**tree, "metadata": metadata, "status": status}, UntypedObject))


def at(tree: Tree, phase: str, **status: Any) -> JobView:
    return view(tree, state={"phase": phase}, **status)


def pod(name: str, phase: str = "Running", *, task: str = "worker", version: int = 0, **options: Any) -> PodFields:
    annotations = {
        "volcano.sh/task-spec": task,
        "volcano.sh/job-version": str(version),
        **options.pop("annotations", {}),
    }
    metadata = {"name": name, "namespace": "ml", "uid": f"uid-{name}", "annotations": annotations}
    metadata |= {"creationTimestamp": "2025-12-31T23:50:00Z", "labels": options.pop("labels", {})}
    return convert({"metadata": metadata, "spec": {}, "status": {"phase": phase, **options}}, PodFields)


def ended(code: int) -> Tree:
    state = {"terminated": {"exitCode": code}}
    return {"containerStatuses": [{"name": "main", "state": state, "restartCount": 0}]}


# States.

ALL_ACTIONS = (
    *("AbortJob", "CompleteJob", "RestartJob", "RestartPartition", "RestartPod", "RestartTask"),
    *("ResumeJob", "SyncJob", "TerminateJob"),
)
ACTIVE_TRANSITIONS = {
    "AbortJob": ("Aborting", True, False),
    "CompleteJob": ("Completing", True, False),
    "TerminateJob": ("Terminating", True, False),
    "RestartJob": ("Restarting", False, True),
    "RestartTask": ("Restarting", False, True),
    "RestartPod": ("Restarting", False, True),
    "RestartPartition": ("Restarting", False, True),
}


@pytest.mark.parametrize("phase", ["Pending", "Running"])
@pytest.mark.parametrize("action", ALL_ACTIONS)
def test_actions_on_an_active_job(phase: str, action: str) -> None:
    step = transition_for(phase, action)
    if action in ACTIVE_TRANSITIONS:
        assert (step.target_phase, step.keep_finished_pods, step.retry) == ACTIVE_TRANSITIONS[action]
        assert step.kill
        assert step.targeted is (action in ("RestartTask", "RestartPod", "RestartPartition"))
    else:
        assert not step.kill


@pytest.mark.parametrize("action", ALL_ACTIONS)
@pytest.mark.parametrize(
    ("phase", "expected_phase"), [("Aborting", "Aborted"), ("Terminating", "Terminated"), ("Completing", "Completed")]
)
def test_a_stopping_job_ends_when_its_pods_are_deleted(phase: str, expected_phase: str, action: str) -> None:
    stopping = at(job("a"), phase)
    step = transition_for(phase, action)
    if phase == "Aborting" and action == "ResumeJob":
        assert (step.target_phase, step.retry) == ("Restarting", True)
        return
    assert step.kill
    assert step.keep_finished_pods
    assert step.phase(stopping, PodPhaseCounts(terminating=1), 0) == phase
    assert step.phase(stopping, PodPhaseCounts(running=1), 0) == phase
    assert step.phase(stopping, PodPhaseCounts(succeeded=2, failed=1), 0) == expected_phase


@pytest.mark.parametrize("phase", ["Completed", "Failed", "Terminated"])
@pytest.mark.parametrize("action", ALL_ACTIONS)
def test_finished_phases_are_final(phase: str, action: str) -> None:
    assert transition_for(phase, action).phase(at(job("a"), phase), PodPhaseCounts(), 0) == phase


def test_an_aborted_job_can_be_resumed() -> None:
    assert transition_for("Aborted", "ResumeJob").target_phase == "Restarting"
    assert transition_for("Aborted", "SyncJob").phase(at(job("a"), "Aborted"), PodPhaseCounts(), 0) == "Aborted"


@pytest.mark.parametrize(
    ("job_view", "phase", "counts", "retries", "expected_phase"),
    [
        pytest.param(job("a", task("w", 2)), "Pending", PodPhaseCounts(running=1), 0, "Pending", id="too few run"),
        pytest.param(
            job("a", task("w", 2)), "Pending", PodPhaseCounts(running=1, failed=1), 0, "Running", id="enough started"
        ),
        pytest.param(job("a", task("w", 0)), "Running", PodPhaseCounts(), 0, "Running", id="scaled to nothing"),
        pytest.param(
            job("a", task("w", 3), minSuccess=1), "Running", PodPhaseCounts(succeeded=1), 0, "Completed", id="enough"
        ),
        pytest.param(
            job("a", task("w", 2)), "Running", PodPhaseCounts(succeeded=2), 0, "Completed", id="all succeeded"
        ),
        pytest.param(
            job("a", task("w", 2)), "Running", PodPhaseCounts(succeeded=1, failed=1), 0, "Failed", id="one failed"
        ),
        pytest.param(
            job("a", task("w", 2, minAvailable=1), minAvailable=1),
            "Running",
            PodPhaseCounts(succeeded=1, failed=1, tasks={"w": {"Succeeded": 1}}),
            0,
            "Completed",
            id="as many as asked for",
        ),
        pytest.param(
            job("a", task("w", 2), task("v", 1), minAvailable=3),
            "Running",
            PodPhaseCounts(succeeded=2, failed=1, tasks={"w": {"Succeeded": 2}, "v": {"Failed": 1}}),
            0,
            "Failed",
            id="a task failed",
        ),
        pytest.param(
            job("a", task("w", 3, minAvailable=1), minAvailable=1, minSuccess=2),
            "Running",
            PodPhaseCounts(succeeded=1, failed=2, tasks={"w": {"Succeeded": 1}}),
            0,
            "Failed",
            id="too few succeeded",
        ),
        pytest.param(
            job("a", task("w", 2)), "Running", PodPhaseCounts(running=1, pending=1), 0, "Pending", id="waits again"
        ),
        pytest.param(job("a", task("w", 2), maxRetry=2), "Restarting", PodPhaseCounts(), 2, "Failed", id="too often"),
        pytest.param(
            job("a", task("w", 2)), "Restarting", PodPhaseCounts(terminating=1), 1, "Restarting", id="pods linger"
        ),
        pytest.param(job("a", task("w", 2)), "Restarting", PodPhaseCounts(), 1, "Pending", id="begins anew"),
    ],
)
def test_the_next_phase_follows_from_the_pods(
    job_view: Tree, phase: str, counts: PodPhaseCounts, retries: int, expected_phase: str
) -> None:
    assert transition_for(phase, "SyncJob").phase(at(job_view, phase), counts, retries) == expected_phase


def test_pod_phase_counts() -> None:
    pods = [pod("a"), pod("b", "Failed"), pod("c", "Pending", task="ps"), pod("d")]
    counts = PodPhaseCounts.of(pods, leaving=frozenset({"uid-d"}))
    assert counts.as_status() == {
        "pending": 1,
        "running": 1,
        "failed": 1,
        "terminating": 1,
        "taskStatusCount": {"ps": {"phase": {"Pending": 1}}, "worker": {"phase": {"Running": 1, "Failed": 1}}},
    }


# Policies.


def decide(
    job_view: JobView, *pods: PodFields, first_seen: dict[str, datetime] | None = None, **options: Any
) -> JobAction | None:
    found = job_events(job_view, pods, seen=first_seen or {}, now=NOW, **options)
    return due_action(job_view, found, NOW)[0]


def test_task_policies_come_before_job_policies() -> None:
    task_policies = [{"event": "PodFailed", "action": "RestartTask"}]
    job_view = view(
        job("a", task("worker", 2, policies=task_policies), policies=[{"event": "*", "action": "AbortJob"}])
    )
    found = decide(job_view, pod("a-worker-0", "Failed"))
    assert found == JobAction("RestartTask", "worker", "a-worker-0", "", "PodFailed")


def test_an_event_without_policy_causes_no_action() -> None:
    assert decide(view(job("a")), pod("a-worker-0", "Failed")) is None


@pytest.mark.parametrize(("code", "action"), [(3, "AbortJob"), (4, None)])
def test_exit_codes(code: int, action: str | None) -> None:
    job_view = view(job("a", policies=[{"exitCode": 3, "action": "AbortJob"}]))
    found = decide(job_view, pod("a-worker-0", "Failed", **ended(code)))
    assert (found.name if found else None) == action


def test_pods_of_older_versions_or_out_of_sync_are_ignored() -> None:
    job_view = view(job("a", policies=[{"event": "*", "action": "AbortJob"}]), version=2)
    out_of_sync = {"annotations": {"volcano.sh/controller-out-of-sync": "true"}}
    assert (
        decide(job_view, pod("a-worker-0", "Failed", version=1), pod("a-worker-1", "Failed", version=2, **out_of_sync))
        is None
    )


def test_pod_pending_acts_after_its_timeout() -> None:
    job_view = view(job("a", policies=[{"event": "PodPending", "action": "RestartJob", "timeout": "15m"}]))
    waiting = pod("a-worker-0", "Pending")  # for ten minutes
    found = job_events(job_view, [waiting], seen={}, now=NOW)
    assert due_action(job_view, found, NOW) == (None, 300.0)
    later = NOW + timedelta(minutes=6)
    found = job_events(job_view, [waiting], seen={}, now=later)
    action, _ = due_action(job_view, found, later)
    assert action is not None
    assert action.name == "RestartJob"


def test_pod_pending_needs_a_timeout() -> None:
    job_view = view(job("a", policies=[{"event": "*", "action": "RestartJob"}]))
    assert decide(job_view, pod("a-worker-0", "Pending")) is None


def test_an_eviction_counts_unless_the_pod_runs_again() -> None:
    job_view = view(job("a", policies=[{"event": "PodEvicted", "action": "AbortJob"}]))
    eviction = eviction_event(pod("a-worker-0"), NOW)
    assert eviction is not None
    assert decide(job_view, evicted=[eviction]) is not None
    assert decide(job_view, pod("a-worker-0"), evicted=[eviction]) is None


def test_task_completed_and_task_failed() -> None:
    policies = [{"event": "TaskCompleted", "action": "CompleteJob"}, {"event": "TaskFailed", "action": "AbortJob"}]
    job_view = view(job("a", task("worker", 2), policies=policies))
    done = decide(job_view, pod("a-worker-0", "Succeeded"), pod("a-worker-1", "Succeeded"))
    assert done == JobAction("CompleteJob", "worker", reason="TaskCompleted")
    restarted = {"containerStatuses": [{"name": "main", "restartCount": 3}]}
    failed = decide(job_view, pod("a-worker-0", **restarted))
    assert failed == JobAction("AbortJob", "worker", reason="TaskFailed")


def test_an_unknown_pod_group_is_an_event() -> None:
    job_view = view(job("a", policies=[{"event": "Unknown", "action": "RestartJob"}]))
    found = decide(job_view, group_phase="Unknown")
    assert found == JobAction("RestartJob", reason="Unknown")


@pytest.mark.parametrize(
    ("event", "pods", "phase"),
    [
        ("TaskCompleted", [pod("a-worker-0", "Succeeded")], ""),
        ("TaskFailed", [pod("a-worker-0", containerStatuses=[{"name": "main", "restartCount": 3}])], ""),
        ("Unknown", [], "Unknown"),
    ],
)
def test_a_lasting_event_acts_after_its_timeout(event: str, pods: list[PodFields], phase: str) -> None:
    job_view = view(job("a", policies=[{"event": event, "action": "AbortJob", "timeout": "10s"}]))
    first_seen: dict[tuple[str, str, int], datetime] = {}

    def at_second(second: int, *pods: PodFields, phase: str) -> tuple[str | None, float | None]:
        now = NOW + timedelta(seconds=second)
        found = with_first_seen_times(job_events(job_view, pods, group_phase=phase, seen={}, now=now), first_seen)
        action, wait_s = due_action(job_view, found, now)
        return action.name if action is not None else None, wait_s

    assert at_second(0, *pods, phase=phase) == (None, 10.0)
    assert at_second(6, *pods, phase=phase) == (None, 4.0)
    assert at_second(7, phase="") == (None, None)  # the event is over and forgotten
    assert at_second(8, *pods, phase=phase) == (None, 10.0)
    assert at_second(18, *pods, phase=phase) == ("AbortJob", None)


def test_events_of_older_versions_are_ignored() -> None:
    job_view = view(job("a", policies=[{"event": "PodEvicted", "action": "AbortJob"}]), version=1)
    assert decide(job_view, evicted=[JobEvent("PodEvicted", NOW, "worker", "a-worker-0", version=0)]) is None


# Pods.

OWNER = {"kind": "Job", "name": "a", "uid": "u1"}


def test_a_pod_has_the_labels_and_annotations_of_its_job() -> None:
    tree = job("a", task("worker", 4, topologyPolicy="best-effort", partitionPolicy={"partitionSize": 2}))
    tree["metadata"] |= {
        "annotations": {"volcano.sh/preemptable": "true", "volcano.sh/jdb-min-available": "1", "mine": "x"},
        "labels": {"volcano.sh/preemptable": "true"},
    }
    job_view = view({**tree, "spec": {**tree["spec"], "priorityClassName": "high"}}, version=2, retryCount=1)
    created_pod = job_pod(job_view, job_view.tasks[0], 3, OWNER)
    assert created_pod["metadata"] == {
        "name": "a-worker-3",
        "labels": {
            "volcano.sh/task-index": "3",
            "volcano.sh/job-name": "a",
            "volcano.sh/task-spec": "worker",
            "volcano.sh/job-namespace": "ml",
            "volcano.sh/queue-name": "default",
            "volcano.sh/preemptable": "true",
            "volcano.sh/partition-id": "1",
        },
        "annotations": {
            "volcano.sh/task-index": "3",
            "volcano.sh/task-spec": "worker",
            "scheduling.k8s.io/group-name": "a-u1",
            "volcano.sh/job-name": "a",
            "volcano.sh/queue-name": "default",
            "volcano.sh/job-version": "2",
            "volcano.sh/template-uid": "a-worker",
            "volcano.sh/job-retry-count": "1",
            "volcano.sh/numa-topology-policy": "best-effort",
            "volcano.sh/preemptable": "true",
            "volcano.sh/jdb-min-available": "1",
        },
        "ownerReferences": [OWNER],
    }
    assert (created_pod["spec"]["schedulerName"], created_pod["spec"]["priorityClassName"]) == ("volcano", "high")
    assert "schedulerName" not in job_view.tasks[0]["template"]["spec"]


def test_volume_names_are_stable() -> None:
    job_view = view(
        job("a", volumes=[{"mountPath": "/in", "volumeClaimName": "data"}, {"mountPath": "/out", "volumeClaim": {}}])
    )
    first, second = (job_pod(job_view, job_view.tasks[0], 0, OWNER)["spec"] for _ in range(2))
    assert first == second
    claims = [each["persistentVolumeClaim"]["claimName"] for each in first["volumes"]]
    assert claims == claims_of(job_view)
    assert claims[0] == "data"
    assert claims[1].startswith("a-pvc-")
    assert [each["mountPath"] for each in first["containers"][0]["volumeMounts"]] == ["/in", "/out"]


def env_of(tree: Tree) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in tree["spec"]["containers"][0].get("env", ())}


def build_pod(plugins: dict[str, list[str]], name: str, index: int, *tasks: Tree) -> tuple[JobView, Tree]:
    job_view = view(job("a", *tasks, plugins=plugins))
    found = job_view.task(name)
    assert found is not None
    return job_view, job_pod(job_view, found, index, OWNER)


def test_env_and_svc() -> None:
    job_view, created_pod = build_pod({"env": [], "svc": []}, "big-worker", 1, task("ps"), task("big-worker", 2))
    assert env_of(created_pod) == {
        "VK_TASK_INDEX": "1",
        "VC_TASK_INDEX": "1",
        "VC_PS_HOSTS": "",
        "VC_PS_NUM": "",
        "VC_BIG_WORKER_HOSTS": "",
        "VC_BIG_WORKER_NUM": "",
    }
    assert (created_pod["spec"]["hostname"], created_pod["spec"]["subdomain"]) == ("a-big-worker-1", "a")
    assert created_pod["spec"]["volumes"] == [{"name": "a-svc", "configMap": {"name": "a-svc"}}]
    assert hosts_data(job_view) == {
        "ps.host": "a-ps-0.a",
        "VC_PS_HOSTS": "a-ps-0.a",
        "VC_PS_NUM": "1",
        "big_worker.host": "a-big-worker-0.a\na-big-worker-1.a",
        "VC_BIG_WORKER_HOSTS": "a-big-worker-0.a,a-big-worker-1.a",
        "VC_BIG_WORKER_NUM": "2",
    }
    kinds = [(plugin, resource.plural) for plugin, resource, _ in plugin_objects(job_view)]
    assert kinds == [("svc", "configmaps"), ("svc", "services"), ("svc", "networkpolicies")]
    bare = view(job("a", plugins={"svc": ["--disable-network-policy=true", "--publish-not-ready-addresses"]}))
    objects = list(plugin_objects(bare))
    assert [resource.plural for _, resource, _ in objects] == ["configmaps", "services"]
    assert objects[1][2]["spec"]["publishNotReadyAddresses"] is True


def test_ssh() -> None:
    job_view, created_pod = build_pod({"ssh": ["--ssh-port=2022"]}, "worker", 0, task("worker", 2))
    files = {name: base64.b64decode(text).decode() for name, text in ssh_data(job_view).items()}
    assert files["id_rsa"].startswith("-----BEGIN RSA PRIVATE KEY-----")
    assert files["id_rsa.pub"].startswith("ssh-rsa ")
    assert files["authorized_keys"] == files["id_rsa.pub"]
    assert "Host a-worker-1\n  HostName a-worker-1.a\n  Port 2022\n" in files["config"]
    (volume,) = created_pod["spec"]["volumes"]
    assert (volume["secret"]["secretName"], volume["secret"]["defaultMode"]) == ("a-ssh", 0o600)
    assert created_pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/root/.ssh"
    user_keys = view(job("a", plugins={"ssh": ["--ssh-private-key=k", "--ssh-public-key=p"]}))
    assert base64.b64decode(ssh_data(user_keys)["id_rsa"]) == b"k"


def test_pytorch() -> None:
    tasks = task("master"), task("worker", 2)
    _, master = build_pod({"pytorch": []}, "master", 0, *tasks)
    _, worker = build_pod({"pytorch": ["--port=5", "--wait-master-enabled=true"]}, "worker", 1, *tasks)
    expected_env = {"MASTER_ADDR": "a-master-0.a", "MASTER_PORT": "23456", "WORLD_SIZE": "3", "RANK": "0"}
    assert expected_env.items() <= env_of(master).items()
    assert (env_of(worker)["RANK"], env_of(worker)["MASTER_PORT"]) == ("2", "5")
    assert worker["spec"]["containers"][0]["ports"] == [{"name": "pytorchjob-port", "containerPort": 5}]
    assert [each["name"] for each in worker["spec"]["initContainers"]] == ["wait-for-master"]
    assert "nc -z a-master-0.a 5" in worker["spec"]["initContainers"][0]["command"][2]


def test_mpi() -> None:
    tasks = task("master"), task("worker", 2)
    _, master = build_pod({"mpi": []}, "master", 0, *tasks)
    assert env_of(master)["MPI_HOST"] == "a-worker-0.a,a-worker-1.a"
    assert {"name": "mpijob-port", "containerPort": 22} in master["spec"]["containers"][0]["ports"]
    _, worker = build_pod({"mpi": []}, "worker", 0, *tasks)
    assert "MPI_HOST" not in env_of(worker)


def test_tensorflow() -> None:
    _, worker = build_pod({"tensorflow": []}, "worker", 1, task("ps"), task("worker", 2))
    assert json.loads(env_of(worker)["TF_CONFIG"]) == {
        "cluster": {"ps": ["a-ps-0.a:2222"], "worker": ["a-worker-0.a:2222", "a-worker-1.a:2222"]},
        "task": {"type": "worker", "index": 1},
    }
    _, alone = build_pod({"tensorflow": []}, "worker", 0, task("worker", 1))
    assert "TF_CONFIG" not in env_of(alone)


def test_ray() -> None:
    head, worker = task("head"), task("worker", 2)
    head["template"]["spec"]["containers"] = [container() | {"name": "head"}]
    worker["template"]["spec"]["containers"] = [container() | {"name": "worker"}]
    job_view, created_pod = build_pod({"ray": []}, "head", 0, head, worker)
    assert [each["containerPort"] for each in created_pod["spec"]["containers"][0]["ports"]] == [6379, 8265, 10001]
    assert "ray start --head" in created_pod["spec"]["containers"][0]["command"][2]
    _, other = build_pod({"ray": []}, "worker", 0, head, worker)
    assert other["spec"]["containers"][0]["command"][2] == "ray start --block --address=a-head-0.a:6379"
    names = [body["metadata"]["name"] for plugin, _, body in plugin_objects(job_view) if plugin == "ray"]
    assert names == ["a-head-svc"]
    assert plugin_error(job_view) == ""


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        pytest.param({"ray": []}, "job a doesn't have head task head", id="ray"),
        pytest.param({"ray": ["--head=chief"]}, "job a doesn't have head task chief", id="by another name"),
        pytest.param({"ray": ["--head=worker"]}, "", id="it is there"),
        pytest.param({"pytorch": [], "tensorflow": []}, "", id="plugins-without-conditions"),
    ],
)
def test_ray_needs_its_head(plugins: dict[str, list[str]], expected: str) -> None:
    assert plugin_error(view(job("a", task("worker", 2), plugins=plugins))) == expected


# Groups.


def task_with_cpu(name: str, count: int, cpu: str, priority: str = "", **options: Any) -> Tree:
    found = task(name, count, **options)
    found["template"]["spec"]["containers"] = [container(cpu)]
    found["template"]["spec"]["priorityClassName"] = priority
    return found


@pytest.mark.parametrize(
    ("min_count", "cpu", "pods"),
    [
        pytest.param(5, "8", "5", id="all"),
        pytest.param(2, "4", "2", id="fewer than the tasks want: the important first"),
        pytest.param(3, "6", "3", id="just what the tasks want"),
        pytest.param(4, "7", "4", id="filled up from what is left"),
    ],
)
def test_min_resources_of_a_group(min_count: int, cpu: str, pods: str) -> None:
    tasks = [task_with_cpu("low", 2, "1", minAvailable=0), task_with_cpu("high", 3, "2", "high", minAvailable=3)]
    found = format_amounts(min_resources_of(tasks, min_count, {"high": 10, "": 0}.__getitem__))
    assert (found["cpu"], found["requests.cpu"], found["pods"]) == (cpu, cpu, pods)


def test_multiply_amounts() -> None:
    assert format_amounts(multiply_amounts({"cpu": parse_quantity("100m")}, 1234)) == {"cpu": "123400m"}
    assert multiply_amounts({"cpu": parse_quantity("1")}, 0) == {}


def test_an_invalid_template_counts_as_one_pod() -> None:
    broken = task("w", 2)
    broken["template"]["spec"]["containers"] = [container("lots")]
    assert format_amounts(min_resources_of([broken], 2, lambda _: 0)) == {"count/pods": "2", "pods": "2"}


def test_group_spec() -> None:
    split = {"totalPartitions": 2, "partitionSize": 2, "minPartitions": 1, "networkTopology": {"highestTierAllowed": 1}}
    tree = job("a", task("w", 4, partitionPolicy=split), networkTopology={"mode": "soft", "highestTierName": "rack"})
    spec = group_spec(view(tree), lambda _: 0)
    assert (spec["minMember"], spec["minTaskMember"], spec["queue"]) == (2, {"w": 2}, "default")
    assert spec["networkTopology"] == {"mode": "soft", "highestTierName": "rack"}
    assert spec["subGroupPolicy"] == [
        {
            "name": "w",
            "labelSelector": {"matchLabels": {"volcano.sh/task-spec": "w"}},
            "matchLabelKeys": ["volcano.sh/partition-id"],
            "subGroupSize": 2,
            "minSubGroups": 1,
            "networkTopology": {"mode": "hard", "highestTierAllowed": 1},
        }
    ]


@async_test
async def test_the_state_of_a_deleted_job_is_dropped_with_its_last_pod() -> None:
    target = ConnectionConfig(server="http://127.0.0.1:1")  # no request is sent
    async with Client(target, clock=ManualClock(), chance=random.Random(0)) as client:
        jobs = VolcanoJobController(SharedInformerFactory(client))
        owner = OwnerReference(api_version=VC_JOBS.api_version, kind="Job", name="a", uid="u1", controller=True)
        job_object = view(job("a")).item
        created_pod, other = (
            replace(each, metadata=replace(each.metadata, owner_references=(owner,)))
            for each in (pod("a-worker-0"), pod("a-worker-1"))
        )
        for informer, item in ((jobs.jobs, job_object), (jobs.pods, created_pod), (jobs.pods, other)):
            deliver_event(informer, None, item)
        deliver_event(jobs.pods, created_pod, None)
        assert jobs.has_memory_of("u1")
        deliver_event(jobs.jobs, job_object, None)
        deliver_event(jobs.pods, other, None)
        assert not jobs.has_memory_of("u1")


class RecordingController(VolcanoJobController):
    """Records statuses instead of writing them."""

    def __init__(self, world: SharedInformerFactory) -> None:
        super().__init__(world)
        self.statuses: list[Tree] = []

    async def replace_status(self, resource: GroupVersionResource, item: UntypedObject, status: Tree) -> None:  # noqa: ARG002
        self.statuses.append(status)


async def status_after(job_view: Tree, phase: str, action: str, counts: PodPhaseCounts, **status: Any) -> Tree:
    """Return the status that an action writes for a job in this phase, at NOW."""
    state = {"phase": phase, "lastTransitionTime": "2025-12-31T23:00:00Z"}
    job_object = view(job_view, state=state, **status)
    clock = ManualClock(NOW)
    target = ConnectionConfig(server="http://127.0.0.1:1")  # no request is sent
    async with Client(target, clock=clock, chance=random.Random(0)) as client:
        jobs = RecordingController(SharedInformerFactory(client))
        await jobs._update_status(job_object, dict(job_object.item.status), counts, transition_for(phase, action))
    (found,) = jobs.statuses
    return found


def created(at: str | None) -> Tree:
    tree = job("a")
    return tree if at is None else {**tree, "metadata": {**tree["metadata"], "creationTimestamp": at}}


@pytest.mark.parametrize(
    ("job_view", "phase", "before", "after"),
    [
        pytest.param(created("2025-12-31T23:58:30Z"), "Completing", None, "1m30s", id="just-finished"),
        pytest.param(created("2026-01-01T00:05:00Z"), "Completing", None, "0s", id="made-by-a-clock-ahead-of-ours"),
        pytest.param(created(None), "Completing", None, None, id="nobody-knows-since-when"),
        pytest.param(created("2025-12-31T23:58:30Z"), "Completed", "5s", "5s", id="finished-before"),
        pytest.param(created("2025-12-31T23:58:30Z"), "Completed", None, None, id="finished-without-a-duration"),
        pytest.param(created("2025-12-31T23:58:30Z"), "Running", None, None, id="still-running"),
        pytest.param(created("2025-12-31T23:58:30Z"), "Restarting", "5s", "5s", id="resumed-after-it-had-finished"),
    ],
)
@async_test
async def test_the_running_duration_is_written_at_the_finish(
    job_view: Tree, phase: str, before: str | None, after: str | None
) -> None:
    status = {} if before is None else {"runningDuration": before}
    counts = PodPhaseCounts(running=1) if phase in ("Running", "Restarting") else PodPhaseCounts(succeeded=2)
    found = await status_after(job_view, phase, "SyncJob", counts, **status)
    assert found.get("runningDuration") == after


@pytest.mark.parametrize(
    ("phase", "counts", "expected_phase"),
    [
        pytest.param("Completing", PodPhaseCounts(succeeded=2), "Completed", id="another-phase"),
        pytest.param("Completed", PodPhaseCounts(succeeded=2), "Completed", id="the-same-phase"),
    ],
)
@async_test
async def test_each_phase_change_adds_a_condition(phase: str, counts: PodPhaseCounts, expected_phase: str) -> None:
    known = [{"status": "Completing", "lastTransitionTime": "2025-12-31T23:00:00Z"}]
    unchanged = {"version": 3, "retryCount": 2, "controlledResources": {"plugin-env": "env"}}
    found = await status_after(job("a"), phase, "SyncJob", counts, conditions=known, **unchanged)
    changed = {"phase": expected_phase, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    options = [{"status": expected_phase, "lastTransitionTime": changed["lastTransitionTime"]}]
    assert found["state"] == (
        changed if phase != expected_phase else {**changed, "lastTransitionTime": "2025-12-31T23:00:00Z"}
    )
    assert found["conditions"] == known + (options if phase != expected_phase else [])
    assert {key: found[key] for key in unchanged} == unchanged
    assert (found["succeeded"], found["minAvailable"]) == (2, view(job("a")).min_available)
