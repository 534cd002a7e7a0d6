"""Bayplan's own settings: the file of `--settings`.

Upstream's configuration files get no new keys, so these have a file of their own. It is read once at start, strictly:
an unknown key is an error. Cost: one small decode.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from bayplan.codec.yaml import is_json, to_json
from bayplan.config.reservation_settings import ReservationSettings
from bayplan.errors import ConfigError, ObjectError
from bayplan.objects.kai.bind_request import STALE_FACTOR

API_VERSION = "bayplan.dev/v1alpha1"
KIND = "BayplanConfiguration"
SETTINGS_STAGE = "settings"


class BayplanSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    writes_at_once: Annotated[int, Meta(ge=1, le=4096)] = 64
    """Pods in PreBind and Bind at the same time; further pods wait."""
    slice_milliseconds: Annotated[int, Meta(ge=1, le=100)] = 4
    """How long decisions run before the event loop handles connections and watches."""
    watchdog_seconds: Annotated[int, Meta(ge=0, le=3600)] = 30
    """If the event loop is blocked for so long, the process logs where and exits. 0: never."""
    records_mebibytes: Annotated[int, Meta(ge=1, le=65536)] = 16
    """Memory for decision records."""
    plugin_poll_seconds: Annotated[int, Meta(ge=1, le=3600)] = 2
    """How often the scheduler checks the files of --plugins-dir."""
    stop_seconds: Annotated[int, Meta(ge=0, le=3600)] = 20
    """How long running work may take after the process receives a stop signal."""
    request_timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] = 60
    """The API server's --request-timeout: for so long a write whose response was lost may still take effect."""
    bind_requests: bool = False
    """Whether the binder binds the batch engine's pods. In the pod engine the plugin BindRequestBinder decides it."""
    bind_attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    """How often the binder may fail with one request before the scheduler looks for another node."""
    stale_request_seconds: Annotated[int, Meta(ge=1, le=86400)] = 600
    """A request without a binder's report for so long is logged as stale; a failed one without a pod is deleted."""
    binder_workers: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Pods that the binder binds at the same time."""
    binder_plugin_seconds: Annotated[int, Meta(ge=1, le=86400)] = 900
    """How long a call of a binder plugin may take; longer than any bindTimeoutSeconds, below 6 staleRequestSeconds."""
    binder_plugins: dict[str, Any] = {}
    """The binder's plugins by name, with `enabled`, `priority` and `arguments` where they differ from the defaults."""
    binder_lease_namespace: str = ""
    """Where `why` looks for the binder's lease; empty: the pod engine's lease namespace, kube-system for sessions."""
    resource_reservation: ReservationSettings = ReservationSettings()
    """The pods that reserve shared GPUs; the binder creates them and the scheduler counts them."""
    ties: Literal["drawn", "inOrder"] = "drawn"
    """Which of equally good nodes a single pod gets: a random one, or the first in a fixed order."""
    volcano_quirk_fixes: tuple[str, ...] = ()
    """Names of Volcano's quirks that the batch engine does not reproduce; the page about differences lists them."""
    page_address: str = ""
    """Loopback host:port of the page, readable by all users of this machine. Empty: no page."""


class _SettingsFile(BayplanSettings, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""


def load_settings(text: str, place: str) -> BayplanSettings:
    """The settings in a text (YAML or JSON); `place` names the text in errors."""
    found = _tree(text, place)
    _check_keys(found, place)
    if (found.get("apiVersion"), found.get("kind")) != (API_VERSION, KIND):
        raise _settings_error(
            f"{place} has kind {found.get('kind') or 'none'} and apiVersion {found.get('apiVersion') or 'none'}; "
            f"write apiVersion: {API_VERSION} and kind: {KIND}"
        )
    try:
        settings = msgspec.convert(found, _SettingsFile)
    except msgspec.ValidationError as fault:
        what, _, where = str(fault).partition(" - at `$.")
        key = where.rstrip("`")
        raise _settings_error(f"{place}: {key}: {_lower_first(what)}; the value is {_value_at(found, key)!r}") from None
    for below, problem in settings.resource_reservation.validate():
        key = f"resourceReservation.{below}"
        raise _settings_error(f"{place}: {key}: {problem}; the value is {_value_at(found, key)!r}")
    for problem in _conflicting_timeouts(settings, found):
        raise _settings_error(f"{place}: {problem}")
    return BayplanSettings(**{name: getattr(settings, name) for name in BayplanSettings.__struct_fields__})


def _conflicting_timeouts(settings: BayplanSettings, found: dict[str, Any]) -> Iterator[str]:
    """Timeouts that would end a call of a binder plugin too early.

    Keys that are not set here may be set in another process's file: the engine deletes requests, the binder carries
    them out.
    """
    limit_s, stale_s = settings.binder_plugin_seconds, settings.stale_request_seconds
    if {"binderPluginSeconds", "staleRequestSeconds"} <= found.keys() and STALE_FACTOR * stale_s <= limit_s:
        yield (
            f"staleRequestSeconds is {stale_s} and binderPluginSeconds {limit_s}: the scheduler would delete a "
            f"request after {STALE_FACTOR} times {stale_s} s, while a plugin may still work on it; set "
            f"staleRequestSeconds above {limit_s / STALE_FACTOR:g}, "
            f"or binderPluginSeconds below {STALE_FACTOR * stale_s}"
        )
    for name, given in settings.binder_plugins.items():
        arguments = given.get("arguments") if isinstance(given, dict) else None
        wait_s = arguments.get("bindTimeoutSeconds") if isinstance(arguments, dict) else None
        if isinstance(wait_s, int | float) and wait_s > limit_s:
            yield (
                f"binderPlugins.{name}.arguments.bindTimeoutSeconds is {wait_s} and binderPluginSeconds {limit_s}: "
                "the binder would end the call before the wait is over; set a longer binderPluginSeconds"
            )


def _tree(text: str, place: str) -> dict[str, Any]:
    try:
        conversion = None if is_json(text) else to_json(text)
        if conversion is not None and conversion.duplicate_key_error:
            raise _settings_error(f"{place}: {conversion.duplicate_key_error}")
        found = msgspec.json.decode(text if conversion is None else conversion.text)
    except (ObjectError, msgspec.DecodeError) as fault:
        raise _settings_error(f"{place} is neither YAML nor JSON: {fault}") from None
    if not isinstance(found, dict):
        raise _settings_error(f"{place} has no object; write apiVersion: {API_VERSION}, kind: {KIND} and the settings")
    return found


def _check_keys(
    found: dict[str, Any], place: str, struct: type[msgspec.Struct] = _SettingsFile, above: str = ""
) -> None:
    hints = get_type_hints(struct)
    names = zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)
    known = {key: hints[name] for key, name in names}
    for key, value in found.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f'did you mean "{above}{near[0]}"?' if near else f"known keys: {', '.join(sorted(known))}"
            raise _settings_error(f'{place}: unknown key "{above}{key}"; {hint}')
        if isinstance(value, dict) and isinstance(known[key], type) and issubclass(known[key], msgspec.Struct):
            _check_keys(value, place, known[key], f"{above}{key}.")


def _value_at(found: dict[str, Any], path: str) -> Any:
    """The value in the file. For a path into a list or below a free name, the whole list or map."""
    value: Any = found
    while path and isinstance(value, dict):
        key = next((key for key in value if path == key or path.startswith((f"{key}.", f"{key}["))), None)
        if key is None:
            break
        value, path = value[key], path.removeprefix(key).lstrip(".")
    return value


def _lower_first(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"


def _settings_error(text: str) -> ConfigError:
    return ConfigError(text, stage=SETTINGS_STAGE)
