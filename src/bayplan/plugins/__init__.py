"""The plugins of kube-scheduler, one module or package each, and the registry of all of them.

Importing this package registers nothing: `default_plugins()` returns the registry, which the caller may extend.
"""

from __future__ import annotations

from bayplan.framework.runtime.registry import Registry
from bayplan.plugins.bind_request_binder import BindRequestBinder
from bayplan.plugins.default_binder import DefaultBinder
from bayplan.plugins.default_preemption.plugin import DefaultPreemption
from bayplan.plugins.dynamic_resources.plugin import DynamicResources
from bayplan.plugins.gang_scheduling import GangScheduling
from bayplan.plugins.image_locality import ImageLocality
from bayplan.plugins.inter_pod_affinity.plugin import InterPodAffinity
from bayplan.plugins.node_affinity.plugin import NodeAffinity
from bayplan.plugins.node_declared_features import NodeDeclaredFeatures
from bayplan.plugins.node_name import NodeName
from bayplan.plugins.node_ports import NodePorts
from bayplan.plugins.node_resources.balanced_allocation import NodeResourcesBalancedAllocation
from bayplan.plugins.node_resources.fit import NodeResourcesFit
from bayplan.plugins.node_unschedulable import NodeUnschedulable
from bayplan.plugins.node_volume_limits.plugin import NodeVolumeLimits
from bayplan.plugins.pod_group_pods_count import PodGroupPodsCount
from bayplan.plugins.pod_topology_spread.plugin import PodTopologySpread
from bayplan.plugins.priority_sort import PrioritySort
from bayplan.plugins.scheduling_gates import SchedulingGates
from bayplan.plugins.taint_toleration import TaintToleration
from bayplan.plugins.topology_placement_generator import TopologyPlacementGenerator
from bayplan.plugins.volume_binding.plugin import VolumeBinding
from bayplan.plugins.volume_restrictions import VolumeRestrictions
from bayplan.plugins.volume_zone import VolumeZone


def default_plugins() -> Registry:
    """Return every shipped plugin, in the order of the default profile. The last four must be enabled by name."""
    return Registry.of(
        SchedulingGates,
        PrioritySort,
        NodeUnschedulable,
        NodeName,
        TaintToleration,
        NodeAffinity,
        NodePorts,
        NodeResourcesFit,
        VolumeRestrictions,
        NodeVolumeLimits,
        VolumeBinding,
        VolumeZone,
        PodTopologySpread,
        InterPodAffinity,
        DynamicResources,
        DefaultPreemption,
        NodeResourcesBalancedAllocation,
        ImageLocality,
        DefaultBinder,
        NodeDeclaredFeatures,
        GangScheduling,
        TopologyPlacementGenerator,
        PodGroupPodsCount,
        BindRequestBinder,
    )
