"""State of the batch engine between sessions: jobs, tasks, queues and node accounts.

Pods on nodes are read from the shared cache, by changed rows. Pending and finished pods arrive by `update_pod`. Groups,
queues and other objects are read from the cache's catalog. A session opens after `refresh`, which costs in proportion
to the changes, plus a little per job. A session changes task statuses; `restore_after_session` resets them to the state
of the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from bayplan.batch.diagnostics.invalid_amounts import queue_with_valid_amounts, with_valid_amounts
from bayplan.batch.evaluation.shard_filter import NodePredicateFn
from bayplan.batch.model import hypernodes
from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.hypernodes import HyperNode
from bayplan.batch.model.image_counts import ImageNodeCounts
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.node_accounts import NodeAccountChanges, NodeAccounts, ResourceDimensions, offered_amounts
from bayplan.batch.model.pod_templates import PodTemplateIndex
from bayplan.batch.model.queues import Queue, find_queue_cycles
from bayplan.batch.model.snapshot_changes import LiveSnapshot
from bayplan.batch.model.statuses import TaskStatus, status_of
from bayplan.batch.model.tasks import Task
from bayplan.batch.model.volume_counts import VolumeCounts
from bayplan.cache import Cache, PodSwap
from bayplan.framework.runtime.nominator import Nominator, TerminatingVictim
from bayplan.objects.core import Node as NodeObject
from bayplan.objects.core import Pod
from bayplan.objects.ports import ports_conflict
from bayplan.objects.volcano import types as volcano
from bayplan.objects.workloads import PriorityClass
from bayplan.snapshot import PodInfo, Snapshot

if TYPE_CHECKING:
    from bayplan.batch.session.session import Session

DEFAULT_SCHEDULER = "volcano"

_CHANGES_PER_STEP = 256
_ROWS_PER_STEP = 128
_PLACED_STATUSES = (TaskStatus.ALLOCATED, TaskStatus.PIPELINED, TaskStatus.BINDING)


class BatchClusterState:
    """The cluster state on which sessions open."""

    def __init__(
        self,
        cache: Cache,
        *,
        scheduler_names: Collection[str] = (DEFAULT_SCHEDULER,),
        default_queue: str = volcano.DEFAULT_QUEUE,
        nominations: Nominator | None = None,
        ignored_provisioners: Iterable[str] = (),
    ) -> None:
        self.cache = cache
        self.snapshot: Snapshot = cache.snapshot()
        self.node_accounts = NodeAccounts(ResourceDimensions())
        self.jobs: dict[str, Job] = {}
        self.queues: dict[str, Queue] = {}
        # by message: invalid amounts and cycles, with the queue names
        self.queue_faults: dict[str, tuple[str, ...]] = {}
        self.group_faults: dict[str, list[str]] = {}  # by group: invalid amounts
        # nodes of this scheduler's shard; None: all nodes
        self.manages: NodePredicateFn | None = None
        self.hypernodes: dict[str, HyperNode] = {}
        self.topology_faults: hypernodes.HyperNodeFaults = {}  # why the hypernode tree is not ready
        self.hypernode_faults: hypernodes.HyperNodeFaults = {}  # invalid members
        self.missing_members: hypernodes.HyperNodeFaults = {}  # members that do not exist
        self._scheduler_names = frozenset(scheduler_names)
        self._default_queue = default_queue
        self._nominations = nominations or Nominator()
        self._terminating: dict[str, TerminatingVictim] = {}  # by uid: terminating victims at the last refresh
        self._refused: frozenset[str] = frozenset()  # uids of pods whose deletion failed, at the last refresh
        self._groups: dict[str, volcano.PodGroup] = {}  # as in the catalog
        self._tasks: dict[str, Task] = {}  # tasks of pod groups, by uid
        self._foreign_tasks: dict[str, Task] = {}  # pods on nodes without a pod group
        self._evicted: dict[str, Pod] = {}  # by uid: the pod version that was evicted
        self.is_shared = False  # another engine changed the cache after the session opened
        # the current cache during a session; created when another engine uses the cache
        self._live: LiveSnapshot | None = None
        self._live_at = (-1, -1)
        self.nominated_pods: list[tuple[str, PodInfo]] = []
        """Node names and the pods nominated there, as of the last refresh."""
        self._recomputed_nodes: set[str] = set()  # nodes whose accounts are newer than the snapshot
        self._seen_generation = (-1, -1)
        self._stale_rows: set[int] = set()  # rows of the snapshot changed by sessions
        self._stale_slots: set[int] = set()
        self._replaced_uids: set[str] = set()  # uids of tasks with a new object or status
        self._node_cursor = -1
        self._revisions: dict[type, int] = {}
        self._known_nodes: dict[str, NodeObject] = {}  # nodes by name, at the last refresh
        self._offered_by_node: dict[str, Amounts] = {}
        self._images = ImageNodeCounts()
        self._volumes = VolumeCounts(cache.catalog, ignored_provisioners)
        self.templates = PodTemplateIndex(cache.vocabulary)
        self._layout = -1
        self._renewed = -1

    # Pods

    def update_pod(self, pod: Pod) -> None:
        """Add a pod, or a new version of it, that the API server reports."""
        if not pod.spec.node_name and pod.scheduler_name not in self._scheduler_names:
            self.remove_pod(pod)
            return
        self._drop(pod.uid)
        task = self._volumes.with_volume_requests(Task(pod))
        if not task.job:
            return
        if pod.uid in self._nominations.refused:
            task.preemptable = False
        self._reset_status(task)
        self.node_accounts.demand(task)  # computed here, so that opening a session does not pay for it
        self._tasks[task.uid] = task
        self._job(task.job).add_task(task)

    def remove_pod(self, pod: Pod) -> None:
        self._drop(pod.uid)
        self._evicted.pop(pod.uid, None)

    def _drop(self, uid: str) -> None:
        self._replaced_uids.add(uid)
        task = self._tasks.pop(uid, None)
        if task is None:
            return
        job = self.jobs[task.job]
        job.remove_task(task)
        if not job.tasks and not job.has_group:
            self._forget_job(job)

    def task(self, uid: str) -> Task | None:
        return self._tasks.get(uid)

    # Queries

    def offered_amounts(self, node: NodeObject) -> Amounts:
        """The amounts that sessions use for the node. Shared."""
        return (
            self._offered_by_node[node.name]
            if self._known_nodes.get(node.name) is node
            else self._offered_amounts(node)
        )

    def as_task(self, pod: Pod) -> Task:
        """The pod as a task. It is not added to any account."""
        return self._volumes.with_volume_requests_uncached(Task(pod))

    def task_of_pod(self, info: PodInfo) -> Task:
        known = self._tasks.get(info.uid) or self._foreign_tasks.get(info.uid)
        return known if known is not None and known.pod is info.pod else self.as_task(info.pod)

    # Session decisions

    def record_eviction(self, task: Task) -> None:
        """Mark an evicted pod as releasing until the API server reports a new version."""
        self._evicted[task.uid] = task.pod

    def cancel_eviction(self, uid: str) -> None:
        self._evicted.pop(uid, None)

    def restore_after_session(self, session: Session) -> Iterator[None]:
        """Reset the tasks that a session moved to the state of the cluster, some per step."""
        view = session.snapshot_changes
        for number, _ in enumerate(view.restore()):
            if not number % _CHANGES_PER_STEP:
                yield
        self._stale_rows |= view.stale_rows
        self._stale_slots |= view.stale_slots
        index, tasks_by_row = self.snapshot.nodes.index, self.node_accounts.tasks
        for number, (task, counted_as) in enumerate(session.moved_tasks.values()):
            if not number % _CHANGES_PER_STEP:
                yield
            row = index.get(task.node_name)
            if row is not None:
                tasks_by_row[row].pop(task.uid, None)
            before = task.status
            self._reset_status(task)
            after, task.status = task.status, before
            job = self.jobs.get(task.job)
            if job is not None and job.tasks.get(task.uid) is task:
                job.set_status(task, after)
            task.status = after
            row = index.get(task.node_name)
            if counted_as is not None and row is not None:  # in these accounts; sessions use a copy
                tasks_by_row[row][task.uid] = task
                task.counted_status = counted_as
                self._replaced_uids.add(task.uid)

    def _reset_status(self, task: Task) -> None:
        assumed = self.cache.pod(task.uid) if self.cache.is_assumed(task.uid) else None
        if assumed is not None and not task.pod.spec.node_name:
            task.status, task.node_name = TaskStatus.BINDING, assumed.spec.node_name
        else:
            task.status, task.node_name = status_of(task.pod), task.pod.spec.node_name
        if self._evicted.get(task.uid) is task.pod or self._nominations.is_victim(task.uid):
            task.status = TaskStatus.RELEASING
        task.counted_status = None
        task.eviction_occurred = False
        task.job_allocated_hyper_node = ""
        task.last_transaction = None

    def _job(self, uid: str) -> Job:
        job = self.jobs.get(uid)
        if job is None:
            job = self.jobs[uid] = Job(uid)
        return job

    # Changes of the cache by other engines

    def mark_cache_seen(self) -> None:
        """Mark the current cache generation as known: the session's own change, or just refreshed."""
        self._seen_generation = self.cache.generation

    def apply_cache_changes(self) -> bool:
        """Apply cache changes since the last look, if another engine uses the cache. False: nothing to apply.

        Only the accounts of the cluster state change; the open session keeps its own copy.
        """
        now = self.cache.generation
        self.is_shared |= now != self._seen_generation
        if not self.is_shared or now == self._live_at:
            return False
        if self._live is None:
            self._live = LiveSnapshot(self.cache.snapshot())
            rows: Iterable[int] = range(self._live.snapshot.nodes.count)
        else:
            rows = self._live.refresh(self.cache)
        columns = self._live.snapshot.nodes
        for live in rows:
            row = self.snapshot.nodes.index.get(columns.names[live]) if live < columns.count else None
            if row is not None:
                self.node_accounts.recompute_row(row, [self._task_of(info) for info in columns.pods[live]])
                self._recomputed_nodes.add(columns.names[live])
        self._live_at = now
        self.mark_cache_seen()
        return True

    @property
    def live(self) -> LiveSnapshot | None:
        """The cluster at the last `apply_cache_changes`, if another engine changes it; else None."""
        return self._live if self.is_shared else None

    def has_node(self, node_name: str) -> bool:
        return self.cache.node(node_name) is not None

    def can_still_place(self, task: Task) -> bool:
        """Whether the task's pod is still unplaced, and its host ports on the node are free."""
        if self.cache.pod(task.uid) is not None:
            return False
        if self._live is None or not task.info.host_ports:
            return True
        columns = self._live.snapshot.nodes
        row = columns.index.get(task.node_name)
        return row is None or not ports_conflict(task.info.host_ports, columns.ports[row])

    def future_idle_of(self, node_name: str) -> Amounts:
        """What a node has left after all releasing tasks are gone and the session's tasks are placed.

        Negative if another engine used resources that the session counts on.
        """
        row = self.snapshot.nodes.index[node_name]
        remaining = self.node_accounts.allocatables[row].clone()
        columns = self._live.snapshot.nodes if self._live is not None else None
        live = columns.index.get(node_name) if columns is not None else None
        pods = columns.pods[live] if columns is not None and live is not None else ()
        tasks = {info.uid: self._task_of(info) for info in pods}
        for task in (
            tasks
            | {uid: task for uid, task in self.node_accounts.tasks[row].items() if task.status in _PLACED_STATUSES}
        ).values():
            if task.status is not TaskStatus.RELEASING:
                remaining.sub_unchecked(task.resreq)
        return remaining

    # Refresh

    def refresh(self) -> None:
        """Update everything to the current state of the cache."""
        for _ in self.refresh_steps():
            pass

    def refresh_steps(self) -> Iterator[None]:
        """`refresh` in steps. Later cache changes are not included: commits detect them."""
        changes: list[PodSwap] = []
        # if this stops in the middle, the next refresh recounts every node
        cursor, self._node_cursor = self._node_cursor, -1
        rows, slots, images = self._stale_rows, self._stale_slots, self._images.image_states
        if (
            yield from self.cache.refresh_in_slices(
                self.snapshot, rows=rows, slots=slots, changes=changes, images=images, at_once=_CHANGES_PER_STEP
            )
        ):
            rows, slots = set(), set()
        self.cache.refresh(self.snapshot, rows=rows, slots=slots, changes=changes, images=images)
        self._stale_rows.clear()
        self._stale_slots.clear()
        self._refresh_terminating()
        self.is_shared = False
        self.mark_cache_seen()
        yield
        self._refresh_volumes()
        yield from self._refresh_rows(changes, cursor)
        regrouped = self._changed(volcano.PodGroup)
        if regrouped:
            self._refresh_groups()
        if self._changed(volcano.Queue):
            table = self.cache.catalog.table(volcano.Queue)
            read = [queue_with_valid_amounts(queue) for queue in table.values()]
            self.queues = {queue.name: Queue(queue) for queue, _ in read}
            unreadable = {fault: (queue.name,) for queue, faults in read for fault in faults}
            self.queue_faults = find_queue_cycles(self.queues) | unreadable
        if self._changed(PriorityClass) or regrouped:
            self._refresh_priorities()
        yield
        self._refresh_hypernodes()

    def _refresh_terminating(self) -> None:
        """Mark the victims of other engines as releasing, even before the API server reports it.

        Nominated pods are read at the same moment as terminating victims. If they were read later, a nomination could
        count without its releasing victim, and a session would evict once more.
        """
        nominations = self._nominations
        self.nominated_pods = [(name, info) for name in nominations.nodes() for info in nominations.on_node(name)]
        now = nominations.terminating_victims
        for uid in now.keys() ^ self._terminating.keys():
            task = self._tasks.get(uid)
            if task is not None:
                self.update_pod(task.pod)
            self._foreign_tasks.pop(uid, None)
            self._recomputed_nodes.add((now.get(uid) or self._terminating[uid]).node_name)
        self._terminating = dict(now)
        refused = nominations.refused
        for uid in refused.keys() ^ self._refused:
            task = self._tasks.get(uid)
            if task is not None:
                self.update_pod(task.pod)
                self._recomputed_nodes.add(task.node_name)
        self._refused = frozenset(refused)

    def _refresh_volumes(self) -> None:
        for uid in self._volumes.newly_resolvable():
            task, foreign = self._tasks.get(uid), self._foreign_tasks.pop(uid, None)
            if task is not None:
                self.update_pod(task.pod)
            elif foreign is not None:
                self._recomputed_nodes.add(foreign.node_name)
        for name in self._volumes.changed_nodes():
            self._known_nodes.pop(name, None)
            self._recomputed_nodes.add(name)

    def _changed(self, kind: type) -> bool:
        revision = self.cache.catalog.revision(kind)
        if self._revisions.get(kind) == revision:
            return False
        self._revisions[kind] = revision
        return True

    def _refresh_rows(self, changes: list[PodSwap], cursor: int) -> Iterator[None]:
        """Update the accounts to the snapshot: by pod, or by row for nodes that changed since `cursor`."""
        snapshot, columns = self.snapshot, self.snapshot.nodes
        renewed = snapshot.renewed.since(cursor) if cursor >= 0 else None
        if renewed is None or snapshot.layout != self._layout:
            self.node_accounts.resize(columns.count)
            renewed = set(range(columns.count))
        renewed |= {columns.index[name] for name in self._recomputed_nodes if name in columns.index}
        self._recomputed_nodes.clear()
        for number, row in enumerate(sorted(renewed)):
            if not number % _ROWS_PER_STEP:
                yield
            self._read_node(columns.nodes[row])
        if len(self._known_nodes) > columns.count:
            self._forget_nodes(columns.index)
        rows: dict[int, tuple[Amounts, list[Task]]] = {}
        for number, row in enumerate(renewed):
            if not number % _ROWS_PER_STEP:
                yield
            name = columns.names[row]
            columns.set_images(row, self._images.image_states(name))
            rows[row] = self._offered_by_node[name], [self._task_of(info) for info in columns.pods[row]]
        self.node_accounts.set_rows(rows)
        with self.node_accounts.batched_changes() as sums:
            index, tasks_by_row, tasks = columns.index, self.node_accounts.tasks, self._tasks
            for number, (before, after) in enumerate(changes):
                if not number % _CHANGES_PER_STEP:
                    yield
                if before is not None and after is not None and before.uid == after.uid:  # the most frequent change
                    task, row_of_pod = tasks.get(after.uid), index.get(after.node_name)
                    if (
                        task is not None
                        and row_of_pod is not None
                        and self._replace_pod_version(row_of_pod, tasks_by_row[row_of_pod].get(task.uid), task)
                    ):
                        continue
                self._apply_pod_change(before, after, sums)
        for number, uid in enumerate(self._replaced_uids):
            if not number % _CHANGES_PER_STEP:
                yield
            self._recount(uid)
        self._replaced_uids.clear()
        self._node_cursor = snapshot.renewed.end

    def _read_node(self, node: NodeObject) -> None:
        if self._known_nodes.get(node.name) is not node:
            self._known_nodes[node.name] = node
            self._offered_by_node[node.name] = self._offered_amounts(node)
            self._images.update_node(node)

    def _offered_amounts(self, node: NodeObject) -> Amounts:
        offered = offered_amounts(node) if self.manages is None or self.manages(node) else Amounts()
        return self._volumes.with_volume_limits(node.name, offered)

    def _apply_pod_change(self, before: PodInfo | None, after: PodInfo | None, sums: NodeAccountChanges) -> None:
        """Apply one added, removed or changed pod. Repeated additions and removals have no effect."""
        index, tasks_by_row = self.snapshot.nodes.index, self.node_accounts.tasks
        if before is not None and (row := index.get(before.node_name)) is not None:
            counted = tasks_by_row[row].pop(before.uid, None)
            if counted is not None:
                sums.remove_task(row, counted)
            if after is None or after.uid != before.uid:
                self._foreign_tasks.pop(before.uid, None)
        if after is not None and (row := index.get(after.node_name)) is not None:
            task = self._task_of(after)
            if task.counted_status is None:
                tasks_by_row[row][task.uid] = task
                sums.add_task(row, task)
                self._replaced_uids.discard(task.uid)

    def _replace_pod_version(self, row: int, counted: Task | None, task: Task) -> bool:
        """Replace the counted version of a pod without changing an account, if the two versions count equally."""
        if counted is None or task.counted_status is not None or counted.counted_status is not task.status:
            return False
        if counted.demand is None or counted.demand is not task.demand:
            return False  # equal demands are one object
        task.counted_status, counted.counted_status = counted.counted_status, None
        self.node_accounts.tasks[row][task.uid] = task
        self._replaced_uids.discard(task.uid)
        return True

    def _recount(self, uid: str) -> None:
        """Count a task again whose object or status differs from the one counted on its node."""
        task, accounts, index = self._tasks.get(uid), self.node_accounts, self.snapshot.nodes.index
        row = index.get(task.node_name) if task is not None else None
        if task is None or row is None:
            return
        counted = accounts.tasks[row].get(uid)
        if counted is None or (counted is task and task.counted_status is task.status):
            return
        accounts.remove_task(row, counted)
        accounts.add_task(row, task)

    def _forget_nodes(self, known: Mapping[str, int]) -> None:
        for name in [name for name in self._known_nodes if name not in known]:
            del self._known_nodes[name], self._offered_by_node[name]
            self._images.remove_node(name)

    def _task_of(self, info: PodInfo) -> Task:
        """The task of a pod on a node: a group's task, or a foreign task that only uses resources."""
        return self._tasks.get(info.uid) or self._foreign_task(info)

    def _foreign_task(self, info: PodInfo) -> Task:
        foreign = self._foreign_tasks.get(info.uid)
        if foreign is None or foreign.pod is not info.pod:
            foreign = self._foreign_tasks[info.uid] = self._volumes.with_volume_requests(Task(info.pod, info))
            foreign.job = ""
            # the nominator can have dropped or added it since the refresh
            if info.uid in self._terminating or self._nominations.is_victim(info.uid):
                foreign.status = TaskStatus.RELEASING
        return foreign

    def _refresh_groups(self) -> None:
        groups = self.cache.catalog.table(volcano.PodGroup)
        for uid, group in groups.items():
            job = self._job(uid)
            if self._groups.get(uid) is not group:
                self._set_group(job, group)
        without_group = [job for job in self.jobs.values() if job.has_group and job.uid not in groups]
        for job in without_group:
            job.unset_group()
            del self._groups[job.uid]
            self.group_faults.pop(job.uid, None)
            if not job.tasks:
                self._forget_job(job)

    def _set_group(self, job: Job, group: volcano.PodGroup) -> None:
        self._groups[job.uid] = group
        self.group_faults.pop(job.uid, None)
        valid, faults = with_valid_amounts(group)
        if faults:
            self.group_faults[job.uid] = faults
        job.set_group(valid)
        job.queue = job.queue or self._default_queue

    def _forget_job(self, job: Job) -> None:
        del self.jobs[job.uid]
        self.templates.forget(job.uid)

    def _refresh_priorities(self) -> None:
        classes = self.cache.catalog.table(PriorityClass)
        default = 0
        for each in classes.values():
            if each.global_default:
                default = each.value
        for job in self.jobs.values():
            if job.has_group:
                found = classes.get(job.pod_group.spec.priority_class_name)
                job.priority = found.value if found is not None else default

    def _refresh_hypernodes(self) -> None:
        renewed, layout = self.snapshot.renewed.end, self.snapshot.layout
        if not self._changed(volcano.HyperNode) and (renewed, layout) == (self._renewed, self._layout):
            return
        self._renewed, self._layout = renewed, layout
        objects = list(self.cache.catalog.table(volcano.HyperNode).values())
        self.hypernodes, self.topology_faults = hypernodes.build_hypernode_tree(objects, self.snapshot.nodes.nodes)
        self.hypernode_faults = hypernodes.unreadable_members(objects)
        self.missing_members = hypernodes.missing_members(objects, self.snapshot.nodes.nodes)
