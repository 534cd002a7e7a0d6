"""Reads configurations, plugins and objects from files for the commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bayplan.batch.actions import default_actions
from bayplan.batch.config.scheduler_conf import BatchConfiguration
from bayplan.batch.config.scheduler_conf import load_conf as load_batch
from bayplan.batch.config.scheduler_conf import load_default_conf as load_default_batch
from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.registry import ActionSet, BatchPluginSet
from bayplan.cache import Cache
from bayplan.config.feature_gates import FeatureGates
from bayplan.config.load import load, load_default
from bayplan.config.model import Configuration
from bayplan.framework.runtime.plugin_discovery import (
    PluginKind,
    file_versions,
    installed_plugins,
    plugins_in_folder,
    with_installed_plugins,
    with_plugins_from,
)
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Pod
from bayplan.objects.defaults import with_all_defaults
from bayplan.objects.manifests import load_manifests
from bayplan.objects.meta import KubeObject
from bayplan.plugins import default_plugins
from bayplan.plugins.gpu import gpu_policies
from bayplan.plugins.gpu_sharing import GpuSharing
from bayplan.scheduler.live.plugin_reloader import PluginSource


def known_plugins(folders: Iterable[Path] = (), *, trust_writable: bool = False) -> Registry:
    """Every plugin that a configuration may enable: shipped, installed, and from folders."""
    registry = with_installed_plugins(default_plugins().with_plugins(*gpu_policies(), GpuSharing))
    for folder in folders:
        registry = with_plugins_from(registry, folder, trust_writable=trust_writable)
    return registry


def known_batch_plugins(folders: Iterable[Path] = (), *, trust_writable: bool = False) -> BatchPluginSet:
    """Every plugin that a tier may name: shipped, installed, and from folders."""
    plugins = default_batch_plugins().with_plugins(*installed_plugins(PluginKind.BATCH_PLUGIN))
    for folder in folders:
        plugins = plugins.with_plugins(
            *plugins_in_folder(folder, PluginKind.BATCH_PLUGIN, trust_writable=trust_writable)
        )
    return plugins


def known_actions(folders: Iterable[Path] = (), *, trust_writable: bool = False) -> ActionSet:
    """Every action that a session can run: shipped, installed, and from folders. A new set, because actions have
    state."""
    actions = default_actions().with_classes(*installed_plugins(PluginKind.ACTION))
    for folder in folders:
        actions = actions.with_classes(*plugins_in_folder(folder, PluginKind.ACTION, trust_writable=trust_writable))
    return actions


def plugin_source(
    text: str | None, folders: Sequence[Path], *, trust_writable: bool = False, features: FeatureGates | None = None
) -> PluginSource:
    """The plugins of folders for a configuration text; they are loaded again when their files change."""
    return PluginSource(
        lambda: file_versions(folders),
        lambda: known_plugins(folders, trust_writable=trust_writable),
        lambda registry: configured(text, registry, features),
    )


def configured(text: str | None, registry: Registry, features: FeatureGates | None = None) -> Configuration:
    """A configuration from the text of a file, or the default one. `features`: the feature gates."""
    kinds = registry.args_kinds
    gates = [name for name, _, on in (features or FeatureGates()).all() if on]
    return load(text, args_kinds=kinds, gates=gates) if text is not None else load_default(kinds, gates)


def batch_configured(text: str | None, actions: ActionSet | None = None) -> BatchConfiguration:
    """The batch configuration from the text of a file, or the built-in one. `actions`: those that it may name."""
    if text is None:
        return load_default_batch()
    return load_batch(text) if actions is None else load_batch(text, tuple(actions))


def read_objects(paths: Iterable[Path]) -> list[KubeObject]:
    """The objects of files and folders, with the defaults of an API server.

    Documents of kinds that the scheduler ignores are skipped; an object that the API server would reject is an
    `ObjectError` with its place.
    """
    loaded = load_manifests(paths)
    return list(with_all_defaults(loaded.objects, loaded.places))


def filled_cache(objects: Iterable[KubeObject]) -> Cache:
    """A cache with the objects. Pods without a node are left out; the scheduler adds them."""
    cache = Cache()
    for item in objects:
        if not isinstance(item, Pod) or item.status.phase not in ("Succeeded", "Failed"):
            cache.upsert(item)
    return cache
