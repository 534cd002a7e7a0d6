"""Explains the pods of a running scheduler: the record of the decision, and the pod's place in the queue.

Called over HTTP. The event loop runs between two filter runs, so that an answer blocks nothing. Nothing is stored for
answers, so they cost nothing until one is requested.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from bayplan.explain.bind_request_answers import with_bind_failures, with_binding_progress
from bayplan.explain.pod_explainer import PodExplainer
from bayplan.framework.api.events import ACTION_NAMES, ActionType, ClusterEventWithHint
from bayplan.framework.runtime.cooperative import run_cooperatively
from bayplan.framework.runtime.event_registrations import EXTENDER_REJECTOR, registered_events
from bayplan.objects.core import Pod
from bayplan.queue import QueuedPodInfo
from bayplan.queue.queued_pod import SubQueue
from bayplan.scheduler.live.run_loop import LiveScheduler
from bayplan.snapshot import Snapshot
from bayplan.telemetry.answers import BINDING, PENDING, WAITING, Answer
from bayplan.telemetry.decision_text import join_names


class LivePodExplainer:
    def __init__(self, live: LiveScheduler) -> None:
        self._live = live
        self._private_snapshot: Snapshot | None = None
        # With extenders, an attempt awaits responses with the engine's snapshot, which must not change meanwhile.
        snapshot = self._refresh_private_snapshot if live.call_extender is not None else None
        self._pods = PodExplainer(live.engine, live.clock, snapshot)

    def serves(self, pod: Pod) -> bool:
        return self._live.engine.serves(pod)

    def find(self, namespace: str, name: str) -> Pod | None:
        """The pod as the engine knows it: pending, assumed or bound. Cost: a walk over the pods in the cache."""
        live = self._live
        queued = live.queue.get(f"{namespace}/{name}")
        if queued is not None:
            return queued.pod
        for pods in (live.engine.cache.pods(), live.engine.pending.values()):
            for pod in pods:
                if pod.metadata.name == name and pod.metadata.namespace == namespace:
                    return pod
        return None

    async def answer(self, pod: Pod, *, now: bool = False) -> Answer:
        """Why the pod is where it is."""
        waiting = self._live.engine.waiting_pods.get(pod.uid)
        if waiting is not None and waiting.outcome is None:
            plugins = join_names(waiting.pending_plugins())
            return replace(self._pods.explain_placed(waiting.pod, WAITING), waits_for=f"{plugins} at Permit")
        if pod.spec.node_name:
            if not self._live.engine.cache.is_assumed(pod.uid):
                return self._pods.explain_placed(pod)
            return with_binding_progress(self._pods.explain_placed(pod, BINDING), self._live.bind_requests, pod)
        queued = self._live.queue.get(pod.key)
        answer = await run_cooperatively(self._pods.explain_pending(pod, now=now), self._live.clock)
        answer = self._add_queue_state(answer, queued)
        is_unschedulable = queued is not None and queued.pool is SubQueue.UNSCHEDULABLE
        otherwise = answer.waits_for if is_unschedulable else None
        return with_bind_failures(answer, self._live.bind_requests, pod, otherwise=otherwise)

    def _add_queue_state(self, answer: Answer, queued: QueuedPodInfo | None) -> Answer:
        """The answer with the queue's data: the pod's attempts, its age, and what wakes it."""
        if queued is None:
            return replace(answer, waits_for="the current attempt")
        since = answer.since or queued.first_attempt or queued.timestamp
        answer = replace(answer, state=PENDING, since=since, attempts=queued.attempts)
        if answer.victims:
            departure = f"{join_names(answer.victims)} to leave {answer.nominated}"
            return replace(answer, waits_for=departure)
        if queued.pool is SubQueue.ACTIVE:
            return replace(answer, waits_for="its turn")
        if queued.pool in (SubQueue.BACKOFF, SubQueue.ERROR_BACKOFF):
            return replace(answer, waits_for="its backoff to end", next_try=self._live.queue.backoff_expires_at(queued))
        return replace(answer, waits_for=self._awaited_events(queued))

    def _awaited_events(self, queued: QueuedPodInfo) -> str:
        if queued.gated_by:
            return f"{queued.gated_by} to admit it"
        instances = self._live.engine.framework(queued.pod.scheduler_name).profile.instances
        events: dict[str, None] = {}
        for name in sorted(queued.rejectors):
            if name == EXTENDER_REJECTOR or name not in instances:
                return "any change: the events that could help are unknown"
            events |= dict.fromkeys(_event_names(registered_events(instances[name])))
        return f"one of these changes: {', '.join(events)}" if events else "five minutes to pass"

    def _refresh_private_snapshot(self) -> Snapshot:
        cache = self._live.engine.cache
        if self._private_snapshot is None:
            self._private_snapshot = cache.snapshot()
        cache.refresh(self._private_snapshot)
        return self._private_snapshot


def _event_names(registrations: Iterable[ClusterEventWithHint]) -> Iterable[str]:
    """`Pod Delete, UpdatePodScaleDown`: names of registered events as in logs and metrics."""
    for registration in registrations:
        known = ACTION_NAMES.get(registration.action)
        parts = [bit for bit in ActionType if bit & registration.action]
        if ActionType.UPDATE in registration.action:  # one name for eleven bits
            parts = [bit for bit in parts if bit not in ActionType.UPDATE] + [ActionType.UPDATE]
        yield f"{registration.resource} {known or '|'.join(ACTION_NAMES[part] for part in parts)}"
