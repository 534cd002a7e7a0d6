"""Filters nodes by conflicts with the users of the same volumes.

Two rules: some disks (GCE PD, EBS, iSCSI, RBD) cannot be mounted twice on a node, and a ReadWriteOncePod claim has one
user in the whole cluster. Cost: nothing for pods without such volumes; the second rule needs a few lookups. The first
rule loops over the pods of the remaining rows (`loops_over_rows`), because there are no columns of in-tree disks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint, queue_hint_if
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.framework.api.status import SKIP, Code, Status, unresolvable
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import PersistentVolumeClaim
from bayplan.snapshot import BoolVector, NodeInfo, NodeTable, PodInfo
from bayplan.volumes.claims import ClaimNames, claims_by_name, named_claims
from bayplan.volumes.conflicts import conflicts_with, has_conflicting_disk_type
from bayplan.volumes.errors import claim_not_found
from bayplan.volumes.lookup import claim_key

DISK_CONFLICT = "node(s) had no available disk"
CLAIM_IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
READ_WRITE_ONCE_POD = "ReadWriteOncePod"


@dataclass(frozen=True, slots=True)
class ExclusiveClaims:
    """The pod's ReadWriteOncePod claims by name, and the number of their uses by pods on nodes."""

    names: frozenset[str]
    uses: int

    def after(self, info: PodInfo, sign: int) -> ExclusiveClaims:
        """Return the state with one pod more or less.

        A claim of the same name in another namespace counts, as upstream.
        """
        shared = sum(name in self.names for name in named_claims(info.pod))
        return replace(self, uses=self.uses + sign * shared) if shared else self


STATE: StateKey[ExclusiveClaims] = StateKey("PreFilterVolumeRestrictions")


def hint_on_pod_delete(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A pod was deleted that may have used a disk or claim of this pod."""
    assert isinstance(old, Pod)
    if old.namespace != pod.namespace:
        return QueueingHint.SKIP
    return queue_hint_if(conflicts_with(pod, (old,)) or not set(named_claims(pod)).isdisjoint(named_claims(old)))


def claims_hint_key(pod: Pod) -> ClaimNames | None:
    """Return the claims of a pod without a restricted disk; None otherwise: the hint then reads the whole pod."""
    return None if has_conflicting_disk_type(pod) else claims_by_name(pod)


def hint_on_claim_add(claims: ClaimNames, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A claim was added; queue if the pod uses it."""
    assert isinstance(new, PersistentVolumeClaim)
    return queue_hint_if(claims.include(new))


class VolumeRestrictions:
    """Keeps pods off volumes that another pod uses exclusively."""

    name = "VolumeRestrictions"
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False, loops_over_rows=True)
    events_to_register = (
        ClusterEventWithHint(EventResource.POD, ActionType.DELETE, hint_on_pod_delete, hint_key=claims_hint_key),
        ClusterEventWithHint(EventResource.NODE, ActionType.ADD),
        ClusterEventWithHint.with_hint_key(
            EventResource.PERSISTENT_VOLUME_CLAIM, ActionType.ADD, claims_by_name, hint_on_claim_add
        ),
    )

    def __init__(self, handle: Handle) -> None:
        self._catalog = handle.catalog

    @classmethod
    def factory(cls, args: object, handle: Handle) -> VolumeRestrictions:  # noqa: ARG003
        return cls(handle)

    def signature(self, pod: Pod) -> Hashable | None:
        """A pod without claims and disks has no dependency; for any other pod answers depend on more than the pod."""
        return None if has_conflicting_disk_type(pod) or any(True for _ in named_claims(pod)) else ()

    def pre_filter(self, cycle: Cycle) -> Status | None:
        exclusive: set[str] = set()
        for name in named_claims(cycle.pod):
            claim = self._catalog.persistent_volume_claims.get(claim_key(cycle.pod.namespace, name))
            if claim is None:
                return unresolvable(claim_not_found(name))
            if READ_WRITE_ONCE_POD in claim.spec.access_modes:
                exclusive.add(claim.name)
        users = cycle.snapshot.pods.claim_users
        uses = sum(claim_key(cycle.pod.namespace, name) in users for name in exclusive)
        if not uses and not has_conflicting_disk_type(cycle.pod):
            return SKIP
        cycle.put(STATE, ExclusiveClaims(frozenset(exclusive), uses))
        return None

    def add_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> Status | None:  # noqa: ARG002
        return self._count(cycle, info, 1)

    def remove_pod(self, cycle: Cycle, info: PodInfo, node: NodeInfo) -> Status | None:  # noqa: ARG002
        return self._count(cycle, info, -1)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        conflict = self._disk_conflicts(cycle.pod, nodes)
        yield Rejection(conflict, DISK_CONFLICT)
        state = cycle.find(STATE)
        if state is None:
            yield Rejection(~conflict, _missing_state_error(), code=Code.ERROR)
        elif state.uses > 0:
            yield Rejection(~conflict, CLAIM_IN_USE)

    @staticmethod
    def _disk_conflicts(pod: Pod, nodes: NodeTable) -> BoolVector:
        if not has_conflicting_disk_type(pod):
            return np.zeros(len(nodes), dtype=np.bool_)
        answers = (conflicts_with(pod, (info.pod for info in node.pods)) for node in nodes)
        return np.fromiter(answers, dtype=np.bool_, count=len(nodes))

    @staticmethod
    def _count(cycle: Cycle, info: PodInfo, sign: int) -> Status | None:
        state = cycle.find(STATE)
        if state is None:
            return Status(Code.ERROR, (_missing_state_error(),))
        cycle.put(STATE, state.after(info, sign))
        return None


def _missing_state_error() -> str:
    return f'cannot read "{STATE.name}" from cycleState'
