"""The registry of shipped plugins, and the default profile."""

from __future__ import annotations

import pytest

from bayplan.config.defaults import DEFAULT_PLUGINS
from bayplan.config.load import load_default
from bayplan.config.model import MULTI_POINT
from bayplan.framework.api.extension_points import FILTER, PERMIT, PRE_ENQUEUE, PRE_FILTER, RESERVE
from bayplan.framework.runtime.profile import Profile, build_profile
from bayplan.plugins import default_plugins
from bayplan.plugins.args_kinds import ARGS_KINDS
from bayplan.plugins.gang_scheduling import GangScheduling
from support.builders.framework import FakeHandle

BY_NAME_ONLY = ["GangScheduling", "TopologyPlacementGenerator", "PodGroupPodsCount", "BindRequestBinder"]


def default_profile() -> Profile:
    (config,) = load_default(ARGS_KINDS).profiles
    return build_profile(config, default_plugins(), FakeHandle())


def test_the_registry_has_the_default_profile_in_its_order_and_some_more() -> None:
    enabled = [ref.name for ref in DEFAULT_PLUGINS.at(MULTI_POINT).enabled]
    assert [entry.name for entry in default_plugins()] == enabled + BY_NAME_ONLY


def test_every_plugin_knows_its_arguments() -> None:
    assert default_plugins().args_kinds == dict(ARGS_KINDS)


@pytest.mark.parametrize(
    ("point", "names"),
    [
        (
            "preFilter",
            (
                "NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone "
                "PodTopologySpread InterPodAffinity DynamicResources NodeDeclaredFeatures"
            ),
        ),
        (
            "filter",
            (
                "NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions "
                "NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity DynamicResources "
                "NodeDeclaredFeatures"
            ),
        ),
        ("postFilter", "DynamicResources DefaultPreemption"),
        (
            "preScore",
            (
                "TaintToleration NodeAffinity NodeResourcesFit VolumeBinding PodTopologySpread InterPodAffinity "
                "NodeResourcesBalancedAllocation"
            ),
        ),
        (
            "score",
            (
                "TaintToleration:3 NodeAffinity:2 NodeResourcesFit:1 VolumeBinding:1 PodTopologySpread:2 "
                "InterPodAffinity:2 DynamicResources:2 NodeResourcesBalancedAllocation:1 ImageLocality:1"
            ),
        ),
        ("reserve", "VolumeBinding DynamicResources"),
        ("preBind", "VolumeBinding DynamicResources"),
        ("bind", "DefaultBinder"),
        ("preEnqueue", "SchedulingGates DynamicResources DefaultPreemption"),
        ("queueSort", "PrioritySort"),
        ("permit", ""),
        ("postBind", ""),
        ("placementGenerate", ""),
        ("placementScore", ""),
    ],
)
def test_the_default_profile(point: str, names: str) -> None:
    assert default_profile().describe().get(point, []) == names.split()


def test_plugins_that_can_reject_register_events() -> None:
    points = (PRE_ENQUEUE, PRE_FILTER, FILTER, RESERVE, PERMIT)
    handle = FakeHandle()
    plugins = [*default_profile().instances.values(), GangScheduling(handle)]
    rejecting = [plugin for plugin in plugins if any(point.extended_by(plugin) for point in points)]
    assert [plugin.name for plugin in rejecting if not plugin.events_to_register] == []
