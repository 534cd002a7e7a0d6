"""Base of `gangpreempt` and `gangreclaim`: evicts bundles of tasks for a starving gang.

The domains (hypernodes) are tried one after another, widest first. Within a domain, bundles are added until the need
is covered in sum; then a dry run decides. All operations for a job are one statement, which is committed if the job is
pipelined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from bayplan.batch.actions.allocate import PREDICATE_ERROR_CACHE
from bayplan.batch.actions.gang_bundles import Bundle, BundleKind, make_bundles, sort_bundles
from bayplan.batch.actions.gang_dry_run import GangDryRun
from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.hypernodes import TOP_HYPERNODE, HyperNode
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import Nodes
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import PREEMPTABLE, Task
from bayplan.batch.session.priority_queue import PriorityQueue
from bayplan.batch.session.registration import EvictionContext, EvictionKind, SearchPurpose
from bayplan.batch.session.session import Session
from bayplan.batch.session.statement import Statement
from bayplan.objects.resources import CPU, MEMORY

MAX_DOMAINS = "maxDomains"
ALLOW_WHOLE_BUNDLE = "allowWholeBundle"
_DEFAULT_MAX_DOMAINS = 8


class GangEviction:
    """An action that evicts for whole gangs. A subclass defines which tasks are victims, and their order."""

    name: str
    kind: EvictionKind
    victim_statuses: tuple[TaskStatus, ...]
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument(MAX_DOMAINS, int, _DEFAULT_MAX_DOMAINS),
        Argument(ALLOW_WHOLE_BUNDLE, bool, True),
    )

    def __init__(self) -> None:
        self._max_domains = _DEFAULT_MAX_DOMAINS  # from the configuration; a key that is removed keeps its last value
        self._allows_whole_bundles = True

    def initialize(self) -> None:
        """Do nothing."""

    def uninitialize(self) -> None:
        """Do nothing."""

    # Policy of subclasses

    def can_serve_queue(self, session: Session, queue: Queue) -> bool:
        raise NotImplementedError

    def can_evict_for(self, session: Session, queue: Queue, tasks: Sequence[Task]) -> bool:
        raise NotImplementedError

    def is_victim(self, session: Session, job: Job, other: Job) -> bool:
        """Whether tasks of the other job may be evicted for this job."""
        raise NotImplementedError

    def compare_bundles(self, session: Session, job: Job, left: Bundle, right: Bundle) -> int:
        """Eviction order of two bundles: negative if the left goes first, 0 if there is no preference."""
        raise NotImplementedError

    # Execution

    def execute(self, session: Session) -> Iterator[None]:
        self._read_arguments(session)
        queues, starving = _starving_jobs_by_queue(session)
        while queues:
            queue = queues.pop()
            if not self.can_serve_queue(session, queue):
                continue
            jobs = starving.get(queue.uid, ())
            while jobs:
                self._preempt_for_job(session, queue, jobs.pop())
                yield

    def _read_arguments(self, session: Session) -> None:
        arguments = session.action_arguments(self.name)
        most = arguments.get_int(MAX_DOMAINS, self._max_domains)
        self._max_domains = most if most > 0 else _DEFAULT_MAX_DOMAINS
        self._allows_whole_bundles = arguments.get_bool(ALLOW_WHOLE_BUNDLE, self._allows_whole_bundles)
        self._caches_errors = session.action_arguments("allocate").get_bool(PREDICATE_ERROR_CACHE, True)

    def _preempt_for_job(self, session: Session, queue: Queue, job: Job) -> None:
        with session.statement() as statement:
            places = self._make_room(session, statement, queue, job)
            if session.job_pipelined(job) and statement.commit():
                for uid, place in places.items():
                    job.sub_jobs[uid].nominated_hyper_node = place

    def _make_room(self, session: Session, statement: Statement, queue: Queue, job: Job) -> dict[str, str]:
        """Add the operations that place the job to the statement. Return the hypernode of each placed sub-job."""
        dry_run = GangDryRun(session, queue, job, reason=self.name, caches_errors=self._caches_errors)
        tasks = dry_run.tasks()
        if not tasks or not self.can_evict_for(session, queue, tasks):
            return {}
        need = Amounts()
        for task in tasks:
            need.add(task.init_resreq)
        for domain in self._domains(session, job):
            bundles = self._bundles(session, job, domain, need)
            idle = _future_idle(session.hyper_nodes.nodes_of(domain.name), need) if bundles else Amounts()
            for victims in _victim_prefixes(bundles, idle, need):
                plan = dry_run.try_domain(domain, victims)
                if plan is not None and statement.recover_operations(plan.operations):
                    return plan.hypernodes
        return {}

    def _domains(self, session: Session, job: Job) -> list[HyperNode]:
        top = session.hyper_nodes.top
        found: dict[str, HyperNode] = {}
        for gradient in session.hyper_node_gradient_for_job(job, top, SearchPurpose.EVICT):
            for place in gradient:
                found.setdefault(place.name, place)
        if not found and not job.contains_hard_topology():
            return [top]
        return list(found.values())[: self._max_domains]

    def _bundles(self, session: Session, job: Job, domain: HyperNode, need: Amounts) -> list[Bundle]:
        """The bundles that may be evicted in a domain, in eviction order."""

        def prefer(left: Bundle, right: Bundle) -> int:
            return self.compare_bundles(session, job, left, right)

        inside = None if domain.name == TOP_HYPERNODE else domain.nodes
        bundles = [
            bundle
            for other in session.jobs.values()
            if other is not job and _is_preemptable_job(other) and self.is_victim(session, job, other)
            for bundle in make_bundles(other, list(self._candidates(other, inside)))
        ]
        ordered = sort_bundles(bundles, need, prefer)
        candidates = [task for bundle in ordered for task in bundle.tasks]
        context = EvictionContext(self.kind, job, hyper_node=domain.name)
        allowed = {task.uid for task in session.unified_evictable(context, candidates)} if candidates else set[str]()
        restricted = [remaining for bundle in ordered if (remaining := bundle.restricted_to(allowed)) is not None]
        if any(remaining is not bundle for remaining, bundle in zip(restricted, ordered, strict=False)):
            restricted = sort_bundles(restricted, need, prefer)
        return [each for each in restricted if self._allows_whole_bundles or each.kind is BundleKind.SAFE]

    def _candidates(self, job: Job, inside: set[str] | None) -> Iterable[Task]:
        for task in job.with_status(*self.victim_statuses):
            if task.preemptable and task.counted_status is not None and (inside is None or task.node_name in inside):
                yield task


def _starving_jobs_by_queue(session: Session) -> tuple[PriorityQueue[Queue], dict[str, PriorityQueue[Job]]]:
    queues: PriorityQueue[Queue] = PriorityQueue(session.queue_order)
    pushed: set[str] = set()
    starving: dict[str, PriorityQueue[Job]] = {}
    for job in session.jobs.values():
        queue = session.queues.get(job.queue)
        if job.is_pending() or session.job_invalid(job) is not None or queue is None:
            continue
        if queue.uid not in pushed:
            pushed.add(queue.uid)
            queues.push(queue)
        if session.job_starving(job):
            if queue.uid not in starving:
                starving[queue.uid] = PriorityQueue(session.job_order)
            starving[queue.uid].push(job)
    return queues, starving


def _is_preemptable_job(job: Job) -> bool:
    """A group without the `preemptable` key may be evicted. Task-level eviction has another default."""
    meta = job.pod_group.metadata
    return job.preemptable or not (PREEMPTABLE in meta.annotations or PREEMPTABLE in meta.labels)


def _victim_prefixes(bundles: Sequence[Bundle], idle: Amounts, need: Amounts) -> Iterator[list[Task]]:
    """Growing lists of victims, from the first one whose freed amounts cover the need in sum."""
    victims: list[Task] = []
    for bundle in bundles:
        victims = victims + bundle.tasks
        idle.add(bundle.freed_amounts)
        if need.less_equal(idle):
            yield victims


def _future_idle(nodes: Nodes, need: Amounts) -> Amounts:
    """Idle and releasing amounts of these nodes, for the needed resources."""

    def sum_resource(resource: str) -> float:
        return float(nodes.idle(resource).sum() + nodes.releasing(resource).sum())

    return Amounts(sum_resource(CPU), sum_resource(MEMORY), {name: sum_resource(name) for name in need.scalars or ()})
