"""Job controller of batch.volcano.sh: keeps the pods and the phase of Volcano jobs.

A sync finds the events of the job (`job_policies`), their meaning in its phase (`job_states`), and makes the writes. An
action in progress is kept until all its writes succeed, so refused writes only delay it. The status is written last: a
reader of the phase finds the pods of that phase. Cost: a walk over the job's own pods; other objects are looked up by
name.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime

from bayplan.admission.job_validation import job_errors
from bayplan.admission.volcano_defaults import min_available, replicas
from bayplan.client import STRATEGIC_PATCH, resource_of
from bayplan.client.work_queue import WorkQueue
from bayplan.codec.go_duration import GoDuration
from bayplan.controllers.core.api_types import PODS, PodFields, Tree, UntypedObject
from bayplan.controllers.core.owner_refs import owner_reference
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.volcano.controller import VolcanoController, run_concurrently
from bayplan.controllers.volcano.job_plugins import plugin_error
from bayplan.controllers.volcano.job_pods import job_pod
from bayplan.controllers.volcano.job_policies import (
    JobAction,
    JobEvent,
    due_action,
    eviction_event,
    job_events,
    matching_policy,
    timeout_s,
    with_first_seen_times,
)
from bayplan.controllers.volcano.job_resources import JobResources
from bayplan.controllers.volcano.job_states import FINISHED, JobTransition, transition_for
from bayplan.controllers.volcano.job_view import JobView, PodPhaseCounts, is_out_of_sync, partition_of, task_of
from bayplan.controllers.volcano.resources import COMMANDS, POD_GROUPS, QUEUES, VC_JOBS, Command
from bayplan.errors import AlreadyExists, ApiError, NotFound
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import format_time
from bayplan.objects.volcano.constants import (
    COMMAND_ISSUED,
    OUT_OF_SYNC,
    PENDING,
    RESTART_PARTITION,
    RESTART_POD,
    RESTART_TASK,
    SCHEDULER,
    SYNC_JOB,
    pod_name,
)
from bayplan.objects.workloads import PriorityClass

_FINISHED_PHASES = ("Succeeded", "Failed")


@dataclass(slots=True)
class _JobMemory:
    """State of a job besides what the watches deliver."""

    commands: deque[str] = field(default_factory=deque)
    action: JobAction | None = None
    """Action in progress."""
    started_at: tuple[str, int, int] = ("", 0, 0)
    """Phase, version and retries at its start."""
    evicted: list[JobEvent] = field(default_factory=list)
    failed_since: dict[str, datetime] = field(default_factory=dict)
    first_seen: dict[tuple[str, str, int], datetime] = field(default_factory=dict)
    """First-seen times of task and group events, by event, task and the job's version."""
    deleted: set[str] = field(default_factory=set)
    """Pods that the controller deleted and the watch still shows."""
    recorded: set[str] = field(default_factory=set)
    """Keys of recorded events."""

    def finish_action(self) -> None:
        """Finish the action in progress, and its command."""
        if self.action is not None and self.commands and self.commands[0] == self.action.name:
            self.commands.popleft()
        self.action = None


class VolcanoJobController(VolcanoController):
    name = "volcano-job-controller"

    def __init__(self, informers: SharedInformerFactory, schedulers: tuple[str, ...] = (SCHEDULER,)) -> None:
        super().__init__(informers)
        self._scheduler = schedulers[0]
        self.jobs = self.informer(VC_JOBS, UntypedObject)
        self.pods = self.informer(PODS, PodFields)
        self.groups = self.informer(POD_GROUPS, UntypedObject)
        self.queues = self.informer(QUEUES, UntypedObject)
        self.commands = self.informer(COMMANDS, Command)
        classes = self.informer(resource_of(kind_of(PriorityClass)), PriorityClass)
        self._resources = JobResources(self, self.groups, classes)
        self._memory_by_job: dict[str, _JobMemory] = {}
        self._command_queue: WorkQueue[Key] = WorkQueue(
            "command", self._execute_command, clock=informers.clock, chance=informers.chance, workers=2
        )
        self.jobs.add_handler(self._on_job)
        self.pods.add_handler(self._on_pod)
        self.groups.add_handler(self._on_group)
        self.queues.add_handler(self._on_queue)
        self.commands.add_handler(self._on_command)

    async def run(self) -> None:
        await self.wait_synced()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run())
            group.create_task(self._command_queue.run())

    # Event handlers.

    def _on_job(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is None and old is not None:
            self._memory_by_job.pop(old.uid, None)
            self._resources.forget(old.uid)
            self.forget(old.uid)
        self.enqueue(old, new)

    def _on_pod(self, old: PodFields | None, new: PodFields | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        owner = pod.metadata.controller
        if owner is None or owner.kind != "Job" or owner.api_version != VC_JOBS.api_version:
            return
        memory = self._memory(owner.uid)
        if new is None:
            deleted_here = pod.uid in memory.deleted
            memory.deleted.discard(pod.uid)
            memory.failed_since.pop(pod.uid, None)
            if not deleted_here and (evicted := eviction_event(pod, self.clock.now())) is not None:
                memory.evicted.append(evicted)
            job = self.jobs.get(pod.namespace, owner.name)
            if job is None or job.uid != owner.uid:
                self._memory_by_job.pop(owner.uid, None)  # the job was deleted before its pods
        elif new.status.phase == "Failed":
            memory.failed_since.setdefault(new.uid, self.clock.now())
        self.queue.add((pod.namespace, owner.name))

    def _on_group(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        group = new if new is not None else old
        assert group is not None
        owner = group.metadata.controller
        if owner is not None and owner.kind == "Job" and owner.api_version == VC_JOBS.api_version:
            self.queue.add((group.namespace, owner.name))

    def _on_queue(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        """Event handler: enqueue the jobs that wait for this queue."""
        if old is None and new is not None:
            for job in self.jobs.all():
                if (job.spec.get("queue") or "default") == new.name:
                    self.enqueue(None, job)

    def _on_command(self, _: Command | None, new: Command | None) -> None:
        if new is not None and new.target is not None and new.target.kind == "Job":
            self._command_queue.add((new.namespace, new.name))

    async def _execute_command(self, key: Key) -> None:
        """Execute a command. It is deleted first, so that it is executed at most once."""
        command = self.commands.get(*key)
        if command is None or command.target is None or not await self.delete(COMMANDS, command):
            return
        job = self.jobs.get(command.namespace, command.target.name)
        if job is None or job.uid != command.target.uid:
            return
        note = f"Start to execute command {command.action}, and clean it up to make sure executed not more than once."
        self.record_event(VC_JOBS, job, COMMAND_ISSUED, note)
        self._memory(job.uid).commands.append(command.action)
        self.enqueue(None, job)

    def has_memory_of(self, uid: str) -> bool:
        """Whether the controller keeps state for a job besides the watches."""
        return uid in self._memory_by_job

    def _memory(self, uid: str) -> _JobMemory:
        return self._memory_by_job.setdefault(uid, _JobMemory())

    # Sync.

    async def sync(self, key: Key) -> float | None:
        item = self.get_latest(self.jobs, key)
        if item is None or item.terminating:
            return None
        job, memory = JobView(item, self._scheduler), self._memory(item.uid)
        if not job.initiated and not await self._can_start(job, memory):
            return None
        pods = self.pods.owned_by(job.uid)
        action, wait_s = self._choose_action(job, memory, pods)
        step = transition_for(job.phase, action.name)
        if action.name != SYNC_JOB:
            memory.action, memory.started_at = action, _status_key(job)
            self._record_event_once(
                job, memory, "ExecuteAction", f"Start to execute action {action.name} ", about=job.version
            )
        if step.kill:
            await self._kill_pods(job, memory, pods, action, step)
        else:
            await self._sync_pods(job, memory, pods, step)
        memory.finish_action()
        return wait_s

    async def _can_start(self, job: JobView, memory: _JobMemory) -> bool:
        """Whether a new job is valid and its queue exists; if not, report that in its status."""
        fault = job_errors(job.tree).strip() or plugin_error(job)
        if not fault and self.queues.get("", job.queue) is None:
            fault = f"queue {job.queue} does not exist; the job starts when it does"
        if not fault:
            return True
        self._record_event_once(job, memory, "JobStatusError", fault, warning=True)
        state = {"phase": PENDING, "reason": "JobStatusError", "message": fault}
        before = job.item.status.get("state") or {}
        if {key: before.get(key) for key in state} != state:
            state["lastTransitionTime"] = format_time(self.clock.now())
            await self.replace_status(VC_JOBS, job.item, {**job.item.status, "state": state})
        return False

    def _choose_action(self, job: JobView, memory: _JobMemory, pods: list[PodFields]) -> tuple[JobAction, float | None]:
        """Choose the action in progress, the next command, or the action of the policies."""
        if memory.action is not None:
            if memory.started_at == _status_key(job):
                return memory.action, None
            # The last write of the action succeeded, although its response was an error or missing.
            memory.finish_action()
        if memory.commands:
            return JobAction(memory.commands[0], reason=COMMAND_ISSUED), None
        if job.phase in FINISHED:
            memory.evicted.clear()
            return JobAction(), None
        group = self.groups.get(job.namespace, job.group_name)
        now = self.clock.now()
        events = job_events(
            job,
            pods,
            group_phase=(group.status.get("phase") or "") if group is not None else "",
            evicted=memory.evicted,
            seen=memory.failed_since,
            now=now,
        )
        found, wait_s = due_action(job, with_first_seen_times(events, memory.first_seen), now)
        later = [each for each in memory.evicted if (policy := matching_policy(job, each)) and timeout_s(policy)]
        memory.evicted = later if found is None else []
        return found or JobAction(), wait_s

    # Deletion of pods.

    async def _kill_pods(
        self, job: JobView, memory: _JobMemory, pods: list[PodFields], action: JobAction, step: JobTransition
    ) -> None:
        targets = _pods_to_kill(job, pods, action, step)
        faults = await run_concurrently(
            [pod for pod in targets if not pod.terminating and pod.uid not in memory.deleted],
            lambda pod: self._delete_out_of_sync(memory, pod),
        )
        if faults:
            self._report_failure(job, "FailedDeletePod", "deleting", faults)
        if not step.targeted:
            await self._resources.delete_unneeded(job)
        counts = PodPhaseCounts.of(self.pods.owned_by(job.uid), leaving=frozenset(memory.deleted))
        status = dict(job.item.status)
        if step.target_phase and not step.targeted:
            status["version"] = job.version + 1
        if step.retry:
            status["retryCount"] = job.retries + 1
        if not step.targeted:
            status.pop("controlledResources", None)
        await self._update_status(job, status, counts, step)

    async def _delete_out_of_sync(self, memory: _JobMemory, pod: PodFields) -> None:
        """Mark a pod as out of sync, so that its events are ignored, and delete it."""
        try:
            if not is_out_of_sync(pod):
                patch = {"metadata": {"uid": pod.uid, "annotations": {OUT_OF_SYNC: "true"}}}
                await self.client.patch(PODS, patch, namespace=pod.namespace, name=pod.name, kind=STRATEGIC_PATCH)
            await self.client.delete(PODS, namespace=pod.namespace, name=pod.name, uid=pod.uid)
        except NotFound:
            return
        if self.pods.get(pod.namespace, pod.name) is not None:
            memory.deleted.add(pod.uid)

    # Creation of pods.

    async def _sync_pods(self, job: JobView, memory: _JobMemory, pods: list[PodFields], step: JobTransition) -> None:
        status = await self._resources.create_missing(job)
        group = self.groups.get(job.namespace, job.group_name)
        phase = (group.status.get("phase") or "") if group is not None else ""
        if group is not None:
            self._report_pending_group(job, memory, group)
        created: dict[str, int] = {}
        if phase not in ("", PENDING):
            created = await self._create_missing_pods(job, pods)
            await self._delete_extra_pods(job, memory, pods)
        counts = PodPhaseCounts.of(pods, leaving=frozenset(memory.deleted))
        for task, count in created.items():
            counts.pending += count
            of_task = counts.tasks.setdefault(task, {})
            of_task["Pending"] = of_task.get("Pending", 0) + count
        await self._update_status(job, status, counts, step)

    async def _create_missing_pods(self, job: JobView, pods: list[PodFields]) -> dict[str, int]:
        """Create missing pods. Returns their number by task."""
        existing = {pod.name for pod in pods}
        owner = owner_reference(VC_JOBS, job.item)
        missing: list[tuple[str, Tree]] = []
        for task in job.tasks:
            if _dependencies_met(job, task, pods):
                indices = (i for i in range(replicas(task)) if pod_name(job.name, task["name"], i) not in existing)
                missing += [(task["name"], job_pod(job, task, index, owner)) for index in indices]
        created: dict[str, int] = {}

        async def create(item: tuple[str, Tree]) -> None:
            task, body = item
            try:
                await self.client.create(PODS, body, namespace=job.namespace)
            except AlreadyExists:
                if self._name_conflicts(job, body["metadata"]["name"]):
                    raise
                return  # the watch has not delivered it yet
            created[task] = created.get(task, 0) + 1

        faults = await run_concurrently(missing, create)
        if faults:
            self._report_failure(job, "FailedCreatePod", "creating", faults)
        return created

    def _name_conflicts(self, job: JobView, name: str) -> bool:
        """Whether a pod of another owner uses the name and is not being deleted."""
        pod = self.pods.get(job.namespace, name)
        if pod is None or pod.terminating:
            return False
        owner = pod.metadata.controller
        return owner is None or owner.uid != job.uid

    async def _delete_extra_pods(self, job: JobView, memory: _JobMemory, pods: list[PodFields]) -> None:
        """Delete pods that no task needs, and those that are out of sync."""
        wanted = {pod_name(job.name, task["name"], i) for task in job.tasks for i in range(replicas(task))}
        extra = [pod for pod in pods if pod.name not in wanted or is_out_of_sync(pod)]
        extra = [pod for pod in extra if not pod.terminating and pod.uid not in memory.deleted]
        faults = await run_concurrently(extra, lambda pod: self._delete_out_of_sync(memory, pod))
        if faults:
            self._report_failure(job, "FailedDeletePod", "deleting", faults)

    # Status and events.

    async def _update_status(self, job: JobView, status: Tree, counts: PodPhaseCounts, step: JobTransition) -> None:
        now = self.clock.now()
        phase = step.phase(job, counts, int(status.get("retryCount") or 0))
        unchanged = {key: status[key] for key in ("version", "retryCount", "controlledResources") if status.get(key)}
        state = dict(status.get("state") or {})
        conditions = list(status.get("conditions") or ())
        if phase != state.get("phase"):
            state = {"phase": phase, "lastTransitionTime": format_time(now)}
            conditions.append({"status": phase, "lastTransitionTime": state["lastTransitionTime"]})
        new: Tree = {
            **unchanged,
            **counts.as_status(),
            "minAvailable": job.min_available,
            "state": state,
            "conditions": conditions,
        }
        duration = job.item.status.get("runningDuration")
        created = job.item.metadata.creation_timestamp
        if phase in FINISHED and job.phase not in FINISHED and created is not None:
            duration = str(GoDuration.of_seconds(max(0, int((now - created).total_seconds()))))
        if duration:
            new["runningDuration"] = duration
        await self.replace_status(VC_JOBS, job.item, new)

    def _report_failure(self, job: JobView, reason: str, verb: str, faults: list[ApiError]) -> None:
        """Record what the server refused, and raise for a retry."""
        messages = "; ".join(dict.fromkeys(fault.details for fault in faults))
        self._record_event_once(job, self._memory(job.uid), reason, f"Error {verb} pods: {messages}", warning=True)
        raise faults[0]

    def _report_pending_group(self, job: JobView, memory: _JobMemory, group: UntypedObject) -> None:
        true = [each for each in group.status.get("conditions") or () if each.get("status") == "True"]
        last = max(true, key=lambda each: each.get("lastTransitionTime") or "", default=None)
        if last is not None and last.get("type") != "Scheduled":
            kind = str(last.get("type")).lower()
            note = f"PodGroup {job.namespace}:{job.name} {kind}, reason: {last.get('message', '')}"
            self._record_event_once(job, memory, "PodGroupPending", note, warning=True)

    def _record_event_once(
        self, job: JobView, memory: _JobMemory, reason: str, note: str, *, warning: bool = False, about: int = 0
    ) -> None:
        event_key = f"{reason} {note} {about} {job.retries}"
        if event_key not in memory.recorded:
            memory.recorded.add(event_key)
            self.record_event(VC_JOBS, job.item, reason, note, warning=warning)


def _status_key(job: JobView) -> tuple[str, int, int]:
    """Part of the status that every completed action changes."""
    return job.phase, job.version, job.retries


def _pods_to_kill(job: JobView, pods: list[PodFields], action: JobAction, step: JobTransition) -> list[PodFields]:
    if step.targeted:
        if action.name == RESTART_POD:
            return [pod for pod in pods if pod.name == action.pod]
        task_pods = [pod for pod in pods if task_of(pod) == action.task]
        if action.name == RESTART_PARTITION:
            return [pod for pod in task_pods if partition_of(pod) == action.partition]
        assert action.name == RESTART_TASK
        return task_pods
    last = job.retries >= job.max_retry - 1
    if step.keep_finished_pods or last:
        return [pod for pod in pods if pod.status.phase not in _FINISHED_PHASES]
    return pods


def _dependencies_met(job: JobView, task: Tree, pods: list[PodFields]) -> bool:
    """Whether the tasks that this task depends on have started."""
    depends = task.get("dependsOn") or {}
    names: list[str] = depends.get("name") or []
    started = [_task_started(job, name, pods) for name in names]
    if len(names) > 1 and depends.get("iteration") == "any":
        return any(started)
    return all(started)


def _task_started(job: JobView, name: str, pods: list[PodFields]) -> bool:
    task = job.task(name)
    if task is None:
        return True
    started_count = 0
    for pod in pods:
        if task_of(pod) == name and not pod.terminating:
            started_count += pod.status.phase == "Succeeded" or (pod.status.phase == "Running" and pod.ready)
    return started_count >= min_available(task)
