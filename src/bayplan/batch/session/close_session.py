"""Closing of a session: phases and conditions of pod groups, messages of pods, usage of queues, and events.

Called once per session, after the plugins' `on_session_close`. Cost: a few microseconds per job, and a text for each
pending job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from bayplan.batch.devices.claimed_devices import COUNT_PREFIX, ByClass, ClaimedDeviceRequests, sum_claims
from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.fit_errors import ALL_NODES_UNAVAILABLE
from bayplan.batch.model.jobs import COMPLETED_PHASE, INQUEUE_PHASE, PENDING_PHASE, RUNNING_PHASE, UNKNOWN_PHASE, Job
from bayplan.batch.model.statuses import COMPLETED, HOLDING, SCHEDULED, TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.outcome import GroupEvent, GroupOutcome, PodMessage, SessionResult
from bayplan.batch.session.session import Session
from bayplan.codec.quantity import Quantity, parse_quantity
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.volcano.types import ROOT_QUEUE, PodGroupCondition, PodGroupStatus

UNSCHEDULABLE, SCHEDULABLE = "Unschedulable", "Schedulable"
_UNSCHEDULABLE_PHASES = frozenset({UNKNOWN_PHASE, PENDING_PHASE, INQUEUE_PHASE})
_WAITING_STATUSES = (TaskStatus.ALLOCATED, TaskStatus.PENDING, TaskStatus.PIPELINED)


# Texts


def fit_error(job: Job) -> str:
    """Text with the task counts of a job and the reasons of its pending tasks."""
    counts = {TaskStatus(number).label: len(tasks) for number, tasks in enumerate(job.status_index.by_status) if tasks}
    counts["minAvailable"] = job.min_available
    head = "pod group is ready" if job.is_ready() else "pod group is not ready"
    text = f"{head}, {_histogram(counts)}"
    reasons = Counter(task_reason(job, task).reason for task in job.pending.values())
    if reasons:
        text += f"; Pending: {_histogram(reasons)}"
    return text + _origin_reason(job)


def _histogram(counts: Mapping[str, int]) -> str:
    return ", ".join(sorted(f"{count} {name}" for name, count in counts.items()))


def _origin_reason(job: Job) -> str:
    if job.fit_error:
        return f". Origin reason is: {job.fit_error}"
    for uid, errors in job.nodes_fit_errors.items():
        if uid in job.tasks:
            return f". Origin reason is {job.tasks[uid].name}: {errors.text()}"
    return ""


def task_reason(job: Job, task: Task) -> PodMessage:
    """Why a task waits: from the last discarded statement, else from its current status."""
    context = task.transaction_context()
    pod = f"Pod {task.key} can possibly be assigned to {context.node_name}, once"
    if context.status is TaskStatus.ALLOCATED:
        return PodMessage(SCHEDULABLE, f"{pod} minAvailable is satisfied")
    if context.status is TaskStatus.PIPELINED:
        nominated = context.node_name if context.eviction_occurred else ""
        return PodMessage(UNSCHEDULABLE, f"{pod} resource is released and minAvailable is satisfied", nominated)
    if context.status is TaskStatus.PENDING:
        errors = job.nodes_fit_errors.get(task.uid)
        if errors is None:
            return PodMessage(UNSCHEDULABLE, job.fit_error)
        return PodMessage(UNSCHEDULABLE, errors.text(), counts=errors.reasons)
    return PodMessage(context.status.label, job.fit_error)


# Pod groups


def collect_group_outcomes(session: Session, outcome: SessionResult) -> Iterator[None]:
    """Collect the status and the events of every group, and the messages of its pods; one job per step."""
    for job in session.jobs.values():
        yield
        old = job.pod_group.status
        job.phase = group_phase(job, session.uid)
        status = PodGroupStatus(
            phase=job.phase,
            conditions=tuple(job.conditions),
            running=job.count(TaskStatus.RUNNING),
            succeeded=job.count(TaskStatus.SUCCEEDED),
            failed=job.count(TaskStatus.FAILED),
        )
        changed = _differs(status, old)
        hypernodes = _sub_job_hypernodes(job)
        outcome.groups[job.uid] = GroupOutcome(
            status,
            changed,
            job.allocated_hyper_node,
            hypernodes,
            len(job.pending),
            job.queue,
            job.pod_group.metadata.creation_timestamp,
        )
        _add_events_and_messages(job, outcome, changed=changed)


def _sub_job_hypernodes(job: Job) -> dict[str, str]:
    """The hypernodes of the sub-groups. The default sub-job uses the hypernode of the job."""
    if not job.has_sub_job_policy:
        return {}
    hypernodes = {uid: sub.allocated_hyper_node for uid, sub in job.sub_jobs.items() if uid != job.uid}
    return {uid: hypernode for uid, hypernode in hypernodes.items() if hypernode}


def group_phase(job: Job, session: str) -> str:
    """The phase derived from the tasks, and from whether this session marked the gang unschedulable."""
    unschedulable = any(
        each.type == UNSCHEDULABLE and each.status == "True" and each.transition_id == session
        for each in job.conditions
    )
    if unschedulable and job.count(TaskStatus.RUNNING):
        return UNKNOWN_PHASE
    scheduled = job.count(*SCHEDULED)
    if scheduled >= job.min_available:
        return COMPLETED_PHASE if scheduled == job.count(*COMPLETED) else RUNNING_PHASE
    return INQUEUE_PHASE if job.phase == INQUEUE_PHASE else PENDING_PHASE


def _differs(new: PodGroupStatus, old: PodGroupStatus) -> bool:
    counts = (new.phase, new.running, new.succeeded, new.failed)
    if counts != (old.phase, old.running, old.succeeded, old.failed) or len(new.conditions) != len(old.conditions):
        return True
    return any(
        _condition_key(one) != _condition_key(other) for one, other in zip(new.conditions, old.conditions, strict=True)
    )


def _condition_key(condition: PodGroupCondition) -> tuple[str, str, str, str]:
    return condition.type, condition.status, condition.reason, condition.message


def _add_events_and_messages(job: Job, outcome: SessionResult, *, changed: bool) -> None:
    waiting = job.count(*_WAITING_STATUSES)
    if job.phase in _UNSCHEDULABLE_PHASES:
        text = fit_error(job)
        pending = len(job.pending)
        text = f"{pending}/{len(job.tasks)} tasks in gang unschedulable: {text}"
        outcome.events.append(GroupEvent(job.uid, "Warning", UNSCHEDULABLE, text))
    elif changed:
        outcome.events.append(GroupEvent(job.uid, "Normal", "Scheduled", "pod group is ready"))
    if not waiting:
        return
    base = fit_error(job) or ALL_NODES_UNAVAILABLE
    for task in job.with_status(*_WAITING_STATUSES):
        if task.gated:
            continue
        found = task_reason(job, task)
        nominated = found.nominated_node or task.pod.status.nominated_node_name
        message = PodMessage(found.reason, found.message or base, nominated, found.counts)
        outcome.waiting[task.key] = message
        if _condition_differs(task, found, message.message):
            outcome.messages[task.key] = message


def _condition_differs(task: Task, found: PodMessage, message: str) -> bool:
    status = task.pod.status
    if found.nominated_node and found.nominated_node != status.nominated_node_name:
        return True
    condition = next((each for each in status.conditions if each.type == "PodScheduled"), None)
    if condition is None:
        return True
    return (condition.status, condition.reason, condition.message) != ("False", found.reason, message)


# Queues


def collect_queue_outcomes(session: Session, outcome: SessionResult) -> Iterator[None]:
    """Collect the allocated amounts of each queue, including its ancestors, if they differ from its status."""
    allocated_by_queue = {name: Amounts() for name in session.queues}
    # by claim, because pods can share claims
    devices: dict[str, dict[str, ByClass]] = {name: {} for name in session.queues}
    device_requests = ClaimedDeviceRequests(session.catalog.table(ResourceClaim), consumable=False)
    has_root = ROOT_QUEUE in session.queues
    for job in session.jobs.values():
        yield
        total = _allocated_by_job(session, job)
        if total is None:
            continue
        claimed = _claimed_devices_of(device_requests, job)
        for name in _queue_and_ancestors(session, job.queue) if has_root else (job.queue,):
            allocated_by_queue[name].add(total)
            devices[name] |= claimed
    for name, amounts in allocated_by_queue.items():
        found = amounts.quantities()
        for device_class, amount in sum_claims(devices[name].values()).items():
            found[COUNT_PREFIX + device_class] = Quantity.of(amount.count)
        if not _same_amounts(session.queues[name].queue.status.allocated, found):
            outcome.queues[name] = found


def _allocated_by_job(session: Session, job: Job) -> Amounts | None:
    if not job.allocated_task_num:
        return None
    total = job.allocated
    if 0.0 in (total.scalars or {}).values():  # scalars can be left at zero; the tasks name only what they have
        total = Amounts()
        for task in job.with_status(*HOLDING):
            total.add(task.resreq)
    if session.device_pools:
        total = total.clone()
        for task in job.with_status(*HOLDING):
            for pool in session.device_pools:
                for name, amount in pool.queue_amounts(task).items():
                    total.set_scalar(name, total.get(name) - task.resreq.get(name) + amount)
    return total


def _claimed_devices_of(device_requests: ClaimedDeviceRequests, job: Job) -> dict[str, ByClass]:
    found: dict[str, ByClass] = {}
    for task in job.with_status(*HOLDING) if device_requests.has_claims else ():
        found |= device_requests.of_task(task)
    return found


def _queue_and_ancestors(session: Session, name: str) -> list[str]:
    """The queue and its ancestors up to the root. A missing parent or a cycle ends the list."""
    found = [name]
    while True:
        queue = session.queues.get(found[-1])
        parent = (queue.parent if queue is not None else "") or ROOT_QUEUE
        if parent == ROOT_QUEUE:  # also for the root itself: its own jobs count twice there, as in Volcano
            return [*found, parent]
        if parent in found or parent not in session.queues:
            return found
        found.append(parent)


def _same_amounts(stored: Mapping[str, str | int | float], found: Mapping[str, Quantity]) -> bool:
    return stored.keys() == found.keys() and all(parse_quantity(stored[name]) == found[name] for name in found)
