"""Simulated cluster in virtual time, driven by the pod engine with the queue, event handlers and cache of a live one.

Pods arrive, wait, are placed, may be preempted, and end. The events that an API server would send are passed to the
same event handlers. Time advances only between events of the trace.
"""

from __future__ import annotations

from collections.abc import Callable

from bayplan.clock import ManualClock
from bayplan.objects.core import Pod
from bayplan.queue import QueuedPodInfo, SchedulingQueue
from bayplan.scheduler.cycle.schedule_result import ScheduleResult
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.live.event_handlers import EventHandlers
from bayplan.scheduler.live.queue_factory import new_queue
from bayplan.sim.traces.trace_files import TracePod
from bayplan.sim.virtual_time.trace_objects import PodFactory
from bayplan.snapshot import NodeColumns

PodCallback = Callable[[Pod], None]


class PodEngineSimulation:
    """Implements `SimulatedCluster`. `on_placed` is called for each placed pod, `on_evicted` for each evicted pod."""

    def __init__(
        self, engine: PodEngine, clock: ManualClock, *, on_placed: PodCallback, on_evicted: PodCallback
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.queue = new_queue(engine, SchedulingQueue, clock=clock)
        self._event_handlers = EventHandlers(engine, self.queue)
        self._pods = PodFactory(engine.prepare)
        self._on_placed = on_placed
        self._on_evicted = on_evicted

    @property
    def waiting(self) -> int:
        """Number of pods without a node."""
        return len(self.engine.pending)

    def next_wakeup_s(self) -> float | None:
        """Time at which the queue has pods to retry without an event."""
        return self.queue.next_wakeup_s() if self.engine.pending else None

    def advance_to(self, at_s: float) -> None:
        self.clock.advance(max(0.0, at_s - self.clock.monotonic_s()))

    def nodes(self) -> NodeColumns:
        """Columns of the current snapshot."""
        return self.engine.snapshot().nodes

    def make_pod(self, pod: TracePod, uid: str) -> Pod:
        """Build the pod of a trace as the API server would return it."""
        return self._pods.make(pod, uid).pod

    def add_pod(self, pod_object: Pod, pod: TracePod) -> None:
        del pod  # the pod object contains everything
        self._event_handlers.handle(None, pod_object)

    def remove_pod(self, pod: Pod) -> None:
        self._event_handlers.handle(pod, None)

    def schedule(self) -> None:
        """Schedule all pods that are ready now."""
        self.queue.flush()
        while (queued := self.queue.pop()) is not None:
            self._schedule_one(queued)

    def _schedule_one(self, queued: QueuedPodInfo) -> None:
        outcome = self.engine.place(queued.info)
        if outcome.node is None:
            self._handle_failure(queued, outcome)
            return
        assert outcome.assumed is not None
        self.queue.done(queued.uid)
        self._event_handlers.handle(queued.pod, outcome.assumed.pod)  # as if it was bound and the API server sent it
        self._on_placed(outcome.assumed.pod)

    def _handle_failure(self, queued: QueuedPodInfo, outcome: ScheduleResult) -> None:
        decision = outcome.decision
        self.queue.requeue(queued, *outcome.rejectors)
        self.queue.nominate(queued.info, decision.nominated_node_name)
        if not decision.victims:
            return
        victims = {pod.key: pod for pod in self.engine.cache.pods() if pod.key in decision.victims}
        for key in decision.victims:
            self._event_handlers.handle(victims[key], None)
            self._on_evicted(victims[key])
