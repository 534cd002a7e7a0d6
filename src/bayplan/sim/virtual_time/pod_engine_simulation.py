"""A cluster in virtual time, driven by the pod engine of a live scheduler: its queue, its routing, its cache.

Pods arrive, wait, are placed, may be evicted by more urgent ones, and leave. What an API server would tell is told to
the same routing that listens to one; between two events no time passes but that of the trace.
"""

from __future__ import annotations

from collections.abc import Callable

from bayplan.clock import ManualClock
from bayplan.objects.core import Pod
from bayplan.queue import QueuedPodInfo, SchedulingQueue
from bayplan.scheduler.engine import PodEngine, ScheduleResult
from bayplan.scheduler.live.event_handlers import EventHandlers
from bayplan.scheduler.live.queue_factory import new_queue
from bayplan.sim.traces.trace_files import TracePod
from bayplan.sim.virtual_time.trace_objects import PodFactory
from bayplan.snapshot import NodeColumns

PodCallback = Callable[[Pod], None]


class PodEngineSimulation:
    """`placed` is told of every pod that got a node, `evicted` of every pod that lost it."""

    def __init__(self, engine: PodEngine, clock: ManualClock, *, placed: PodCallback, evicted: PodCallback) -> None:
        self.engine = engine
        self.clock = clock
        self.queue = new_queue(engine, SchedulingQueue, clock=clock)
        self._routing = EventHandlers(engine, self.queue)
        self._pods = PodFactory(engine.prepare)
        self._placed = placed
        self._evicted = evicted

    @property
    def waiting(self) -> int:
        """Pods without a node."""
        return len(self.engine.pending)

    def next_wakeup_s(self) -> float | None:
        """When the queue wants to be asked again, though nothing happens."""
        return self.queue.next_wakeup_s() if self.engine.pending else None

    def advance_to(self, at_s: float) -> None:
        self.clock.advance(max(0.0, at_s - self.clock.monotonic_s()))

    def nodes(self) -> NodeColumns:
        """The cluster of now."""
        return self.engine.snapshot().nodes

    def make_pod(self, pod: TracePod, uid: str) -> Pod:
        """A pod of the trace as an API server would show it."""
        return self._pods.make(pod, uid).pod

    def add_pod(self, made: Pod, pod: TracePod) -> None:
        del pod  # all that counts is in what was made of it
        self._routing.handle(None, made)

    def remove_pod(self, pod: Pod) -> None:
        """A pod that was placed is done."""
        self._routing.handle(pod, None)

    def schedule(self) -> None:
        """Let the scheduler do all that it can do now."""
        self.queue.flush()
        while (queued := self.queue.pop()) is not None:
            self._try(queued)

    def _try(self, queued: QueuedPodInfo) -> None:
        outcome = self.engine.place(queued.info)
        if outcome.node is None:
            self._handle_failure(queued, outcome)
            return
        assert outcome.assumed is not None
        self.queue.done(queued.uid)
        self._routing.handle(queued.pod, outcome.assumed.pod)  # as if it was bound at once, and the API server told
        self._placed(outcome.assumed.pod)

    def _handle_failure(self, queued: QueuedPodInfo, outcome: ScheduleResult) -> None:
        decision = outcome.decision
        self.queue.requeue(queued, *outcome.rejectors)
        self.queue.nominate(queued.info, decision.nominated_node_name)
        if not decision.victims:
            return
        victims = {pod.key: pod for pod in self.engine.cache.pods() if pod.key in decision.victims}
        for key in decision.victims:
            self._routing.handle(victims[key], None)
            self._evicted(victims[key])
