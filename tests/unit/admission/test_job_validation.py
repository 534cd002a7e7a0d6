"""Validation and defaults of a Job of batch.volcano.sh."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.admission.job_validation import argument_value, job_errors, job_queue_error, job_update_error
from bayplan.admission.volcano_defaults import with_job_defaults
from support.builders.volcano_manifests import container, job, queue, task

VALID = (
    "valid events are [* JobUpdated PodEvicted PodFailed PodPending TaskCompleted TaskFailed Unknown], valid actions "
    "are [AbortJob CompleteJob RestartJob RestartPartition RestartPod RestartTask ResumeJob TerminateJob];"
)
TWO_TIERS = "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously"


def policies(*job_tree: dict[str, Any]) -> dict[str, Any]:
    return with_job_defaults(job("a", policies=list(job_tree)))


def single_error(error: str) -> str:
    return f"1 error occurred:\n\t* {error}\n\n {VALID}"


def numa_job(cpu: str) -> dict[str, Any]:
    each = task(topologyPolicy="best-effort")
    each["template"]["spec"]["containers"] = [container(cpu)]
    return job("a", each)


@pytest.mark.parametrize(
    ("job_tree", "error"),
    [
        pytest.param(with_job_defaults(job("a", task("w", 2))), "", id="valid"),
        pytest.param({"metadata": {"name": "a"}, "spec": {}}, "No task specified in job spec", id="no task"),
        pytest.param(
            job("a", task("w"), plugins={"mpi": ["--master=m"]}),
            "The specified mpi master task was not found",
            id="mpi without its master",
        ),
        pytest.param(
            job("a", task("w", 2, minAvailable=3)),
            " 'minAvailable' is greater than 'replicas' in task: w, job: a;",
            id="minAvailable above the replicas of a task",
        ),
        pytest.param(job("a", task("w"), task("w")), " duplicated task name w;", id="two tasks of one name"),
        pytest.param(
            job("a", task("w"), minAvailable=2),
            " job 'minAvailable' should not be greater than total replicas in tasks;",
            id="minAvailable above the replicas of the job",
        ),
        pytest.param(job("a", plugins={"big": []}), " unable to find job plugin: big;", id="unknown plugin"),
        pytest.param(job("a", volumes=[{}]), " mountPath is required;", id="a volume without a mountPath"),
        pytest.param(
            job("a", volumes=[{"mountPath": "/x", "volumeClaimName": "c"}] * 2),
            " duplicated mountPath: /x;",
            id="two volumes with one mountPath",
        ),
        pytest.param(
            job("a", volumes=[{"mountPath": "/x"}]),
            " either VolumeClaim or VolumeClaimName must be specified;",
            id="a volume without a claim",
        ),
        pytest.param(
            job("a", task("x", dependsOn={"name": ["y"]}), task("y", dependsOn={"name": ["x"]})),
            " job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG);",
            id="a dependency cycle",
        ),
        pytest.param(
            job("a", networkTopology={"highestTierAllowed": 1, "highestTierName": "r"}), TWO_TIERS, id="tiers"
        ),
        pytest.param(
            job("a", task("w", 3, partitionPolicy={"totalPartitions": 2, "partitionSize": 2})),
            "'Replicas' are not equal to TotalPartitions*PartitionSize in task: w, job: a",
            id="replicas that do not match the partitions",
        ),
        pytest.param(
            job(
                "a",
                task(
                    "w",
                    4,
                    minAvailable=3,
                    partitionPolicy={"totalPartitions": 2, "partitionSize": 2, "minPartitions": 1},
                ),
            ),
            "'MinAvailable' is not equal to MinPartitions*PartitionSize in task: w, job: a",
            id="minAvailable that does not match the partitions",
        ),
        pytest.param(
            numa_job("1500m"), "the cpu request isn't  an integer in spec.task[0] container[0].", id="half a CPU"
        ),
        pytest.param(numa_job("2"), "", id="whole CPUs"),
        pytest.param(
            policies({"event": "PodFailed", "exitCode": 3, "action": "AbortJob"}),
            single_error("must not specify event and exitCode simultaneously"),
            id="a policy with event and exit code",
        ),
        pytest.param(
            policies({"action": "AbortJob"}),
            single_error("either event and exitCode should be specified"),
            id="a policy without event and exit code",
        ),
        pytest.param(
            policies({"exitCode": 0, "action": "AbortJob"}), single_error("0 is not a valid error code"), id="exit 0"
        ),
        pytest.param(
            policies({"exitCode": 3, "action": "AbortJob"}, {"exitCode": 3, "action": "RestartJob"}),
            single_error("duplicate exitCode 3"),
            id="one exit code twice",
        ),
        pytest.param(
            policies({"event": "OutOfSync", "action": "AbortJob"}),
            single_error('spec.policies: Invalid value: "OutOfSync": invalid policy event'),
            id="an internal event",
        ),
        pytest.param(
            policies({"event": "PodFailed", "action": "SyncJob"}),
            single_error('spec.policies: Invalid value: "SyncJob": invalid policy action'),
            id="an internal action",
        ),
        pytest.param(
            policies({"event": "PodFailed", "action": "AbortJob"}, {"events": ["PodFailed"], "action": "RestartJob"}),
            single_error("duplicate event PodFailed  across different policy"),
            id="one event twice",
        ),
        pytest.param(
            policies({"event": "*", "action": "AbortJob"}, {"event": "PodFailed", "action": "RestartJob"}),
            single_error("if there's * here, no other policy should be here"),
            id="all events and one more",
        ),
    ],
)
def test_job_errors(job_tree: dict[str, Any], error: str) -> None:
    assert job_errors(job_tree) == error


def test_a_job_name_that_makes_a_pod_name_too_long_is_refused() -> None:
    assert "create pod with name " in job_errors(job("a" * 60, task("worker")))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        pytest.param("default", "", id="open"),
        pytest.param("none", ' unable to find job queue: queue.scheduling.volcano.sh "none" not found;', id="missing"),
        pytest.param(
            "shut", " can only submit job to queue with state `Open`, queue `shut` status is `Closed`;", id="closed"
        ),
        pytest.param("root", " can not submit job to root queue;", id="root"),
        pytest.param("dept", " can only submit job to leaf queue, queue `dept` has 1 child queues;", id="not a leaf"),
    ],
)
def test_a_job_is_accepted_by_an_open_leaf_queue_only(name: str, error: str) -> None:
    queues = [queue("default"), queue("root"), queue("shut", state="Closed"), queue("dept"), queue("a", parent="dept")]
    assert job_queue_error(job("a", queue=name), {each["metadata"]["name"]: each for each in queues}) == error


def test_defaults() -> None:
    defaulted = with_job_defaults(job("a", {"replicas": 2, "template": {"spec": {"hostNetwork": True}}}, task("w", 3)))
    spec = defaulted["spec"]
    assert (spec["queue"], spec["schedulerName"], spec["maxRetry"], spec["minAvailable"]) == (
        "default",
        "volcano",
        3,
        5,
    )
    first = spec["tasks"][0]
    assert (first["name"], first["minAvailable"], first["maxRetry"]) == ("default0", 2, 3)
    assert first["template"]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_defaults_of_partitions_and_plugins() -> None:
    split = task("w", 4, partitionPolicy={"totalPartitions": 2, "partitionSize": 2, "minPartitions": 1})
    spec = with_job_defaults(job("a", split, plugins={"mpi": []}))["spec"]
    assert spec["tasks"][0]["minAvailable"] == 2
    assert spec["plugins"] == {"mpi": [], "svc": [], "ssh": []}


def test_defaults_keep_given_values_and_do_not_change_the_argument() -> None:
    job_tree = job(
        "a", task("w", 2, minAvailable=1, maxRetry=7), queue="q", schedulerName="s", maxRetry=5, minAvailable=1
    )
    defaulted = with_job_defaults(job_tree)
    assert defaulted == job_tree
    assert defaulted is not job_tree


@pytest.mark.parametrize("spec", [None, "x", {"tasks": "x"}, {"tasks": ["x"]}], ids=repr)
def test_defaults_ignore_fields_of_the_wrong_type(spec: Any) -> None:
    defaulted = with_job_defaults({"metadata": {}, "spec": spec})
    assert "metadata" in defaulted


@pytest.mark.parametrize(
    ("change", "error"),
    [
        pytest.param({"minAvailable": 1}, "", id="a smaller minAvailable"),
        pytest.param({"priorityClassName": "high"}, "", id="another priority"),
        pytest.param({"minAvailable": 9}, "job 'minAvailable' must not be greater than total replicas", id="too many"),
        pytest.param({"tasks": []}, "job 'minAvailable' must not be greater than total replicas", id="no tasks"),
        pytest.param(
            {"queue": "other"},
            "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under spec` and "
            "`PriorityClassName`",
            id="another queue",
        ),
    ],
)
def test_job_updates(change: dict[str, Any], error: str) -> None:
    old = with_job_defaults(job("a", task("w", 2)))
    assert job_update_error(old, {**old, "spec": {**old["spec"], **change}}) == error


def test_a_task_may_grow_and_no_task_may_be_added() -> None:
    old = with_job_defaults(job("a", task("w", 2)))
    grown = with_job_defaults(job("a", task("w", 5)))
    assert job_update_error(old, grown) == ""
    added = with_job_defaults(job("a", task("w", 2), task("x")))
    assert job_update_error(old, added) == "job updates may not add or remove tasks"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--port=22"], "22"),
        (["-port=22"], "22"),
        (["--port", "22"], "22"),
        (["--other=1"], "0"),
        (None, "0"),
        (["--port"], "true"),
    ],
)
def test_flags_in_plugin_arguments(arguments: list[str] | None, value: str) -> None:
    assert argument_value(arguments, "port", "0") == value
