"""Which claims keep pods that wait on nodes that are gone? Their devices are given back, so that others can be chosen.

Whoever prepares a binding writes to the claims of the pod first, and may die before the pod is bound. Where the node
goes meanwhile nobody is left to take that back, and no node that is there can use the claim. The pod engine finds such
claims in PostFilter, which sessions do not have; here a look after a session finds them, every few seconds.
Cost: a lookup for each pod that waits; for a claim with devices a node, all of them where the last one does not do.
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
"""Long enough for the watch to tell what the look before has written; what could not be written is tried again."""


@dataclass(slots=True)
class OrphanedClaims:
    """Gives back devices that no node can use and nobody but a waiting pod may."""

    following: BatchEventHandlers
    writes: IntentWriter
    clock: Clock
    _due_s: float = float("-inf")
    _usable_node_by_claim: dict[str, str] = field(
        default_factory=dict
    )  # by uid of a claim: a node that could use it, when last seen

    def release_orphaned(self, outcome: SessionResult) -> None:
        """After a session: what keeps those that found no node."""
        now_s = self.clock.monotonic_s()
        if now_s < self._due_s or not self.following.knows_all_nodes:
            return
        self._due_s = now_s + CHECK_INTERVAL_S
        near, self._usable_node_by_claim = self._usable_node_by_claim, {}
        stranded = {}
        for pod in self._waiting_pods_with_claims(outcome):
            claims = pod_claims(pod, self.following.engine.cache.devices.claims)
            for claim in () if isinstance(claims, ClaimProblem) else claims:
                uid = claim.metadata.uid
                if is_unused_by_others(claim, pod) and self._is_orphaned(claim, near.get(uid, "")):
                    stranded[uid] = claim  # several pods may wait for it
        for claim in stranded.values():
            log.warning("claim %s has devices of a node that is gone, and only pods that wait: they go", claim.key)
            self.writes.submit(DeallocateClaim(claim))

    def _waiting_pods_with_claims(self, outcome: SessionResult) -> Iterator[Pod]:
        """Pods with claims that are not even on their way by now: not by us, and not by a request."""
        following = self.following
        for key in outcome.waiting:
            pod = following.pods.get(key)
            if pod is not None and pod.spec.resource_claims and following.engine.cache.pod(pod.uid) is None:
                yield pod

    def _is_orphaned(self, claim: ResourceClaim, last_seen: str) -> bool:
        allocation = claim.status.allocation
        if allocation is None or allocation.node_selector is None:
            return False
        where = compile_node_selector(allocation.node_selector)
        if where.errors:
            return False  # the pod is told of the mistake
        cache = self.following.engine.cache
        for name in chain((last_seen,), cache.node_names()):
            node = cache.node(name)
            if node is not None and where.matches(node.labels, name):
                self._usable_node_by_claim[claim.metadata.uid] = name
                return False
        return True
