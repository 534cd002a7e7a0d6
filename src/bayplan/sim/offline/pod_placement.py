"""Places waiting pods one after another with the pod engine, without an API server; evictions are carried out.

Used by `bayplan place`, recordings and what-if. Cost: one decision per pod, and a second one if it evicts pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from bayplan.objects.core import Pod
from bayplan.scheduler.cycle.schedule_result import AssumedPod
from bayplan.scheduler.engine import PodEngine
from bayplan.telemetry.decision_text import decision_sentence, join_names
from bayplan.telemetry.decisions import DecisionRecord


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    pod: Pod
    node: str | None
    why: str
    evicted: tuple[str, ...] = ()
    record: DecisionRecord | None = None
    waits_for: tuple[str, ...] = ()
    """Permit plugins that hold the pod; it counts on its node meanwhile."""
    assumed: AssumedPod | None = None
    """The assumed pod, so that a caller can undo the placement."""


def place_pods(engine: PodEngine, waiting: Iterable[Pod]) -> list[PlacementOutcome]:
    """Place pods in queue order; a pod that evicts victims is retried immediately.

    A pod that Permit holds is reported as placed only when Permit releases it.
    """
    ordered = engine.in_queue_order(list(waiting))
    engine.pending.update({pod.uid: pod for pod in ordered})
    outcomes: dict[str, PlacementOutcome] = {}
    waiting_at_permit: dict[str, PlacementOutcome] = {}
    for pod in ordered:
        outcome = place_pod(engine, pod, engine.cache.remove_pod)
        engine.pending.pop(pod.uid, None)
        if outcome.waits_for:
            waiting_at_permit[pod.uid] = outcome
            outcome = replace(outcome, node=None, why=f"waiting at Permit for {' and '.join(outcome.waits_for)}")
        outcomes[pod.uid] = outcome
        for released_pod, status in engine.settle_waiting_pods():
            outcome = waiting_at_permit.pop(released_pod.uid)
            outcomes[released_pod.uid] = outcome if status.ok else replace(outcome, node=None, why=status.message)
    return list(outcomes.values())


def place_pod(engine: PodEngine, pod: Pod, evict: Callable[[Pod], None]) -> PlacementOutcome:
    """Place one pod; `evict` is called for each victim."""
    if not engine.serves(pod):
        return PlacementOutcome(pod, None, f'no profile serves scheduler name "{pod.scheduler_name}"')
    gate = engine.framework(pod.scheduler_name).pre_enqueue(pod)
    if not gate.ok:
        return PlacementOutcome(pod, None, gate.message)
    placed = engine.place(pod)
    victims = placed.decision.victims
    if placed.decision.nominated_node_name and victims:
        for victim in [each for each in engine.cache.pods() if each.key in victims]:
            evict(victim)
        placed = engine.place(pod)
    record = engine.records.latest(pod.key)
    text = decision_sentence(record) if record is not None else placed.status.message
    if placed.node is None and placed.decision.node is not None:
        text = placed.status.message
    if victims:
        text = f"evicted {join_names(victims)}; {text}"
    return PlacementOutcome(
        pod, placed.node, text, victims, record, tuple(sorted(placed.permit_timeouts_s)), placed.assumed
    )
