"""The `extender` plugin: sends extension point calls of a session to an HTTP service.

Each point has a verb argument such as `extender.predicateVerb: predicate`; a point without one is not sent. Bodies
(`extender.bodies`) are POSTed to `<extender.urlPrefix>/<verb>` through the handle. A failure or an invalid answer is a
rejection, or consent with `extender.ignorable`. Two upstream exceptions are kept unless a quirk fix is on:
victims are refused in both cases, and a job is then ready only if failures are *not* ignorable.
Cost: one request per call, which is one per task and node for predicates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, TypeVar

import msgspec

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.config.volcano_quirk_fixes import QuirkFix
from bayplan.batch.handle import BatchHandle, HttpPost, HttpStatusError
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import Node, Nodes
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.tasks import Task
from bayplan.batch.plugins.extender import bodies
from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.session import Session
from bayplan.codec.go_duration import DurationError, parse_duration
from bayplan.errors import BayplanError
from bayplan.framework.api.status import Code, Status, error

MAX_ANSWER_BYTES = 10 << 20
DEFAULT_TIMEOUT_S = 1.0

_CODES = {int(code): code for code in Code}

_POINTS = (
    "onSessionOpen",
    "onSessionClose",
    "predicate",
    "prioritize",
    "preemptable",
    "reclaimable",
    "queueOverused",
    "jobEnqueueable",
    "jobReady",
    "allocateFunc",
    "deallocateFunc",
)

T = TypeVar("T")


class BatchExtenderError(BayplanError):
    """The service did not answer, or its answer is invalid."""


class ExtenderPlugin:
    """Forwards extension point calls to an HTTP service."""

    name = "extender"
    also_at: ClassVar[tuple[str, ...]] = (
        "predicate",
        "batch_node_order",
        "preemptable",
        "reclaimable",
        "job_enqueueable",
        "job_ready",
        "overused",
        "events",
    )
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument("extender.urlPrefix", str, ""),
        Argument("extender.httpTimeout", timedelta, ""),
        Argument("extender.ignorable", bool, False),
        Argument("extender.managedResources", list[str]),
        *(Argument(f"extender.{point}Verb", str, "") for point in _POINTS),
    )

    def __init__(self, arguments: Arguments, post: HttpPost) -> None:
        self._post = post
        self._arguments = arguments
        self._prefix = arguments.get_str("extender.urlPrefix").rstrip("/")
        self._timeout_s = _timeout_s(arguments)
        self._ignorable = arguments.get_bool("extender.ignorable")
        self._managed_resources = frozenset(arguments.get("extender.managedResources", list[str]) or ())

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> ExtenderPlugin:
        return cls(arguments, handle.http_post)

    def on_session_open(self, session: Session) -> None:
        self._session = session
        self._fixes_failures = QuirkFix.EXTENDER_FAILURES in session.quirk_fixes
        if not self._send_session_open():
            return
        if self._verb("predicate") and self._any_managed():
            session.add_predicate_fn(self.name, self._predicate)
        if self._verb("prioritize") and self._any_managed():
            session.add_batch_node_order_fn(self.name, self._prioritize)
        if self._verb("preemptable"):
            session.add_preemptable_fn(self.name, self._evictable("preemptable"))
        if self._verb("reclaimable"):
            session.add_reclaimable_fn(self.name, self._evictable("reclaimable"))
        if self._verb("jobEnqueueable"):
            session.add_job_enqueueable_fn(self.name, self._job_enqueueable)
        if self._verb("queueOverused"):
            session.add_overused_fn(self.name, self._overused)
        if self._verb("jobReady"):
            session.add_job_ready_fn(self.name, self._job_ready)
        if self._verb("allocateFunc") or self._verb("deallocateFunc"):
            session.add_event_handler(
                self.name,
                allocate=self._on_allocate if self._verb("allocateFunc") else None,
                deallocate=self._on_deallocate if self._verb("deallocateFunc") else None,
            )

    def on_session_close(self, session: Session) -> None:
        if self._verb("onSessionClose"):
            try:
                self._send("onSessionClose", {})
            except BatchExtenderError as fault:
                session.report_misconfiguration(self.name, str(fault))

    # Enabled points

    def _verb(self, point: str) -> str:
        return self._arguments.get_str(f"extender.{point}Verb")

    def _send_session_open(self) -> bool:
        """Send `onSessionOpen`. False if the call failed and failures are not ignorable; nothing is registered then."""
        if not self._verb("onSessionOpen"):
            return True
        try:
            self._send("onSessionOpen", bodies.session_body(self._session))
        except BatchExtenderError as fault:
            self._session.report_misconfiguration(self.name, str(fault))
            return self._ignorable
        return True

    def _any_managed(self) -> bool:
        return any(self._is_managed(task) for job in self._session.jobs.values() for task in job.pending.values())

    def _is_managed(self, task: Task) -> bool:
        """Whether the task requests a managed resource; without `managedResources` every task is managed."""
        if not self._managed_resources:
            return True
        spec = task.pod.spec
        return any(
            self._managed_resources & (container.resources.requests.keys() | container.resources.limits.keys())
            for container in (*spec.containers, *spec.init_containers)
        )

    # Nodes

    def _predicate(self, task: Task, node: Node) -> Status | None:
        if not self._is_managed(task):
            return None
        body = {"task": bodies.task_body(task), "node": bodies.node_body(node)}
        try:
            answer = self._call("predicate", body, bodies.PredicateAnswer)
        except BatchExtenderError as fault:
            return self._unless_ignorable(fault)
        if not answer.status:
            return None
        code = _CODES.get(answer.code, Code.PENDING)  # an unknown code does not reject
        return Status(Code.ERROR if code is Code.SUCCESS else code, (answer.status,))

    def _prioritize(self, task: Task, nodes: Nodes) -> Mapping[str, float] | Status:
        if not self._is_managed(task):
            return {}
        body = {"task": bodies.task_body(task), "nodes": [bodies.node_body(node) for node in nodes]}
        try:
            answer = self._call("prioritize", body, bodies.PrioritizeAnswer)
        except BatchExtenderError as fault:
            return self._unless_ignorable(fault) or {}
        if answer.errormessage or answer.nodescore is None:
            return error(answer.errormessage)
        names = set(nodes.names)
        return {name: score for name, score in answer.nodescore.items() if name in names}

    # Victims

    def _evictable(self, point: str) -> Callable[[Task, Sequence[Task]], list[Task] | None]:
        def answer(evictor: Task, evictees: Sequence[Task]) -> list[Task] | None:
            if not self._is_managed(evictor):
                return None
            body = {"evictor": bodies.task_body(evictor), "evictees": [bodies.task_body(task) for task in evictees]}
            try:
                found = self._call(point, body, bodies.EvictableAnswer)
            except BatchExtenderError as fault:
                ignored = self._unless_ignorable(fault) is None
                return None if ignored and self._fixes_failures else []
            by_uid = {task.uid: task for task in evictees}
            return [by_uid[uid] for uid in found.uids() if uid in by_uid] if found.status else None

        return answer

    # Jobs and queues

    def _job_enqueueable(self, job: Job) -> Vote:
        try:
            status = self._call("jobEnqueueable", {"job": bodies.job_body(job)}, bodies.VoteAnswer).status
        except BatchExtenderError as fault:
            return Vote.PERMIT if self._unless_ignorable(fault) is None else Vote.REJECT
        return Vote((status > 0) - (status < 0))

    def _overused(self, queue: Queue) -> bool:
        try:
            return self._call("queueOverused", {"queue": bodies.queue_body(queue)}, bodies.OverusedAnswer).overused
        except BatchExtenderError as fault:
            return self._unless_ignorable(fault) is not None

    def _job_ready(self, job: Job) -> bool:
        try:
            return self._call("jobReady", {"job": bodies.job_body(job)}, bodies.ReadyAnswer).status
        except BatchExtenderError as fault:
            return (self._unless_ignorable(fault) is None) is self._fixes_failures

    # Events

    def _on_allocate(self, task: Task) -> Status | None:
        return self._send_event("allocateFunc", task)

    def _on_deallocate(self, task: Task) -> None:
        objection = self._send_event("deallocateFunc", task)
        if objection is not None:
            self._session.log_plugin_message(self.name, objection.message)

    def _send_event(self, point: str, task: Task) -> Status | None:
        if not self._is_managed(task):
            return None
        try:
            answer = self._call(point, {"task": bodies.task_body(task)}, bodies.EventAnswer)
        except BatchExtenderError as fault:
            return self._unless_ignorable(fault)
        return error(answer.errormessage) if answer.errormessage else None

    # Requests

    def _unless_ignorable(self, fault: BatchExtenderError) -> Status | None:
        self._session.report_misconfiguration(self.name, str(fault))
        return None if self._ignorable else error(str(fault))

    def _call(self, point: str, body: bodies.Body, answer_type: type[T]) -> T:
        response = self._send(point, body)
        if len(response) > MAX_ANSWER_BYTES:
            raise BatchExtenderError(f"{self._url(point)} answered with more than {MAX_ANSWER_BYTES >> 20} MiB")
        try:
            return msgspec.convert(bodies.lowercase_keys(msgspec.json.decode(response)), answer_type)
        except msgspec.MsgspecError as fault:
            raise BatchExtenderError(f"{self._url(point)} answered with an invalid body: {fault}") from None

    def _send(self, point: str, body: bodies.Body) -> bytes:
        url = self._url(point)
        try:
            return self._post(url, msgspec.json.encode(body), self._timeout_s).body_or_error(url)
        except HttpStatusError as fault:
            raise BatchExtenderError(str(fault)) from fault
        except Exception as fault:  # the transport may raise anything
            raise BatchExtenderError(f"{url} did not answer: {fault}") from fault

    def _url(self, point: str) -> str:
        return f"{self._prefix}/{self._verb(point)}"


def _timeout_s(arguments: Arguments) -> float:
    text = arguments.get_str("extender.httpTimeout")
    try:
        return parse_duration(text).seconds if text else DEFAULT_TIMEOUT_S
    except DurationError as fault:
        arguments.warn(f"extender.httpTimeout: {fault}; {DEFAULT_TIMEOUT_S:g}s is used")
        return DEFAULT_TIMEOUT_S
