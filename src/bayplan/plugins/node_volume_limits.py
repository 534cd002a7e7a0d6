"""Can the node attach the pod's volumes on top of those that it has?

Drivers publish how many volumes a node can attach in its CSINode. Cost: nothing for pods without claims or in-tree
disks. For the others the pod's own volumes are worked out once; then the rows that are left are walked over
(`per_row`), and only where a limited driver is wanted are the volumes of a node's pods counted: which volumes those
are depends on claims and volumes that change without the node, so there is no column to keep.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from bayplan.framework.cycle import Cycle
from bayplan.framework.events import Action, Cure, Hint, Resource, queue_if
from bayplan.framework.handle import Handle
from bayplan.framework.plugin import Rejection
from bayplan.framework.status import SKIP, Code, Status
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import CsiNode, PersistentVolumeClaim, VolumeAttachment
from bayplan.snapshot import BoolVector, NodeTable, NodeView
from bayplan.volumes.claims import uses_claim
from bayplan.volumes.csi import inline_handle, inline_plugin
from bayplan.volumes.faults import VolumeError
from bayplan.volumes.limits import (
    Attached,
    MissingClaimError,
    attach_limits,
    attached_objects,
    attached_volumes,
    attachments_by_node,
    counts,
    exceeds,
    new_volumes,
)
from bayplan.volumes.lookup import Derived, VolumeLookup

REASON = "node(s) exceed max volume count"


def limit_raised(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> Hint:  # noqa: ARG001
    """Some driver can attach more than before; one without a number counts as none."""
    assert isinstance(old, CsiNode)
    assert isinstance(new, CsiNode)
    before = attach_limits(old)
    return queue_if(any(count > before.get(driver, 0) for driver, count in attach_limits(new).items()))


def volumes_released(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> Hint:  # noqa: ARG001
    """A pod went that was, or was about to be, on a node with something attached."""
    assert isinstance(old, Pod)
    placed = old.spec.node_name or old.status.nominated_node_name
    return queue_if(bool(placed) and any(counts(volume) for volume in old.spec.volumes))


def own_claim_added(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> Hint:  # noqa: ARG001
    assert isinstance(new, PersistentVolumeClaim)
    return queue_if(uses_claim(pod, new))


def attachment_gone(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> Hint:  # noqa: ARG001
    """A volume was detached somewhere: of interest to claims, and to in-tree disks of the same driver."""
    assert isinstance(old, VolumeAttachment)
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            return Hint.QUEUE
        plugin = inline_plugin(volume)
        if plugin is not None and plugin.migrated:
            inline_handle(volume)  # raises where the disk has no translation, which is worth another try
        if plugin is not None and plugin.driver == old.spec.attacher:
            return Hint.QUEUE
    return Hint.SKIP


class NodeVolumeLimits:
    """Keeps nodes within the number of volumes that their drivers can attach."""

    name = "NodeVolumeLimits"
    per_row = True
    cured_by = (
        Cure(Resource.CSI_NODE, Action.ADD),
        Cure(Resource.CSI_NODE, Action.UPDATE, limit_raised),
        Cure(Resource.POD, Action.DELETE, volumes_released),
        Cure(Resource.PERSISTENT_VOLUME_CLAIM, Action.ADD, own_claim_added),
        Cure(Resource.VOLUME_ATTACHMENT, Action.DELETE, attachment_gone),
    )

    def __init__(self, handle: Handle) -> None:
        self._lookup: VolumeLookup = handle.catalog
        self._limits = Derived(self._lookup, CsiNode, _limits_by_node)
        self._attachments = Derived(self._lookup, VolumeAttachment, attachments_by_node)

    @classmethod
    def factory(cls, args: object, handle: Handle) -> NodeVolumeLimits:  # noqa: ARG003
        return cls(handle)

    def signature(self, pod: Pod) -> Hashable | None:
        """A pod with nothing to attach is not concerned; otherwise answers depend on claims and volumes."""
        return None if any(counts(volume) for volume in pod.spec.volumes) else ()

    def pre_filter(self, cycle: Cycle) -> Status | None:
        return None if any(counts(volume) for volume in cycle.pod.spec.volumes) else SKIP

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        if not cycle.pod.spec.volumes:
            return
        known = self._limits.get()
        with_csi = np.fromiter((name in known for name in nodes.names), dtype=np.bool_, count=len(nodes))
        for migrated, rows in ((False, ~with_csi), (True, with_csi)):
            if rows.any():
                yield from self._judge(cycle.pod, nodes, rows, migrated=migrated)

    def _judge(self, pod: Pod, nodes: NodeTable, rows: BoolVector, *, migrated: bool) -> Iterator[Rejection]:
        """The rejections among rows that agree in whether they have a CSINode."""
        try:
            new = new_volumes(pod, self._lookup, migrated=migrated)
        except MissingClaimError as missing:
            yield Rejection(rows, str(missing), resolvable=False)
            return
        except VolumeError as fault:
            yield Rejection(rows, str(fault), code=Code.ERROR)
            return
        if new and migrated:
            yield from self._judge_limits(new, nodes, rows)

    def _judge_limits(self, new: Attached, nodes: NodeTable, rows: BoolVector) -> Iterator[Rejection]:
        full = np.zeros(len(nodes), dtype=np.bool_)
        for position in np.flatnonzero(rows).tolist():
            try:
                full[position] = self._is_full(new, nodes[position])
            except VolumeError as fault:
                broken = np.zeros(len(nodes), dtype=np.bool_)
                broken[position] = True
                yield Rejection(broken, str(fault), code=Code.ERROR)
        yield Rejection(full, REASON)

    def _is_full(self, new: Attached, node: NodeView) -> bool:
        limits = self._limits.get()[node.name]
        if not limits:
            return False
        by_pods = attached_volumes((info.pod for info in node.pods), self._lookup)
        by_objects = attached_objects(self._attachments.get().get(node.name, ()), self._lookup)
        return exceeds(new, limits, by_pods, by_objects)


def _limits_by_node(lookup: VolumeLookup) -> dict[str, dict[str, int]]:
    return {name: attach_limits(csi_node) for name, csi_node in lookup.csi_nodes.items()}
