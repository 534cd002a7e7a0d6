"""Filters nodes by the number of volumes that they can attach.

Drivers publish in the CSINode how many volumes a node can attach. Cost: nothing for pods without claims or in-tree
disks. For other pods the volumes of the pod are determined once. The volumes shared by the pods of a node depend on
claims and volumes that change without the node, so there is no column of exact counts. There is a column of upper
bounds (`attach_bounds`); only remaining rows near a limit are counted in a loop (`loops_over_rows`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.events import (
    ActionType,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    no_hint_key,
    queue_hint_if,
)
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.framework.api.status import SKIP, Code, Status
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import CsiNode, PersistentVolumeClaim, VolumeAttachment
from bayplan.plugins.node_volume_limits.attach_bounds import AttachBounds
from bayplan.snapshot import BoolVector, NodeTable
from bayplan.volumes.claims import ClaimNames, used_claims
from bayplan.volumes.csi import inline_handle, inline_plugin
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.limits import (
    AttachableVolume,
    Attached,
    MissingClaimError,
    attach_limits,
    attachable_volumes,
    attached_objects,
    attached_volumes,
    exceeds,
    is_attachable,
    new_volumes,
)
from bayplan.volumes.lookup import VolumeLookup

REASON = "node(s) exceed max volume count"


def hint_on_csi_node_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A driver can attach more volumes than before. A driver without a number counts as 0."""
    assert isinstance(old, CsiNode)
    assert isinstance(new, CsiNode)
    before = attach_limits(old)
    return queue_hint_if(any(count > before.get(driver, 0) for driver, count in attach_limits(new).items()))


def hint_on_pod_delete(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A pod with an attachable volume was deleted that was on a node or nominated to one."""
    assert isinstance(old, Pod)
    placed = old.spec.node_name or old.status.nominated_node_name
    return queue_hint_if(bool(placed) and any(is_attachable(volume) for volume in old.spec.volumes))


def hint_on_claim_add(claims: ClaimNames, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    assert isinstance(new, PersistentVolumeClaim)
    return queue_hint_if(claims.include(new))


def has_claims(pod: Pod) -> bool | None:
    """Return whether a volume names a claim; None for a pod with in-tree disks, which hints read as a whole."""
    if any(inline_plugin(volume) is not None for volume in pod.spec.volumes):
        return None
    return any(volume.persistent_volume_claim is not None for volume in pod.spec.volumes)


def hint_on_attachment_delete(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A volume was detached. It matters for claims, and for in-tree disks of the same driver."""
    assert isinstance(old, VolumeAttachment)
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            return QueueingHint.QUEUE
        plugin = inline_plugin(volume)
        if plugin is not None and plugin.migrated:
            inline_handle(volume)  # raises for a disk without a translation, which counts as Queue
        if plugin is not None and plugin.driver == old.spec.attacher:
            return QueueingHint.QUEUE
    return QueueingHint.SKIP


class NodeVolumeLimits:
    """Keeps nodes within the number of volumes that their drivers can attach."""

    name = "NodeVolumeLimits"
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False, loops_over_rows=True)
    events_to_register = (
        ClusterEventWithHint(EventResource.CSI_NODE, ActionType.ADD),
        ClusterEventWithHint(EventResource.CSI_NODE, ActionType.UPDATE, hint_on_csi_node_change, hint_key=no_hint_key),
        ClusterEventWithHint(EventResource.POD, ActionType.DELETE, hint_on_pod_delete, hint_key=no_hint_key),
        ClusterEventWithHint.with_hint_key(
            EventResource.PERSISTENT_VOLUME_CLAIM, ActionType.ADD, used_claims, hint_on_claim_add
        ),
        ClusterEventWithHint(
            EventResource.VOLUME_ATTACHMENT, ActionType.DELETE, hint_on_attachment_delete, hint_key=has_claims
        ),
    )

    def __init__(self, handle: Handle) -> None:
        self._lookup: VolumeLookup = handle.catalog
        self._columns = AttachBounds(self._lookup)

    @classmethod
    def factory(cls, args: object, handle: Handle) -> NodeVolumeLimits:  # noqa: ARG003
        return cls(handle)

    def signature(self, pod: Pod) -> Hashable | None:
        """A pod without attachable volumes has no dependency; otherwise answers depend on claims and volumes."""
        return None if any(is_attachable(volume) for volume in pod.spec.volumes) else ()

    def pre_filter(self, cycle: Cycle) -> Status | None:
        return None if any(is_attachable(volume) for volume in cycle.pod.spec.volumes) else SKIP

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        if not cycle.pod.spec.volumes:
            return
        is_snapshot = nodes.columns is cycle.snapshot.nodes  # false for a fork of a few rows, which has no columns
        if is_snapshot:
            self._columns.update(cycle.snapshot)
            with_csi_node = nodes.column_at_rows(self._columns.with_csi_node)
        else:
            limits = self._columns.limits.get()
            with_csi_node = np.fromiter((name in limits for name in nodes.names), np.bool_, len(nodes))
        for migrated, mask in ((False, ~with_csi_node), (True, with_csi_node)):
            if mask.any():
                yield from self._reject_full_nodes(cycle.pod, nodes, mask, migrated=migrated, is_snapshot=is_snapshot)

    def _reject_full_nodes(
        self, pod: Pod, nodes: NodeTable, mask: BoolVector, *, migrated: bool, is_snapshot: bool
    ) -> Iterator[Rejection]:
        """Yield the rejections among rows that all have a CSINode, or all have none."""
        try:
            new = new_volumes(pod, self._lookup, migrated=migrated)
        except MissingClaimError as missing:
            yield Rejection(mask, str(missing), resolvable=False)
            return
        except VolumeError as fault:
            yield Rejection(mask, str(fault), code=Code.ERROR)
            return
        if not new or not migrated:
            return
        if is_snapshot:
            mask = mask & nodes.column_at_rows(self._columns.needs_counting(set(new.values()), len(new)))
        yield from self._count(new, nodes, mask, is_snapshot=is_snapshot)

    def _count(self, new: Attached, nodes: NodeTable, mask: BoolVector, *, is_snapshot: bool) -> Iterator[Rejection]:
        """Count the attached volumes of these rows exactly."""
        full_rows = np.zeros(len(nodes), dtype=np.bool_)
        for position in np.flatnonzero(mask).tolist():
            node = nodes[position]
            volumes = (
                self._columns.volumes(node.row) if is_snapshot else attachable_volumes(info.pod for info in node.pods)
            )
            try:
                full_rows[position] = self._is_full(new, node.name, volumes)
            except VolumeError as fault:
                error_rows = np.zeros(len(nodes), dtype=np.bool_)
                error_rows[position] = True
                yield Rejection(error_rows, str(fault), code=Code.ERROR)
        yield Rejection(full_rows, REASON)

    def _is_full(self, new: Attached, node_name: str, volumes: Iterable[AttachableVolume]) -> bool:
        limits = self._columns.limits.get()[node_name]
        if not limits:
            return False
        by_pods = attached_volumes(volumes, self._lookup)
        by_objects = attached_objects(self._columns.attachments.get().get(node_name, ()), self._lookup)
        return exceeds(new, limits, by_pods, by_objects)
