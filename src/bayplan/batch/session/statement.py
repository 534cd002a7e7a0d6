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
from bayplan.batch.model.tasks import Task, Transaction

if TYPE_CHECKING:
    from bayplan.batch.session.session import Session


class Step(Enum):
    EVICT = "evict"
    PIPELINE = "pipeline"
    ALLOCATE = "allocate"


@dataclass(frozen=True, slots=True)
class Operation:
    """One step that was taken."""

    step: Step
    task: Task
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SavedOperation:
    """A step of a trial, with everything that is needed to take it again after the trial was undone."""

    step: Step
    task: Task
    reason: str
    node_name: str
    eviction_occurred: bool
    last_transaction: Transaction | None


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
        self._session.move(task, TaskStatus.RELEASING)
        self._session.recount(task)
        self._session.tell_deallocated(task)
        self._session.narration.evicting(task, reason)
        self.operations.append(Operation(Step.EVICT, task, reason))

    def pipeline(self, task: Task, node_name: str, *, eviction_occurred: bool = False) -> bool:
        """Promise the task the room that others are leaving. False: somebody objected, and it was undone."""
        task.eviction_occurred = eviction_occurred
        return self._place(task, node_name, TaskStatus.PIPELINED, Step.PIPELINE)

    def allocate(self, task: Task, node: Node | str) -> bool:
        """Give the task a node with idle room. False: somebody objected, and it was undone."""
        name = node if isinstance(node, str) else node.name
        return self._place(task, name, TaskStatus.ALLOCATED, Step.ALLOCATE)

    def _place(self, task: Task, node_name: str, status: TaskStatus, step: Step) -> bool:
        session = self._session
        placed = session.put(task, node_name, status)
        agreed = session.tell_allocated(task)
        if placed and agreed:
            self.operations.append(Operation(step, task))
            tell = session.narration.allocated if step is Step.ALLOCATE else session.narration.pipelined
            tell(task)
            return True
        self.un_pipeline(task)
        return False

    def un_pipeline(self, task: Task) -> None:
        """Take a promise, or a node, back from a task. The step stays on the list."""
        session = self._session
        session.move(task, TaskStatus.PENDING)
        session.take(task)
        session.tell_deallocated(task)
        session.clear_place(task)

    def _un_evict(self, task: Task) -> None:
        # Running whatever it was before: upstream forgets that a victim was only bound.
        self._session.move(task, TaskStatus.RUNNING)
        self._session.recount(task)
        self._session.tell_allocated(task)

    # the end ----------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Undo every step, newest first."""
        operations, self.operations = self.operations, []
        self._session.narration.discarded(operations)
        for operation in reversed(operations):
            operation.task.remember()
            if operation.step is Step.EVICT:
                self._un_evict(operation.task)
            else:
                self.un_pipeline(operation.task)

    def commit(self) -> bool:
        """Carry the steps out. False: nothing of it was carried out, for the cluster has changed meanwhile, or plugins
        have failed to say what the binder must know of so many tasks that the others are no gang without them.

        A single step that is refused is undone; the others stand.
        """
        placed = [each.task for each in self.operations if each.step is not Step.EVICT]
        if not self._session.still_fits(placed):
            self._session.narration.outrun(placed)
            self.discard()
            return False
        if not self._do_without(self._session.ask_for_annotations(self._to_bind())):
            self.discard()
            return False
        operations, self.operations = self.operations, []
        for operation in operations:
            task = operation.task
            task.last_transaction = None
            if operation.step is Step.EVICT and not self._session.send_eviction(task, operation.reason):
                self._un_evict(task)
            elif operation.step is Step.ALLOCATE and self._session.send_binding(task) is not None:
                self.un_pipeline(task)
            elif operation.step is Step.PIPELINE and task.status is TaskStatus.PIPELINED:
                self._session.send_promise(task)
        return True

    def _to_bind(self) -> list[Task]:
        return [each.task for each in self.operations if each.step is Step.ALLOCATE]

    def _do_without(self, refused: Mapping[str, str]) -> bool:
        """Undo the placing of tasks by uid; whether the jobs that are placed are ready without them."""
        if not refused:
            return True
        tasks = self._to_bind()
        self.operations = [each for each in self.operations if each.task.uid not in refused]
        for task in tasks:
            if task.uid in refused:
                task.last_transaction = None  # why it waits is told by its job
                self.un_pipeline(task)
        return all(self._session.job_ready(self._session.jobs[uid]) for uid in {task.job for task in tasks})

    # trials -----------------------------------------------------------------------------------------------------

    def merge(self, *others: Statement) -> None:
        """Take over the steps of others: they are committed or discarded with this one."""
        for other in others:
            self.operations += other.operations
            other.operations = []

    def recover(self, saved: list[SavedOperation]) -> bool:
        """Take the steps of a trial again. False at the first that fails; those before it stand."""
        for each in saved:
            each.task.last_transaction = each.last_transaction
            if each.step is Step.EVICT:
                self.evict(each.task, each.reason)
                continue
            if each.step is Step.PIPELINE:
                done = self.pipeline(each.task, each.node_name, eviction_occurred=each.eviction_occurred)
            else:
                done = self.allocate(each.task, each.node_name)
            if not done:
                return False
        return True


def saved(*statements: Statement) -> list[SavedOperation]:
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
