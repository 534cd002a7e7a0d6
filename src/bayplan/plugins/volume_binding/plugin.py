"""Finds volumes for the pod's claims on each node, and binds or provisions them.

PreFilter classifies the claims, Filter checks nodes, Reserve assumes the decision in memory, and PreBind writes it and
waits for the volume controller. Bound volumes are compared with the label columns of all nodes at once. Unbound claims
with WaitForFirstConsumer are decided once for all nodes with equal relevant labels: a few decisions for zonal volumes,
one for each remaining node for local volumes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from bayplan.errors import BayplanError
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.events import (
    ActionType,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    no_hint_key,
    queue_hint_if,
)
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import PreBindPreFlightResult, Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.framework.api.status import SKIP, Code, Status, error, unresolvable
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import CsiDriver, CsiNode, CsiStorageCapacity, PersistentVolumeClaim, StorageClass
from bayplan.plugins.volume_binding import args as volume_binding_args
from bayplan.plugins.volume_binding.args import VolumeBindingArgs
from bayplan.plugins.volume_binding.row_filter import (
    RowRejections,
    conjunctions,
    decide_delayed_claims,
    decide_single_delayed_claim,
    where_any,
)
from bayplan.snapshot import BoolVector, IntVector, NodeTable
from bayplan.volumes.assumptions import VolumeBindingStage
from bayplan.volumes.bind_pod_volumes import bind_api_update, wait_until_bound
from bayplan.volumes.binding import AFFINITY_CONFLICT, VOLUME_MISSING, BoundVolume, PodVolumes, VolumeFinder
from bayplan.volumes.claims import ClaimNames, all_bound, claim_uses, claims_error, classify_claims, used_claims
from bayplan.volumes.csi import MIGRATED_PLUGINS, migrated_on
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.lookup import RevisionCache, VolumeLookup
from bayplan.volumes.volume_intents import assume_pod_volumes, revert_assumed_pod_volumes
from bayplan.volumes.volume_matcher import largest_volume

UNBOUND_IMMEDIATE = "pod has unbound immediate PersistentVolumeClaims"
NO_STATE = "not found"


@dataclass(slots=True)
class VolumeBindingState:
    """The pod's volumes in this attempt. Clones share it, because it does not depend on other pods."""

    finder: VolumeFinder | None = None
    filtered: bool = False  # a profile without this Filter has nothing to reserve or bind
    all_bound: bool = False
    node_name: str = ""
    info: PodVolumes | None = None  # the decision for `node_name`, which is then assumed and written


STATE: StateKey[VolumeBindingState] = StateKey("VolumeBinding")


def hint_on_storage_class_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A class was added or its allowed topologies changed."""
    assert isinstance(new, StorageClass)
    return queue_hint_if(not isinstance(old, StorageClass) or old.allowed_topologies != new.allowed_topologies)


def hint_on_claim_change(claims: ClaimNames, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    assert isinstance(new, PersistentVolumeClaim)
    return queue_hint_if(claims.include(new))


def hint_on_csi_node_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A CSINode was added or its migrated plugins changed."""
    assert isinstance(new, CsiNode)
    if not isinstance(old, CsiNode):
        return QueueingHint.QUEUE
    before, after = (node.metadata.annotations.get(MIGRATED_PLUGINS, "") for node in (old, new))
    return queue_hint_if(before != after)


def inline_drivers(pod: Pod) -> frozenset[str]:
    return frozenset(volume.csi.driver for volume in pod.spec.volumes if volume.csi is not None)


def hint_on_csi_driver_change(drivers: frozenset[str], old: KubeObject | None, new: KubeObject | None) -> QueueingHint:
    """A driver stopped publishing capacities. Checked for inline CSI volumes only, as in kube-scheduler."""
    assert isinstance(old, CsiDriver)
    assert isinstance(new, CsiDriver)
    capacity_disabled = bool(old.spec.storage_capacity) and not new.spec.storage_capacity
    return queue_hint_if(capacity_disabled and new.name in drivers)


def hint_on_capacity_change(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    """A storage capacity was added, or allows larger volumes than before."""
    assert isinstance(new, CsiStorageCapacity)
    if not isinstance(old, CsiStorageCapacity):
        return QueueingHint.QUEUE
    before, after = largest_volume(old), largest_volume(new)
    return queue_hint_if(after is not None and (before is None or after.value() > before.value()))


class VolumeBinding:
    """Finds or provisions volumes for the pod's claims on the selected node."""

    name = "VolumeBinding"
    traits = PluginTraits(
        depends_on=row_local, looks_at_pods=False, loops_over_rows=True, reserves_only_filtered_pods=True
    )
    ARGS = volume_binding_args.ARGS
    events_to_register = (
        ClusterEventWithHint(
            EventResource.STORAGE_CLASS,
            ActionType.ADD | ActionType.UPDATE,
            hint_on_storage_class_change,
            hint_key=no_hint_key,
        ),
        ClusterEventWithHint.with_hint_key(
            EventResource.PERSISTENT_VOLUME_CLAIM, ActionType.ADD | ActionType.UPDATE, used_claims, hint_on_claim_change
        ),
        ClusterEventWithHint(EventResource.PERSISTENT_VOLUME, ActionType.ADD | ActionType.UPDATE),
        ClusterEventWithHint(EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_LABEL),
        ClusterEventWithHint(
            EventResource.CSI_NODE, ActionType.ADD | ActionType.UPDATE, hint_on_csi_node_change, hint_key=no_hint_key
        ),
        ClusterEventWithHint.with_hint_key(
            EventResource.CSI_DRIVER, ActionType.UPDATE, inline_drivers, hint_on_csi_driver_change
        ),
        ClusterEventWithHint(
            EventResource.CSI_STORAGE_CAPACITY,
            ActionType.ADD | ActionType.UPDATE,
            hint_on_capacity_change,
            hint_key=no_hint_key,
        ),
    )

    def __init__(self, args: VolumeBindingArgs, handle: Handle) -> None:
        self._timeout_s = float(args.bind_timeout_seconds)
        self._handle = handle
        self._lookup: VolumeLookup = handle.catalog
        self._migrated = RevisionCache(self._lookup, CsiNode, _nodes_by_migrated_plugin)

    @classmethod
    def factory(cls, args: VolumeBindingArgs, handle: Handle) -> VolumeBinding:
        return cls(args, handle)

    def signature(self, pod: Pod) -> Hashable | None:
        """A pod without claims has no dependency; otherwise answers depend on claims, volumes and assumptions."""
        return None if any(True for _ in claim_uses(pod)) else ()

    def pre_filter(self, cycle: Cycle) -> Status | None:
        reason = claims_error(cycle.pod, self._lookup)
        if reason is not None:
            return unresolvable(reason)
        if not any(True for _ in claim_uses(cycle.pod)):
            cycle.put(STATE, VolumeBindingState(all_bound=True))
            return SKIP
        assumptions = self._handle.volumes
        try:
            claims = classify_claims(cycle.pod, assumptions.claims, self._lookup)
        except VolumeError as fault:
            return error(str(fault))
        if claims.immediate:
            return unresolvable(UNBOUND_IMMEDIATE)
        cycle.put(STATE, VolumeBindingState(VolumeFinder(claims, assumptions, self._lookup)))
        return None

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        state = cycle.find(STATE)
        if state is None or state.finder is None:
            yield Rejection.from_error(nodes, NO_STATE)
            return
        state.filtered = True
        row_rejections = RowRejections(len(nodes))
        self._check_bound_claims(state.finder, nodes, row_rejections)
        single_claim = state.finder.only_delayed_claims
        if single_claim is not None:
            decide_single_delayed_claim(*single_claim, nodes, row_rejections)
        elif state.finder.waits:
            decide_delayed_claims(state.finder, nodes, row_rejections)
        yield from row_rejections.rejections()
        # A shared evaluation stops at the first error and evaluates the pod alone: that run counts the failure.
        if row_rejections.error_rows.any():
            self._handle.volumes.on_failure(VolumeBindingStage.FIND)

    def _check_bound_claims(self, finder: VolumeFinder, nodes: NodeTable, row_rejections: RowRejections) -> None:
        """Reject rows by the first bound volume that is not reachable."""
        undecided = np.ones(len(nodes), dtype=np.bool_)
        for volume in finder.bound:
            if volume.missing:
                row_rejections.add(VOLUME_MISSING, undecided)
                return
            reachable = self._check_reachable(volume, nodes, undecided, row_rejections)
            row_rejections.add(AFFINITY_CONFLICT, undecided & ~reachable & ~row_rejections.error_rows)
            undecided = undecided & reachable

    def _check_reachable(
        self, volume: BoundVolume, nodes: NodeTable, undecided: BoolVector, row_rejections: RowRejections
    ) -> BoolVector:
        """Return the rows from which a volume is reachable."""
        reachable = where_any(nodes, conjunctions([volume.nodes(migrated=False)]))
        if volume.plugin is None:
            return reachable
        migrated = nodes.where_named(self._migrated.get().get(volume.plugin.name, ())) & undecided
        if not migrated.any():
            return reachable
        try:
            return np.where(migrated, where_any(nodes, conjunctions([volume.nodes(migrated=True)])), reachable)
        except VolumeError as fault:
            row_rejections.add_error(str(fault), migrated)
            return reachable & ~migrated

    def pre_score(self, cycle: Cycle, nodes: NodeTable) -> Status:  # noqa: ARG002
        """Storage capacity is not scored: the feature gate StorageCapacityScoring is disabled in this version."""
        return SKIP

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:  # noqa: ARG002
        return np.zeros(len(nodes), dtype=np.int64)

    def reserve(self, cycle: Cycle, node_name: str) -> Status | None:
        state = cycle.find(STATE)
        if state is None:
            return error(NO_STATE)
        assumptions = self._handle.volumes
        if state.finder is None or not state.filtered or all_bound(cycle.pod, assumptions.claims):
            state.all_bound = True
            return None
        columns = cycle.snapshot.nodes
        try:
            _, state.info = state.finder.find_pod_volumes(node_name, columns.nodes[columns.index[node_name]].labels)
            state.node_name = node_name
            state.info = assume_pod_volumes(state.info, node_name, assumptions)
        except VolumeError as fault:
            assumptions.on_failure(VolumeBindingStage.ASSUME)
            return error(str(fault))
        return None

    def unreserve(self, cycle: Cycle, node_name: str) -> None:
        state = cycle.find(STATE)
        if state is not None and state.info is not None and state.node_name == node_name:
            revert_assumed_pod_volumes(state.info, self._handle.volumes)

    def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> PreBindPreFlightResult | Status:
        state = cycle.find(STATE)
        if state is None:
            return error(NO_STATE)
        if state.all_bound:
            return SKIP
        if state.info is None or state.node_name != node_name:
            return error(f'no pod volume found for node "{node_name}"')
        return PreBindPreFlightResult(allow_parallel=True)

    async def pre_bind(self, cycle: Cycle, node_name: str) -> Status | None:
        preflight = self.pre_bind_preflight(cycle, node_name)
        if isinstance(preflight, Status):
            return None if preflight.code is Code.SKIP else preflight
        try:
            written = await self._write_bindings(cycle.get(STATE))
            await self._wait_until_bound(cycle, node_name, written)
        except BayplanError as fault:
            self._handle.volumes.on_failure(VolumeBindingStage.BIND)
            return error(str(fault))
        return None

    async def _write_bindings(self, state: VolumeBindingState) -> PodVolumes:
        """Write the assumed bindings. The state stores what must be reverted after a failure."""
        assert state.info is not None

        def record_info(info: PodVolumes) -> None:
            state.info = info

        return await bind_api_update(state.info, self._handle.writes.perform, self._handle.volumes, record_info)

    async def _wait_until_bound(self, cycle: Cycle, node_name: str, written: PodVolumes) -> None:
        """Wait until the volume controller and the provisioners have bound the volumes."""

        def read_node() -> tuple[Node | None, CsiNode | None]:
            columns = cycle.snapshot.nodes
            row = columns.index.get(node_name)
            return columns.nodes[row] if row is not None else None, self._lookup.csi_nodes.get(node_name)

        await wait_until_bound(
            cycle.pod,
            node_name,
            written,
            self._handle.writes.perform,
            self._handle.volumes,
            read_node=read_node,
            timeout_s=self._timeout_s,
        )


def _nodes_by_migrated_plugin(lookup: VolumeLookup) -> dict[str, set[str]]:
    """Return for each in-tree plugin the nodes on which it is migrated to a CSI driver."""
    nodes: dict[str, set[str]] = {}
    for name, csi_node in lookup.csi_nodes.items():
        for plugin in migrated_on(csi_node):
            nodes.setdefault(plugin, set()).add(name)
    return nodes
