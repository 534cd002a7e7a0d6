"""An undoable series of changes to a session: evict, pipeline, allocate; then commit, or as if nothing had been.

Steps take effect in the session at once, so that the next step sees them; nothing reaches the cluster before `commit`.
A `with` block that ends without a commit discards, newest first. A statement that is neither committed nor discarded
stays in force until the session closes: that is how room is kept for a gang that waits for others to go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

from bayplan.batch.model.nodes import Node
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task, TransactionContext

if TYPE_CHECKING:
    from bayplan.batch.session.session import Session


class OperationKind(Enum):
    EVICT = "evict"
    PIPELINE = "pipeline"
    ALLOCATE = "allocate"


@dataclass(frozen=True, slots=True)
class Operation:
    """One step that was taken."""

    step: OperationKind
    task: Task
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SavedOperation:
    """A step of a trial, with everything that is needed to take it again after the trial was undone."""

    step: OperationKind
    task: Task
    reason: str
    node_name: str
    eviction_occurred: bool
    last_transaction: TransactionContext | None


class Statement:
    """Steps of one session, in order."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.operations: list[Operation] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.discard()

    def __len__(self) -> int:
        return len(self.operations)

    # steps ------------------------------------------------------------------------------------------------------

    def evict(self, task: Task, reason: str) -> None:
        """The task will go; its room counts as being released from now on."""
        self._session.set_task_status(task, TaskStatus.RELEASING)
        self._session.update_task_on_node(task)
        self._session.call_deallocate_handlers(task)
        self._session.verbose_log.log_evicted(task, reason)
        self.operations.append(Operation(OperationKind.EVICT, task, reason))

    def pipeline(self, task: Task, node_name: str, *, eviction_occurred: bool = False) -> bool:
        """Promise the task the room that others are leaving. False: somebody objected, and it was undone."""
        task.eviction_occurred = eviction_occurred
        return self._place(task, node_name, TaskStatus.PIPELINED, OperationKind.PIPELINE)

    def allocate(self, task: Task, node: Node | str) -> bool:
        """Give the task a node with idle room. False: somebody objected, and it was undone."""
        name = node if isinstance(node, str) else node.name
        return self._place(task, name, TaskStatus.ALLOCATED, OperationKind.ALLOCATE)

    def _place(self, task: Task, node_name: str, status: TaskStatus, step: OperationKind) -> bool:
        session = self._session
        placed = session.add_task_to_node(task, node_name, status)
        agreed = session.call_allocate_handlers(task)
        if placed and agreed:
            self.operations.append(Operation(step, task))
            tell = (
                session.verbose_log.log_allocated
                if step is OperationKind.ALLOCATE
                else session.verbose_log.log_pipelined
            )
            tell(task)
            return True
        self.unpipeline(task)
        return False

    def unpipeline(self, task: Task) -> None:
        """Take a promise, or a node, back from a task. The step stays on the list."""
        session = self._session
        session.set_task_status(task, TaskStatus.PENDING)
        session.remove_task_from_node(task)
        session.call_deallocate_handlers(task)
        session.clear_node(task)

    def _un_evict(self, task: Task) -> None:
        # Running whatever it was before: upstream forgets that a victim was only bound.
        self._session.set_task_status(task, TaskStatus.RUNNING)
        self._session.update_task_on_node(task)
        self._session.call_allocate_handlers(task)

    # the end ----------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Undo every step, newest first."""
        operations, self.operations = self.operations, []
        self._session.verbose_log.log_discarded(operations)
        for operation in reversed(operations):
            operation.task.save_last_transaction()
            if operation.step is OperationKind.EVICT:
                self._un_evict(operation.task)
            else:
                self.unpipeline(operation.task)

    def commit(self) -> bool:
        """Carry the steps out. False: nothing of it was carried out, for the cluster has changed meanwhile, or plugins
        have failed to say what the binder must know of so many tasks that the others are no gang without them.

        A single step that is refused is undone; the others stand.
        """
        placed = [each.task for each in self.operations if each.step is not OperationKind.EVICT]
        if not self._session.still_fits(placed):
            self._session.verbose_log.log_commit_conflict(placed)
            self.discard()
            return False
        if not self._drop_tasks(self._session.collect_bind_request_annotations(self._to_bind())):
            self.discard()
            return False
        operations, self.operations = self.operations, []
        for operation in operations:
            task = operation.task
            task.last_transaction = None
            if operation.step is OperationKind.EVICT and not self._session.evict_task(task, operation.reason):
                self._un_evict(task)
            elif operation.step is OperationKind.ALLOCATE and self._session.bind_task(task) is not None:
                self.unpipeline(task)
            elif operation.step is OperationKind.PIPELINE and task.status is TaskStatus.PIPELINED:
                self._session.nominate_task(task)
        return True

    def _to_bind(self) -> list[Task]:
        return [each.task for each in self.operations if each.step is OperationKind.ALLOCATE]

    def _drop_tasks(self, refused: Mapping[str, str]) -> bool:
        """Undo the placing of tasks by uid; whether the jobs that are placed are ready without them."""
        if not refused:
            return True
        tasks = self._to_bind()
        self.operations = [each for each in self.operations if each.task.uid not in refused]
        for task in tasks:
            if task.uid in refused:
                task.last_transaction = None  # why it waits is told by its job
                self.unpipeline(task)
        return all(self._session.job_ready(self._session.jobs[uid]) for uid in {task.job for task in tasks})

    # trials -----------------------------------------------------------------------------------------------------

    def merge(self, *others: Statement) -> None:
        """Take over the steps of others: they are committed or discarded with this one."""
        for other in others:
            self.operations += other.operations
            other.operations = []

    def recover_operations(self, saved: list[SavedOperation]) -> bool:
        """Take the steps of a trial again. False at the first that fails; those before it stand."""
        for each in saved:
            each.task.last_transaction = each.last_transaction
            if each.step is OperationKind.EVICT:
                self.evict(each.task, each.reason)
                continue
            if each.step is OperationKind.PIPELINE:
                done = self.pipeline(each.task, each.node_name, eviction_occurred=each.eviction_occurred)
            else:
                done = self.allocate(each.task, each.node_name)
            if not done:
                return False
        return True


def save_operations(*statements: Statement) -> list[SavedOperation]:
    """The steps of trials, to be taken again once the trials are undone."""
    return [
        SavedOperation(
            each.step,
            each.task,
            each.reason,
            each.task.node_name,
            each.task.eviction_occurred,
            each.task.last_transaction,
        )
        for statement in statements
        for each in statement.operations
    ]
