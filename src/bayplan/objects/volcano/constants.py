"""Names in Volcano's objects: keys of annotations and labels, phases, events, actions.

All modules that read or write such objects use these constants.
"""

from __future__ import annotations

from typing import Any

Tree = dict[str, Any]
"""An object as JSON."""

SCHEDULER = "volcano"

GROUP_NAME = "scheduling.k8s.io/group-name"
QUEUE_NAME_OF_PODS = "scheduling.volcano.sh/queue-name"
GROUP_MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
ALLOCATION_GATE = "scheduling.volcano.sh/queue-allocation-gate"
TASK_SPEC = "volcano.sh/task-spec"
TASK_INDEX = "volcano.sh/task-index"
JOB_NAME = "volcano.sh/job-name"
JOB_NAMESPACE = "volcano.sh/job-namespace"
QUEUE_NAME = "volcano.sh/queue-name"
JOB_VERSION = "volcano.sh/job-version"
JOB_RETRY_COUNT = "volcano.sh/job-retry-count"
TEMPLATE_UID = "volcano.sh/template-uid"
PARTITION_ID = "volcano.sh/partition-id"
OUT_OF_SYNC = "volcano.sh/controller-out-of-sync"
NUMA_POLICY = "volcano.sh/numa-topology-policy"
PREEMPTABLE = "volcano.sh/preemptable"
COOLDOWN_TIME = "volcano.sh/cooldown-time"
REVOCABLE_ZONE = "volcano.sh/revocable-zone"
JDB_MIN_AVAILABLE = "volcano.sh/jdb-min-available"
JDB_MAX_UNAVAILABLE = "volcano.sh/jdb-max-unavailable"
TOPOLOGY_MODE = "volcano.sh/network-topology-mode"
TOPOLOGY_HIGHEST_TIER = "volcano.sh/network-topology-highest-tier"
ALLOCATED_HYPER_NODE = "volcano.sh/job-allocated-hypernode"
HIERARCHY = "volcano.sh/hierarchy"
HIERARCHY_WEIGHTS = "volcano.sh/hierarchy-weights"
CLOSED_BY_PARENT = "volcano.sh/closed-by-parent"
FLOW_LABEL = "volcano.sh/createdByJobFlow"
TEMPLATE_LABEL = "volcano.sh/createdByJobTemplate"
TOPOLOGY_SOURCE = "volcano.sh/network-topology-source"
SCHEDULED_AT = "volcano.sh/cronjob-scheduled-timestamp"

# Queue states.
OPEN, CLOSED, CLOSING, UNKNOWN = "Open", "Closed", "Closing", "Unknown"

# Job phases.
PENDING, RUNNING, RESTARTING = "Pending", "Running", "Restarting"
ABORTING, ABORTED = "Aborting", "Aborted"
COMPLETING, COMPLETED = "Completing", "Completed"
TERMINATING, TERMINATED, FAILED = "Terminating", "Terminated", "Failed"

# Events of jobs.
ANY_EVENT = "*"
POD_FAILED, POD_EVICTED, POD_PENDING, POD_RUNNING = "PodFailed", "PodEvicted", "PodPending", "PodRunning"
TASK_COMPLETED, TASK_FAILED, JOB_UNKNOWN, JOB_UPDATED = "TaskCompleted", "TaskFailed", "Unknown", "JobUpdated"
OUT_OF_SYNC_EVENT, COMMAND_ISSUED = "OutOfSync", "CommandIssued"

# Actions.
ABORT_JOB, RESTART_JOB, TERMINATE_JOB = "AbortJob", "RestartJob", "TerminateJob"
COMPLETE_JOB, RESUME_JOB, SYNC_JOB = "CompleteJob", "ResumeJob", "SyncJob"
RESTART_TASK, RESTART_POD, RESTART_PARTITION = "RestartTask", "RestartPod", "RestartPartition"
OPEN_QUEUE, CLOSE_QUEUE = "OpenQueue", "CloseQueue"

POLICY_EVENTS = (ANY_EVENT, JOB_UPDATED, POD_EVICTED, POD_FAILED, POD_PENDING, TASK_COMPLETED, TASK_FAILED, JOB_UNKNOWN)
"""Events and actions that a policy may name; the rest is internal to the controllers."""
POLICY_ACTIONS = (
    ABORT_JOB,
    COMPLETE_JOB,
    RESTART_JOB,
    RESTART_PARTITION,
    RESTART_POD,
    RESTART_TASK,
    RESUME_JOB,
    TERMINATE_JOB,
)
JOB_PLUGINS = ("env", "hcclrank", "mpi", "pytorch", "ray", "ssh", "svc", "tensorflow")


def pod_name(job: str, task: str, index: int) -> str:
    return f"{job}-{task}-{index}"
