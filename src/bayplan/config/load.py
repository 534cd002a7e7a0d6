"""Loads a KubeSchedulerConfiguration.

`load` runs the steps of kube-scheduler on a text (YAML or JSON): kind and version, types, plugin arguments, strict
decoding, defaults, validation. The first step that fails gives the whole text of the `ConfigError`, word for word
kube-scheduler's. Called once per configuration; cost: a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from bayplan.codec.field_errors import aggregate
from bayplan.codec.go_text import quote
from bayplan.codec.json_text import JsonObject, JsonValue, parse
from bayplan.codec.yaml import is_json, to_json
from bayplan.config.decode import DecodeError, decode_object, json_type_name
from bayplan.config.defaults import apply_defaults
from bayplan.config.encode import encode_v1
from bayplan.config.model import (
    API_VERSION,
    GROUP,
    KIND,
    VERSION,
    Configuration,
    PluginConfig,
    ProfileConfig,
    SharedSettings,
    VersionedConfiguration,
)
from bayplan.config.plugin_args import ArgsKinds
from bayplan.config.schema import ConfigStruct
from bayplan.config.validation import validate
from bayplan.errors import ConfigError, ObjectError

DECODE_STAGE = "config"
VALIDATION_STAGE = "invalid"

# Part of the message: the position in kube-scheduler's source where the table of kinds is declared.
_SCHEME = "pkg/scheduler/apis/config/scheme/scheme.go:29"
_KIND_STRUCT = r'struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }'


def load(text: str, args_kinds: ArgsKinds, gates: Collection[str] = ()) -> Configuration:
    """The configuration in the text, complete and valid; raises `ConfigError`.

    `gates`: the enabled feature gates; some add a default plugin.
    """
    try:
        source, decoded = _decode(text, args_kinds)
    except ObjectError as error:
        raise ConfigError(str(error), stage=DECODE_STAGE) from None
    return _default_and_validate(source, decoded, args_kinds, gates)


def load_default(args_kinds: ArgsKinds, gates: Collection[str] = ()) -> Configuration:
    """The configuration in force without a file."""
    return _default_and_validate(VersionedConfiguration(), {}, args_kinds, gates)


def dump(configuration: Configuration) -> dict[str, Any]:
    """The configuration as a v1 object with all defaults."""
    profiles = [_dump_profile(profile) for profile in configuration.profiles]
    settings = SharedSettings(**{name: getattr(configuration, name) for name in SharedSettings.__struct_fields__})
    return {"apiVersion": API_VERSION, "kind": KIND, **encode_v1(settings), "profiles": profiles}


def _default_and_validate(
    source: VersionedConfiguration,
    decoded: dict[tuple[int, int], ConfigStruct],
    kinds: ArgsKinds,
    gates: Collection[str],
) -> Configuration:
    draft = apply_defaults(source, decoded, kinds, gates)
    if errors := validate(draft, kinds):
        raise ConfigError(aggregate(errors), stage=VALIDATION_STAGE)
    return draft.build()


def _dump_profile(profile: ProfileConfig) -> dict[str, Any]:
    shown: dict[str, Any] = {"schedulerName": profile.scheduler_name}
    if profile.percentage_of_nodes_to_score is not None:
        shown["percentageOfNodesToScore"] = profile.percentage_of_nodes_to_score
    shown["plugins"] = encode_v1(profile.plugins)
    config = [{"name": name, "args": _dump_args(name, args)} for name, args in profile.plugin_config.items()]
    return {**shown, "pluginConfig": config} if config else shown


def _dump_args(plugin: str, args: Any) -> Any:
    if not isinstance(args, ConfigStruct):
        return args
    return {"apiVersion": API_VERSION, "kind": f"{plugin}Args", **encode_v1(args)}


class _GroupVersionKind(NamedTuple):
    group: str
    version: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def with_default(self, default: _GroupVersionKind) -> _GroupVersionKind:
        """This kind, with missing parts from the default."""
        group, version = self.group, self.version
        if not version and group in ("", default.group):
            group, version = default.group, default.version
        return _GroupVersionKind(group, version, self.kind or default.kind)


@dataclass(frozen=True, slots=True)
class _DecodedObject:
    kind: _GroupVersionKind
    value: Any
    strict_errors: tuple[str, ...]


_EMPTY_GVK = _GroupVersionKind("", "", "")


def _decode(text: str, kinds: ArgsKinds) -> tuple[VersionedConfiguration, dict[tuple[int, int], ConfigStruct]]:
    structs: dict[str, type[ConfigStruct]] = {KIND: VersionedConfiguration} | {
        kind.kind: kind.struct for kind in kinds.values()
    }
    found = _decode_object(text, _EMPTY_GVK, structs)
    source, strict_errors = found.value, list(found.strict_errors)
    decoded: dict[tuple[int, int], ConfigStruct] = {}
    if isinstance(source, VersionedConfiguration):
        for number, profile in enumerate(source.profiles):
            for position, entry in enumerate(profile.plugin_config):
                if entry.name not in kinds:
                    continue
                place = f"decoding .profiles[{number}].pluginConfig[{position}]: "
                args = _decode_args(entry, place, structs)
                decoded[number, position] = args.value
                strict_errors += [f"{place}{_strict_decoding_error(args.strict_errors)}"] if args.strict_errors else []
    if strict_errors:
        raise DecodeError(_strict_decoding_error(strict_errors))
    if not isinstance(source, VersionedConfiguration):
        kind = f"{found.kind.api_version}, Kind={found.kind.kind}"
        raise DecodeError(f"couldn't decode as KubeSchedulerConfiguration, got {kind}: ")
    return source, decoded


def _strict_decoding_error(errors: list[str] | tuple[str, ...]) -> str:
    return f"strict decoding error: {', '.join(errors)}"


def _decode_args(entry: PluginConfig, place: str, structs: dict[str, type[ConfigStruct]]) -> _DecodedObject:
    """The arguments of one entry. Kind and version are optional, since the name of the plugin implies them."""
    wanted = _GroupVersionKind(GROUP, VERSION, f"{entry.name}Args")
    prefix = f"decoding args for plugin {entry.name}: "
    try:
        found = _decode_object(entry.args.text, wanted, structs)
    except ObjectError as error:
        raise DecodeError(f"{place}{prefix}{error}") from None
    if (found.kind.group, found.kind.kind) != (wanted.group, wanted.kind):
        got = f"{found.kind.kind}.{found.kind.group}"
        raise DecodeError(
            f"{place}args for plugin {entry.name} were not of type {wanted.kind}.{wanted.group}, got {got}"
        )
    if not found.strict_errors:
        return found
    return _DecodedObject(found.kind, found.value, (f"{prefix}{_strict_decoding_error(found.strict_errors)}",))


def _decode_object(text: str, default: _GroupVersionKind, structs: dict[str, type[ConfigStruct]]) -> _DecodedObject:
    """An object of one of the known kinds. JSON is decoded as it is; YAML is converted to JSON first."""
    strict_errors: tuple[str, ...] = ()
    source = text
    if not is_json(text):
        conversion = to_json(text)
        source = conversion.text
        strict_errors = (conversion.duplicate_key_error,) if conversion.duplicate_key_error else ()
    node = _parse_document(source)
    kind = _read_gvk(node).with_default(default)
    if not kind.kind:
        raise DecodeError(f"Object 'Kind' is missing in '{text}'")
    if not kind.version:
        raise DecodeError(f"Object 'apiVersion' is missing in '{text}'")
    if kind.api_version != API_VERSION or kind.kind not in structs:
        known = f"no kind {quote(kind.kind)} is registered for version {quote(kind.api_version)}"
        raise DecodeError(f'{known} in scheme "{_SCHEME}"')
    found = decode_object(structs[kind.kind], node, source)
    return _DecodedObject(kind, found.value, (*strict_errors, *found.strict_errors))


def _parse_document(text: str) -> JsonValue:
    try:
        return parse(text)
    except ObjectError as error:
        raise DecodeError(f"couldn't get version/kind; json parse error: {error}") from None


def _read_gvk(node: JsonValue) -> _GroupVersionKind:
    """Group, version and kind of the object. Only here the case of keys does not matter."""
    if node is None:
        return _EMPTY_GVK
    prefix = "couldn't get version/kind; json parse error: json: cannot unmarshal"
    if not isinstance(node, JsonObject):
        raise DecodeError(f"{prefix} {json_type_name(node)} into Go value of type {_KIND_STRUCT}")
    found = {"apiVersion": "", "kind": ""}
    names = {name.lower(): name for name in found}
    for member in node.members:
        name = names.get(member.key.lower())
        if name is None or member.value is None:
            continue
        if not isinstance(member.value, str):
            raise DecodeError(f"{prefix} {json_type_name(member.value)} into Go struct field .{name} of type string")
        found[name] = member.value
    return _GroupVersionKind(*_group_and_version(found["apiVersion"]), found["kind"])


def _group_and_version(api_version: str) -> tuple[str, str]:
    if api_version in ("", "/"):
        return "", ""
    group, _, version = api_version.rpartition("/")
    if "/" in group:
        raise DecodeError(f"unexpected GroupVersion string: {api_version}")
    return group, version
