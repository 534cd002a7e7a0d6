"""A statement: an undoable series of evict, pipeline and allocate operations, as in Volcano.

Operations take effect in the session at once, so that the next one sees them. Nothing reaches the cluster before
`commit`. A `with` block that ends without a commit discards the operations, newest first. A statement that is neither
committed nor discarded stays in force until the session closes: it reserves resources for a gang that waits for
victims.
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
    step: OperationKind
    task: Task
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SavedOperation:
    """An operation of a trial, with everything needed to repeat it after the trial is undone."""

    step: OperationKind
    task: Task
    reason: str
    node_name: str
    eviction_occurred: bool
    last_transaction: TransactionContext | None


class Statement:
    """Operations of one session, in order."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.operations: list[Operation] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.discard()

    def __len__(self) -> int:
        return len(self.operations)

    # Operations

    def evict(self, task: Task, reason: str) -> None:
        """Evict the task; its resources count as releasing from now on."""
        self._session.set_task_status(task, TaskStatus.RELEASING)
        self._session.update_task_on_node(task)
        self._session.call_deallocate_handlers(task)
        self._session.verbose_log.log_evicted(task, reason)
        self.operations.append(Operation(OperationKind.EVICT, task, reason))

    def pipeline(self, task: Task, node_name: str, *, eviction_occurred: bool = False) -> bool:
        """Reserve resources that other tasks release. False: a handler refused, and the operation was undone."""
        task.eviction_occurred = eviction_occurred
        return self._place(task, node_name, TaskStatus.PIPELINED, OperationKind.PIPELINE)

    def allocate(self, task: Task, node: Node | str) -> bool:
        """Place the task on a node with idle resources. False: a handler refused, and the operation was undone."""
        name = node if isinstance(node, str) else node.name
        return self._place(task, name, TaskStatus.ALLOCATED, OperationKind.ALLOCATE)

    def _place(self, task: Task, node_name: str, status: TaskStatus, step: OperationKind) -> bool:
        session = self._session
        placed = session.add_task_to_node(task, node_name, status)
        agreed = session.call_allocate_handlers(task)
        if placed and agreed:
            self.operations.append(Operation(step, task))
            log = (
                session.verbose_log.log_allocated
                if step is OperationKind.ALLOCATE
                else session.verbose_log.log_pipelined
            )
            log(task)
            return True
        self.unpipeline(task)
        return False

    def unpipeline(self, task: Task) -> None:
        """Undo the placement of a task. The operation stays in the list."""
        session = self._session
        session.set_task_status(task, TaskStatus.PENDING)
        session.remove_task_from_node(task)
        session.call_deallocate_handlers(task)
        session.clear_node(task)

    def _un_evict(self, task: Task) -> None:
        # Running, whatever it was before: Volcano does not restore Bound for a victim.
        self._session.set_task_status(task, TaskStatus.RUNNING)
        self._session.update_task_on_node(task)
        self._session.call_allocate_handlers(task)

    # Commit and discard

    def discard(self) -> None:
        """Undo every operation, newest first."""
        operations, self.operations = self.operations, []
        self._session.verbose_log.log_discarded(operations)
        for operation in reversed(operations):
            operation.task.save_last_transaction()
            if operation.step is OperationKind.EVICT:
                self._un_evict(operation.task)
            else:
                self.unpipeline(operation.task)

    def commit(self) -> bool:
        """Commit the operations. False: none was committed, and all were discarded.

        That happens when the cluster changed, or when plugins failed to provide bind request annotations for so many
        tasks that the rest of the gang is not ready. A single operation that is refused is undone; the rest stay.
        """
        placed = [each.task for each in self.operations if each.step is not OperationKind.EVICT]
        if not self._session.still_fits(placed):
            self._session.verbose_log.log_commit_conflict(placed)
            self.discard()
            return False
        if not self._drop_tasks(self._session.collect_bind_request_annotations(self._tasks_to_bind())):
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

    def _tasks_to_bind(self) -> list[Task]:
        return [each.task for each in self.operations if each.step is OperationKind.ALLOCATE]

    def _drop_tasks(self, refused: Mapping[str, str]) -> bool:
        """Undo the placement of these tasks. Returns whether the jobs are ready without them."""
        if not refused:
            return True
        tasks = self._tasks_to_bind()
        self.operations = [each for each in self.operations if each.task.uid not in refused]
        for task in tasks:
            if task.uid in refused:
                task.last_transaction = None  # its job reports why it waits
                self.unpipeline(task)
        return all(self._session.job_ready(self._session.jobs[uid]) for uid in {task.job for task in tasks})

    # Trials

    def merge(self, *statements: Statement) -> None:
        """Take over the operations of other statements, to commit or discard them together."""
        for other in statements:
            self.operations += other.operations
            other.operations = []

    def recover_operations(self, saved: list[SavedOperation]) -> bool:
        """Repeat the operations of a trial. False at the first that fails; the earlier ones stay."""
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
    """The operations of trials, for repetition after the trials are undone."""
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
