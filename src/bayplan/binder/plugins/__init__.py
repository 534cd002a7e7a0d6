"""Plugins of the binder, with their default settings."""

from __future__ import annotations

from bayplan.binder.plugin_registry import BinderPlugins, PluginChoice
from bayplan.binder.plugins.dynamic_resources import DynamicResourcesBinderPlugin
from bayplan.binder.plugins.gpu_sharing import GpuSharingBinderPlugin
from bayplan.binder.plugins.hami_core import HamiCoreBinderPlugin
from bayplan.binder.plugins.volume_binding import VolumeBindingBinderPlugin

_DEFAULTS = {
    VolumeBindingBinderPlugin.name: PluginChoice(priority=300, arguments={"bindTimeoutSeconds": 120}),
    DynamicResourcesBinderPlugin.name: PluginChoice(priority=200, arguments={"bindTimeoutSeconds": 120}),
    GpuSharingBinderPlugin.name: PluginChoice(priority=100, arguments={"cdiEnabled": False}),
    HamiCoreBinderPlugin.name: PluginChoice(enabled=False, priority=50),
}


def default_binder_plugins() -> BinderPlugins:
    """Every shipped plugin."""
    return BinderPlugins({}, _DEFAULTS).with_plugins(
        VolumeBindingBinderPlugin, DynamicResourcesBinderPlugin, GpuSharingBinderPlugin, HamiCoreBinderPlugin
    )
