"""The tasks of a job that are left to place: its sub-jobs in order, and the tasks of each."""

from __future__ import annotations

from collections.abc import Callable

from bayplan.batch.model.jobs import Job
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.priority_queue import PriorityQueue
from bayplan.batch.session.session import Session


class PendingTasks:
    def __init__(self, sub_jobs: PriorityQueue[SubJob], tasks: dict[str, PriorityQueue[Task]]) -> None:
        self.sub_jobs = sub_jobs
        self.tasks = tasks  # by sub-job

    def __bool__(self) -> bool:
        return bool(self.sub_jobs)

    def clone(self) -> PendingTasks:
        return PendingTasks(self.sub_jobs.clone(), {uid: tasks.clone() for uid, tasks in self.tasks.items()})

    def replace_with(self, other: PendingTasks) -> None:
        """Take over the state of a trial."""
        self.sub_jobs, self.tasks = other.sub_jobs, other.tasks


def collect_pending_tasks(session: Session, job: Job) -> PendingTasks:
    """Sub-jobs that the job cannot start without come first. Ready sub-jobs add their remaining tasks."""
    order = _required_sub_jobs_first(session, job) if job.has_sub_job_policy else session.sub_job_order
    sub_jobs: PriorityQueue[SubJob] = PriorityQueue(order)
    tasks: dict[str, PriorityQueue[Task]] = {}
    for uid, sub_job in job.sub_jobs.items():
        waiting = [task for task in sub_job.pending.values() if _is_allocatable_task(task)]
        if waiting:
            tasks[uid] = PriorityQueue(session.task_order, waiting)
            sub_jobs.push(sub_job)
    return PendingTasks(sub_jobs, tasks)


def _is_allocatable_task(task: Task) -> bool:
    """Tasks with a foreign scheduling gate wait, and tasks without requests are backfilled."""
    return not (task.gated and not task.has_only_queue_gate) and not task.best_effort


def _required_sub_jobs_first(session: Session, job: Job) -> Callable[[SubJob, SubJob], bool]:
    ready: dict[str, int] = {}
    unready: PriorityQueue[SubJob] = PriorityQueue(session.sub_job_order)
    for sub_job in job.sub_jobs.values():
        if session.sub_job_ready(job, sub_job):
            ready[sub_job.gid] = ready.get(sub_job.gid, 0) + 1
        else:
            unready.push(sub_job)
    required: set[str] = set()
    while unready:
        sub_job = unready.pop()
        if ready.get(sub_job.gid, 0) < job.min_sub_jobs.get(sub_job.gid, 0):
            required.add(sub_job.uid)
            ready[sub_job.gid] = ready.get(sub_job.gid, 0) + 1

    def order(left: SubJob, right: SubJob) -> bool:
        if (left.uid in required) != (right.uid in required):
            return left.uid in required
        return session.sub_job_order(left, right)

    return order
