"""Removal of the scheduling gate that holds a pod until its queue has capacity.

Only for pods that requested the gate and have no other, and only with Volcano's feature gate. A failed removal is
retried by a later session: by the next one if the API server was unreachable, otherwise after an exponential backoff. A
repeated removal is safe, because nothing adds a gate to an existing pod.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from bayplan.batch.live.write_interfaces import IntentWriter
from bayplan.batch.model.tasks import QUEUE_ALLOCATION_GATE
from bayplan.batch.session.verbose_log import DECISIONS
from bayplan.client import PODS, STRATEGIC_PATCH, Client
from bayplan.clock import Clock
from bayplan.errors import BayplanError, Conflict, LeaseLost, NotFound, Unreachable
from bayplan.objects.core import Pod
from bayplan.telemetry.logs import ObjectRef, StructuredLog

log = logging.getLogger(__name__)
outcomes = StructuredLog(__name__)

FIRST_PAUSE_S, LAST_PAUSE_S = 10.0, 600.0
"""Backoff after a refused removal, doubled each time."""

_NEVER = 0, float("-inf")


@dataclass(slots=True)
class GateRemovals:
    """Removes the gates of pods that sessions admitted."""

    client: Client
    writes: IntentWriter
    clock: Clock
    _in_progress: set[str] = field(default_factory=set)
    # by uid: number of attempts, and the earliest time of the next
    _refused: dict[str, tuple[int, float]] = field(default_factory=dict)

    def start(self, pod: Pod) -> None:
        """Start the removal of the gate of a pod whose queue has capacity."""
        _, paused_until_s = self._refused.get(pod.uid, _NEVER)
        if pod.uid not in self._in_progress and self.clock.monotonic_s() >= paused_until_s:
            self._in_progress.add(pod.uid)
            self.writes.start(self._remove_gate(pod), f"removing the gate of {pod.key}")

    async def _remove_gate(self, pod: Pod) -> None:
        gate = {"name": QUEUE_ALLOCATION_GATE, "$patch": "delete"}
        patch = {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": [gate]}}
        try:
            await self.client.patch(PODS, patch, namespace=pod.namespace, name=pod.name, kind=STRATEGIC_PATCH)
            self._refused.pop(pod.uid, None)
            outcomes.info("Removed Volcano scheduling gate from pod", v=DECISIONS, pod=ObjectRef(pod.key))
        except (NotFound, Conflict):
            self._refused.pop(pod.uid, None)  # deleted, or replaced by a pod with the same name
        except BayplanError as fault:
            pause_s = 0.0 if isinstance(fault, Unreachable | LeaseLost) else self._note_refusal(pod.uid)
            after = f"a session tries again after {pause_s:.0f} s" if pause_s else "the next session tries again"
            log.warning("cannot remove the scheduling gate of pod %s: %s; %s", pod.key, fault, after)
        finally:
            self._in_progress.discard(pod.uid)

    def _note_refusal(self, uid: str) -> float:
        """Record a refused removal and return its backoff in seconds."""
        times, now_s = self._refused.get(uid, _NEVER)[0], self.clock.monotonic_s()
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(times, 16), LAST_PAUSE_S)
        forgotten_s = now_s - 2.0 * LAST_PAUSE_S
        self._refused = {each: found for each, found in self._refused.items() if found[1] > forgotten_s}
        self._refused[uid] = times + 1, now_s + pause_s
        return pause_s
