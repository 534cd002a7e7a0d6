"""Deallocation of claims that keep pending pods on deleted nodes, so that other devices can be chosen.

A scheduler writes the claims of a pod before it binds the pod, and can crash in between. If the node is deleted
meanwhile, no component undoes the allocation, and no existing node can use the claim. The pod engine finds such claims
in PostFilter, which sessions do not have; here a check after sessions finds them, every few seconds. Cost: a lookup per
pending pod. For a claim with devices, one node check, or a check of all nodes if the last known node no longer matches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from bayplan.batch.live.event_handlers import BatchEventHandlers
from bayplan.batch.live.write_interfaces import IntentWriter
from bayplan.batch.session.outcome import SessionResult
from bayplan.clock import Clock
from bayplan.devices.claim_intents import DeallocateClaim
from bayplan.devices.claims import ClaimProblem, is_unused_by_others, pod_claims
from bayplan.objects.core import Pod
from bayplan.objects.resource import ResourceClaim
from bayplan.objects.selectors.node_selectors import compile_node_selector

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 5.0
"""Long enough for the watch to show the writes of the previous check; failed writes are repeated."""


@dataclass(slots=True)
class OrphanedClaims:
    """Deallocates claims that no existing node can use and that only pending pods reserve."""

    event_handlers: BatchEventHandlers
    writes: IntentWriter
    clock: Clock
    _due_s: float = float("-inf")
    # by claim uid: a node that could use it at the last check
    _usable_node_by_claim: dict[str, str] = field(default_factory=dict)

    def release_orphaned(self, outcome: SessionResult) -> None:
        """Check the pending pods after a session and deallocate their orphaned claims."""
        now_s = self.clock.monotonic_s()
        if now_s < self._due_s or not self.event_handlers.knows_all_nodes:
            return
        self._due_s = now_s + CHECK_INTERVAL_S
        last_nodes, self._usable_node_by_claim = self._usable_node_by_claim, {}
        orphaned = {}
        for pod in self._waiting_pods_with_claims(outcome):
            claims = pod_claims(pod, self.event_handlers.engine.cache.devices.claims)
            for claim in () if isinstance(claims, ClaimProblem) else claims:
                uid = claim.metadata.uid
                if is_unused_by_others(claim, pod) and self._is_orphaned(claim, last_nodes.get(uid, "")):
                    orphaned[uid] = claim  # several pods may wait for it
        for claim in orphaned.values():
            log.warning("claim %s has devices of a deleted node and only pending pods: it is deallocated", claim.key)
            self.writes.submit(DeallocateClaim(claim))

    def _waiting_pods_with_claims(self, outcome: SessionResult) -> Iterator[Pod]:
        """Pending pods with claims whose binding has not started, neither here nor by a bind request."""
        event_handlers = self.event_handlers
        for key in outcome.waiting:
            pod = event_handlers.pods.get(key)
            if pod is not None and pod.spec.resource_claims and event_handlers.engine.cache.pod(pod.uid) is None:
                yield pod

    def _is_orphaned(self, claim: ResourceClaim, last_node: str) -> bool:
        allocation = claim.status.allocation
        if allocation is None or allocation.node_selector is None:
            return False
        selector = compile_node_selector(allocation.node_selector)
        if selector.errors:
            return False  # the pod's condition reports the error
        cache = self.event_handlers.engine.cache
        for name in chain((last_node,), cache.node_names()):
            node = cache.node(name)
            if node is not None and selector.matches(node.labels, name):
                self._usable_node_by_claim[claim.metadata.uid] = name
                return False
        return True
