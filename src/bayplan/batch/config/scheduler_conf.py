"""Actions, plugin tiers and arguments of a volcano-scheduler.conf.

Reads the file as Volcano's scheduler does: unknown keys are ignored (with a note), type errors reject the whole
document, and missing flags are on, except `enableHierarchy` and `EnabledClusterOrder`. Called when the engine starts
and each time the file changes; `SchedulerConfLoader` keeps the last valid configuration. Cost: about a millisecond per
load.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bayplan.batch.config.arguments import Arguments
from bayplan.batch.config.conf_decoder import ANY, FLAG, TEXT, ConfListShape, ConfMapShape, ConfStructShape, decode_conf
from bayplan.codec.go_text import go_value
from bayplan.errors import ConfigError, ObjectError

DEFAULT_CONF = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
"""
"""The configuration in force until a file is loaded."""

BUILT_IN_ACTIONS = ("enqueue", "allocate", "backfill", "preempt", "reclaim", "shuffle", "gangpreempt", "gangreclaim")

ENABLE_HIERARCHY = "enableHierarchy"
ENABLED_CLUSTER_ORDER = "EnabledClusterOrder"

DEFAULTED_FLAGS = (
    "enableJobOrder",
    "enableJobReady",
    "enableJobPipelined",
    "enableTaskOrder",
    "enablePreemptable",
    "enableReclaimable",
    "enablePreemptive",
    "enableQueueOrder",
    "enablePredicate",
    "enableBestNode",
    "enableNodeOrder",
    "enableTargetJob",
    "enableReservedNodes",
    "enableJobEnqueued",
    "enabledVictim",
    "enableJobStarving",
    "enabledOverused",
    "enabledAllocatable",
    "enabledHyperNodeOrder",
    "enabledSubJobReady",
    "enabledSubJobPipelined",
    "enabledSubJobOrder",
    "enabledHyperNodeGradient",
)
"""The flags that are on by default, in the file's own spelling, which mixes `enable` and `enabled`."""

FLAGS = (*DEFAULTED_FLAGS, ENABLE_HIERARCHY, ENABLED_CLUSTER_ORDER)
"""Every flag of a plugin. The last two are off by default."""

DOCS_PAGE = "docs/batch-configuration.md"
_NO_ACTION = "failed to find Action"
_HIERARCHY_CONFLICT = "proportion and drf with hierarchy enabled conflicts"

_ARGUMENTS = ConfMapShape("map[string]interface {}", value=ANY)
_PLUGIN = ConfStructShape(
    "conf.PluginOption", fields={"name": TEXT, "arguments": _ARGUMENTS} | dict.fromkeys(FLAGS, FLAG)
)
_TIER = ConfStructShape("conf.Tier", fields={"plugins": ConfListShape("[]conf.PluginOption", item=_PLUGIN)})
_CONFIGURATION = ConfStructShape("conf.Configuration", fields={"name": TEXT, "arguments": _ARGUMENTS})
_DOCUMENT = ConfStructShape(
    "conf.SchedulerConfiguration",
    fields={
        "actions": TEXT,
        "tiers": ConfListShape("[]conf.Tier", item=_TIER),
        "configurations": ConfListShape("[]conf.Configuration", item=_CONFIGURATION),
        "metrics": ConfMapShape("map[string]string", value=TEXT),
    },
)


@dataclass(frozen=True, slots=True)
class PluginOption:
    """A plugin entry of a tier. A missing flag is unset, which a session treats as off."""

    name: str
    flags: Mapping[str, bool] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def enabled(self, key: str) -> bool:
        """Whether the flag is on; unset is off."""
        return self.flags.get(key, False)

    def with_default_flags(self) -> PluginOption:
        """A copy with every missing default flag turned on."""
        return replace(self, flags=dict.fromkeys(DEFAULTED_FLAGS, True) | dict(self.flags))


Tier = tuple[PluginOption, ...]


@dataclass(frozen=True, slots=True)
class ActionConfiguration:
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchConfiguration:
    """The content of a volcano-scheduler.conf, with defaults filled in."""

    actions: tuple[str, ...] = ()
    tiers: tuple[Tier, ...] = ()
    configurations: tuple[ActionConfiguration, ...] = ()
    metrics: Mapping[str, str] | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Keys that Volcano ignores silently: unknown and duplicate keys."""

    @property
    def plugins(self) -> tuple[PluginOption, ...]:
        """The plugins of all tiers, in order."""
        return tuple(plugin for tier in self.tiers for plugin in tier)

    def action_arguments(self, action: str) -> Arguments:
        """The arguments of an action: those of the first entry with its name."""
        found = next((each.arguments for each in self.configurations if each.name == action), {})
        return Arguments(found, owner=action)


def load_conf(text: str, actions: Collection[str] = BUILT_IN_ACTIONS) -> BatchConfiguration:
    """Read a volcano-scheduler.conf; raises `ConfigError`. `actions` are the known action names."""
    try:
        document = decode_conf(text, _DOCUMENT)
    except ObjectError as fault:
        raise ConfigError(str(fault), stage="decoding") from None
    if document.faults:
        lines = "".join(f"\n  {fault}" for fault in document.faults)
        raise ConfigError(f"yaml: unmarshal errors:{lines}", stage="decoding")
    found = document.value
    tiers = tuple(_tier(raw) for raw in found.get("tiers") or ())
    return BatchConfiguration(
        actions=_actions(found.get("actions") or "", actions),
        tiers=tiers,
        configurations=tuple(_configuration(raw or {}) for raw in found.get("configurations") or ()),
        metrics=found.get("metrics"),
        notes=tuple(document.notes),
    )


def load_default_conf() -> BatchConfiguration:
    """The configuration used without a file."""
    return load_conf(DEFAULT_CONF)


def to_conf_text(configuration: BatchConfiguration) -> dict[str, Any]:
    """The configuration as a complete file: every flag is explicit."""
    found: dict[str, Any] = {
        "actions": ", ".join(configuration.actions),
        "tiers": [{"plugins": [_plugin_to_dict(plugin) for plugin in tier]} for tier in configuration.tiers],
    }
    if configuration.configurations:
        found["configurations"] = [
            _arguments_to_dict(each.name, each.arguments) for each in configuration.configurations
        ]
    if configuration.metrics is not None:
        found["metrics"] = dict(configuration.metrics)
    return found


def conf_to_dict(configuration: BatchConfiguration) -> dict[str, Any]:
    """The configuration as data that JSON can represent: tiers as lists of plugins, infinities as strings."""
    found = to_json_value(to_conf_text(configuration))
    return {
        "actions": list(configuration.actions),
        "tiers": [tier["plugins"] for tier in found["tiers"]],
        "configurations": found.get("configurations", []),
        "metrics": found.get("metrics"),
    }


def to_json_value(value: Any) -> Any:
    """A value as JSON can represent it, without infinities and with string keys only."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else go_value(key): to_json_value(each) for key, each in value.items()}
    if isinstance(value, list):
        return [to_json_value(each) for each in value]
    return go_value(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plugin_to_dict(plugin: PluginOption) -> dict[str, Any]:
    flags = {key: plugin.flags[key] for key in FLAGS if key in plugin.flags}
    return {"name": plugin.name, **flags, **_arguments_to_dict(plugin.name, plugin.arguments)}


def _arguments_to_dict(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "arguments": dict(arguments)} if arguments else {"name": name}


def _tier(raw: dict[str, Any] | None) -> Tier:
    plugins = tuple(_plugin(each or {}) for each in (raw or {}).get("plugins") or ())
    hierarchical = any(each.name == "drf" and each.enabled(ENABLE_HIERARCHY) for each in plugins)
    if hierarchical and any(each.name == "proportion" for each in plugins):
        raise ConfigError(_HIERARCHY_CONFLICT, stage="validation")
    return plugins


def _plugin(raw: dict[str, Any]) -> PluginOption:
    flags = {key: raw[key] for key in FLAGS if raw.get(key) is not None}
    return PluginOption(raw.get("name", ""), flags, raw.get("arguments") or {}).with_default_flags()


def _configuration(raw: dict[str, Any]) -> ActionConfiguration:
    return ActionConfiguration(raw.get("name", ""), raw.get("arguments") or {})


def _actions(text: str, known: Collection[str]) -> tuple[str, ...]:
    for name in text.split(","):
        if name.strip() not in known:
            raise ConfigError(f"{_NO_ACTION} {name}", stage="validation")
    return tuple(name.strip() for name in text.split(","))


def suggest_remedy(fault: ConfigError, actions: Collection[str]) -> str:
    """Advice for a rejected file, appended to Volcano's error text."""
    if not str(fault).startswith(_NO_ACTION):
        return f"see {DOCS_PAGE}"
    known = f"known actions: {', '.join(actions)}"
    if str(fault).strip() == _NO_ACTION:
        return f"`actions` is missing or empty, or contains an empty name; {known}"
    return known


_PREVIOUS_KEPT = "the previous configuration stays in force"
_DEFAULT_KEPT = "the built-in configuration is in force until the file is corrected"


class SchedulerConfLoader:
    """The configuration in force: the last valid one, initially the built-in one."""

    def __init__(
        self, *, actions: Collection[str] = BUILT_IN_ACTIONS, initial: BatchConfiguration | None = None
    ) -> None:
        self._actions = actions
        self.current = load_default_conf() if initial is None else initial
        self._in_force = _DEFAULT_KEPT if initial is None else _PREVIOUS_KEPT
        self.error: str | None = None
        """Why the last text is not in force; None if it is."""

    def set_actions(self, actions: Collection[str]) -> None:
        """Set the action names that the next text can use."""
        self._actions = actions

    def apply_text(self, text: str) -> bool:
        """Apply a text if it is valid. If not, nothing changes, and `error` contains the reason."""
        return self._load(text, "")

    def apply_file(self, path: Path) -> bool:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as fault:
            return self._reject(f"{path} cannot be read: {fault}")
        return self._load(text, f"{path}: ")

    def _load(self, text: str, origin: str) -> bool:
        try:
            self.current = load_conf(text.rstrip(), self._actions)
        except ConfigError as fault:
            return self._reject(f"{origin}{fault}; {suggest_remedy(fault, self._actions)}")
        self.error, self._in_force = None, _PREVIOUS_KEPT
        return True

    def _reject(self, reason: str) -> bool:
        self.error = f"{reason}; {self._in_force}"
        return False
