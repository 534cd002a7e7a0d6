"""Lets pods go that their queue has room for: the gate that held them until then is removed.

Only pods that asked for the gate, and have no other, come here, and only with Volcano's feature gate for it. A removal
that fails is tried again by the next session, which finds the pod as it was.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from bayplan.batch.live.writing import Writer
from bayplan.batch.narration import DECISIONS
from bayplan.batch.tasks import QUEUE_ALLOCATION_GATE
from bayplan.client import PODS, STRATEGIC_PATCH, Client
from bayplan.errors import BayplanError, Conflict, NotFound
from bayplan.objects.core import Pod
from bayplan.telemetry.logs import Ref, StructuredLog

log = logging.getLogger(__name__)
outcomes = StructuredLog(__name__)


@dataclass(slots=True)
class GateRemovals:
    """Carries out what sessions have admitted."""

    client: Client
    writes: Writer
    _under_way: set[str] = field(default_factory=set)

    def start(self, pod: Pod) -> None:
        """A session found room for a pod in its queue."""
        if pod.uid not in self._under_way:
            self._under_way.add(pod.uid)
            self.writes.start(self._carry_out(pod), f"removing the gate of {pod.key}")

    async def _carry_out(self, pod: Pod) -> None:
        gate = {"name": QUEUE_ALLOCATION_GATE, "$patch": "delete"}
        patch = {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": [gate]}}
        try:
            await self.client.patch(PODS, patch, namespace=pod.namespace, name=pod.name, kind=STRATEGIC_PATCH)
            outcomes.info("Removed Volcano scheduling gate from pod", v=DECISIONS, pod=Ref(pod.key))
        except (NotFound, Conflict):
            pass  # gone, or a namesake that came after it
        except BayplanError as fault:
            log.warning("cannot remove the scheduling gate of pod %s: %s; the next session tries again", pod.key, fault)
        finally:
            self._under_way.discard(pod.uid)
