"""Why, of a scheduler that is running: the records of its decisions, and where each pod waits since when.

Asked over HTTP. The loop has its turn between two looks at the cluster, so that a question holds nobody up; nothing is
kept ready for questions, so that they cost nothing while nobody asks.
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
    """Explains the pods of one live pod engine."""

    def __init__(self, live: LiveScheduler) -> None:
        self._live = live
        self._aside: Snapshot | None = None
        # With extenders an attempt waits for answers on the engine's snapshot, which must stay as it is meanwhile.
        snapshot = self._own_snapshot if live.call_extender is not None else None
        self._pods = PodExplainer(live.engine, live.clock, snapshot)

    def serves(self, pod: Pod) -> bool:
        return self._live.engine.serves(pod)

    def find(self, namespace: str, name: str) -> Pod | None:
        """The pod as the engine knows it: waiting, under way, or on a node. Cost: a walk over the pods on nodes."""
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
        answer = self._with_queue(answer, queued)
        parked = queued is not None and queued.pool is SubQueue.UNSCHEDULABLE
        return with_bind_failures(answer, self._live.bind_requests, pod, otherwise=answer.waits_for if parked else None)

    def _with_queue(self, answer: Answer, queued: QueuedPodInfo | None) -> Answer:
        """With what the queue knows: since when, how often tried, what wakes it."""
        if queued is None:
            return replace(answer, waits_for="the attempt that is under way")
        since = answer.since or queued.first_attempt or queued.timestamp
        answer = replace(answer, state=PENDING, since=since, attempts=queued.attempts)
        if answer.victims:
            many = f"{join_names(answer.victims)} to leave {answer.nominated}"
            return replace(answer, waits_for=many)
        if queued.pool is SubQueue.ACTIVE:
            return replace(answer, waits_for="its turn")
        if queued.pool in (SubQueue.BACKOFF, SubQueue.ERROR_BACKOFF):
            return replace(answer, waits_for="its backoff to end", next_try=self._live.queue.backoff_expires_at(queued))
        return replace(answer, waits_for=self._awaited_events(queued))

    def _awaited_events(self, queued: QueuedPodInfo) -> str:
        """The events that may cure a parked pod."""
        if queued.gated_by:
            return f"{queued.gated_by} to let it in"
        instances = self._live.engine.framework(queued.pod.scheduler_name).profile.instances
        events: dict[str, None] = {}
        for name in sorted(queued.rejectors):
            if name == EXTENDER_REJECTOR or name not in instances:
                return "anything to change: nobody knows what it depends on"
            events |= dict.fromkeys(_event_names(registered_events(instances[name])))
        return f"one of these changes: {', '.join(events)}" if events else "five minutes to pass"

    def _own_snapshot(self) -> Snapshot:
        cache = self._live.engine.cache
        if self._aside is None:
            self._aside = cache.snapshot()
        cache.refresh(self._aside)
        return self._aside


def _event_names(cures: Iterable[ClusterEventWithHint]) -> Iterable[str]:
    """`Pod Delete, UpdatePodScaleDown`: what a cure registers for, as logs and metrics call it."""
    for cure in cures:
        known = ACTION_NAMES.get(cure.action)
        parts = [bit for bit in ActionType if bit & cure.action]
        if ActionType.UPDATE in cure.action:  # eleven words for one
            parts = [bit for bit in parts if bit not in ActionType.UPDATE] + [ActionType.UPDATE]
        yield f"{cure.resource} {known or '|'.join(ACTION_NAMES[part] for part in parts)}"
