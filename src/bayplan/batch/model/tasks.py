"""A pod as the batch engine sees it: its request, its status in this session and its node.

One `Task` object stands for one version of one pod; jobs, nodes and statements share it. Values from the pod never
change. Statements change `status`, `node_name` and the fields below them; the session restores them when it closes.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.pod_amounts import pod_amounts
from bayplan.batch.model.statuses import TaskStatus, status_of
from bayplan.objects.core import Pod
from bayplan.snapshot import PodInfo

GROUP_NAME = "scheduling.k8s.io/group-name"
TASK_SPEC = "volcano.sh/task-spec"
TASK_PRIORITY = "volcano.sh/task-priority"
PREEMPTABLE = "volcano.sh/preemptable"
REVOCABLE_ZONE = "volcano.sh/revocable-zone"
QUEUE_ALLOCATION_GATE = "scheduling.volcano.sh/queue-allocation-gate"

EARLIEST_TIME = datetime.min.replace(tzinfo=UTC)
"""The creation time of objects without one."""

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NOT_PARSED = -1  # no pod name ends in a negative number, because the sign is a separator


class TransactionContext(NamedTuple):
    """The best placement of a task in a statement that was discarded."""

    status: TaskStatus
    node_name: str
    eviction_occurred: bool


def parse_bool(text: str) -> bool:
    """Go's ParseBool. Invalid text counts as false, as in Volcano."""
    return text in _TRUE


def parse_int(text: str, bits: int = 64) -> int | None:
    """Go's ParseInt with base 10; None for invalid text."""
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -(1 << (bits - 1)) <= value < 1 << (bits - 1) else None


class Task:
    """One pod in a session. A cluster can have 100,000, so it uses slots and computes rarely used values on demand."""

    __slots__ = (
        "_demand_key",
        "_index",
        "_info",
        "_revocable_zone",
        "best_effort",
        "counted_status",
        "created",
        "demand",
        "eviction_occurred",
        "gated",
        "init_resreq",
        "job",
        "job_allocated_hyper_node",
        "key",
        "last_transaction",
        "name",
        "namespace",
        "node_name",
        "pod",
        "preemptable",
        "priority",
        "resreq",
        "role",
        "status",
        "template",
        "uid",
    )

    def __init__(self, pod: Pod, info: PodInfo | None = None) -> None:
        meta, spec = pod.metadata, pod.spec
        annotations = meta.annotations
        self.pod = pod
        self.uid: str = meta.uid
        self.name: str = meta.name
        self.namespace: str = meta.namespace
        self.key: str = pod.key
        group = annotations.get(GROUP_NAME, "")
        self.job: str = f"{meta.namespace}/{group}" if group else ""
        self.role: str = annotations.get(TASK_SPEC) or meta.labels.get(TASK_SPEC, "")
        self.resreq: Amounts = pod_amounts(pod)  # request while the pod runs; shared, never changed
        self.init_resreq: Amounts = self.resreq  # request at launch
        self.best_effort: bool = self.init_resreq.is_empty()
        self.priority: int = _priority(pod)
        self.preemptable: bool = _preemptable(pod)  # computed here, because it is read for all running tasks at once
        self.gated: bool = bool(spec.scheduling_gates)
        self.created: datetime = meta.creation_timestamp or EARLIEST_TIME
        self.demand: tuple[tuple[int, float], ...] | None = None  # by columns: see `NodeAccounts.demand`
        self.template: int | None = None  # see `pod_templates`
        self._info = info
        self._demand_key: tuple[object, ...] | None = None
        self._revocable_zone: str | None = None
        self._index: int | None = _NOT_PARSED

        self.status: TaskStatus = status_of(pod)
        self.node_name: str = spec.node_name
        self.counted_status: TaskStatus | None = None  # the status under which its node counts it
        self.eviction_occurred = False
        self.job_allocated_hyper_node = ""
        self.last_transaction: TransactionContext | None = None

    @property
    def info(self) -> PodInfo:
        """The pod as the framework's plugins see it."""
        if self._info is None:
            self._info = PodInfo(self.pod)
        return self._info

    @property
    def demand_key(self) -> tuple[object, ...]:
        """Equal for tasks with the same request."""
        if self._demand_key is None:
            request = self.init_resreq
            self._demand_key = (request.milli_cpu, request.memory, frozenset((request.scalars or {}).items()))
        return self._demand_key

    @property
    def revocable_zone(self) -> str:
        """`*` for a pod that may run on revocable nodes (lent for some hours only), else ""."""
        if self._revocable_zone is None:
            self._revocable_zone = revocable_zone(self.pod.metadata.annotations)
        return self._revocable_zone

    @property
    def has_sidecar(self) -> bool:
        return any(container.is_sidecar for container in self.pod.spec.init_containers)

    @property
    def has_only_queue_gate(self) -> bool:
        """Whether the pod's only scheduling gate is the one that Volcano removes itself."""
        gates = self.pod.spec.scheduling_gates
        return len(gates) == 1 and gates[0].name == QUEUE_ALLOCATION_GATE

    @property
    def awaits_queue_admission(self) -> bool:
        """Whether the pod requests Volcano's gate until its queue has capacity."""
        return self.pod.metadata.annotations.get(QUEUE_ALLOCATION_GATE) == "true"

    @property
    def index(self) -> int | None:
        """The number at the end of the pod's name. It orders tasks of equal priority."""
        if self._index == _NOT_PARSED:
            parts = self.name.split("-")
            self._index = parse_int(parts[-1]) if len(parts) >= 3 else None
        return self._index

    def transaction_context(self) -> TransactionContext:
        """The current placement, or that of the last discarded statement."""
        return self.last_transaction or TransactionContext(self.status, self.node_name, self.eviction_occurred)

    def save_last_transaction(self) -> None:
        """Save the placement right before it is undone."""
        self.last_transaction = TransactionContext(self.status, self.node_name, self.eviction_occurred)

    def __repr__(self) -> str:
        return f"Task({self.key}, {self.status.label}{f' on {self.node_name}' if self.node_name else ''})"


class ReadOnlyTask(Task):
    """A read-only copy of a task. It equals the task; setting an attribute raises."""

    __slots__ = ("_task",)

    def __init__(self, task: Task) -> None:
        for name in Task.__slots__:
            object.__setattr__(self, name, getattr(task, name))
        self._task = task

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):  # lazily computed values
            raise AttributeError(f"{name} of task {self.key} is read-only here; its placement was decided before")
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._task

    def __hash__(self) -> int:
        return hash(self._task)


def _priority(pod: Pod) -> int:
    text = pod.metadata.annotations.get(TASK_PRIORITY)
    own = parse_int(text, 32) if text is not None else None
    if own is not None:
        return own
    return 1 if pod.spec.priority is None else pod.spec.priority


def _preemptable(pod: Pod) -> bool:
    """Whether the pod may be evicted. Default: yes."""
    meta = pod.metadata
    text = meta.annotations.get(PREEMPTABLE)
    if text is None:
        text = meta.labels.get(PREEMPTABLE)
    return True if text is None else parse_bool(text)


def revocable_zone(annotations: dict[str, str]) -> str:
    """The revocable zone in the annotations of a pod or a group."""
    zone = annotations.get(REVOCABLE_ZONE)
    if zone is not None:
        return zone if zone == "*" else ""
    return "*" if parse_bool(annotations.get(PREEMPTABLE, "")) else ""


def default_task_order(left: Task, right: Task) -> bool:
    """Whether the left task comes first when no plugin decides: by the number in the name, then age, then uid."""
    mine, theirs = left.index, right.index
    if mine != theirs and mine is not None and theirs is not None:
        return mine < theirs
    if left.created != right.created:
        return left.created < right.created
    return left.uid < right.uid
