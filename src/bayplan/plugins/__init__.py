"""kube-scheduler's plugins, one a file, and the registry of all of them."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from bayplan.framework.registry import Registry

_SHIPPED = (
    ("scheduling_gates", "SchedulingGates"),
    ("priority_sort", "PrioritySort"),
    ("node_unschedulable", "NodeUnschedulable"),
    ("node_name", "NodeName"),
    ("taint_toleration", "TaintToleration"),
    ("node_affinity", "NodeAffinity"),
    ("node_ports", "NodePorts"),
    ("node_resources_fit", "NodeResourcesFit"),
    ("volume_restrictions", "VolumeRestrictions"),
    ("node_volume_limits", "NodeVolumeLimits"),
    ("volume_binding", "VolumeBinding"),
    ("volume_zone", "VolumeZone"),
    ("pod_topology_spread", "PodTopologySpread"),
    ("inter_pod_affinity", "InterPodAffinity"),
    ("dynamic_resources", "DynamicResources"),
    ("default_preemption", "DefaultPreemption"),
    ("node_resources_balanced_allocation", "NodeResourcesBalancedAllocation"),
    ("image_locality", "ImageLocality"),
    ("default_binder", "DefaultBinder"),
    ("node_declared_features", "NodeDeclaredFeatures"),
    ("gang_scheduling", "GangScheduling"),
    ("topology_placement_generator", "TopologyPlacementGenerator"),
    ("pod_group_pods_count", "PodGroupPodsCount"),
)


def default_plugins() -> Registry:
    """Every plugin we ship, in the order of the default profile; the last three are on by name only."""
    there = [(module, name) for module, name in _SHIPPED if find_spec(f"bayplan.plugins.{module}")]
    return Registry.of(*(getattr(import_module(f"bayplan.plugins.{module}"), name) for module, name in there))
