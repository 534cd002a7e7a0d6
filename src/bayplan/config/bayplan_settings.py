"""What may be set about Bayplan that kube-scheduler has no name for? The file of `--settings`.

Upstream's configuration files get no new keys, so these have a file of their own. Read once at start, strictly: a key
that is misspelt is an error and not a default. Cost: one small decode.
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
    """Bayplan's own settings, with their defaults."""

    writes_at_once: Annotated[int, Meta(ge=1, le=4096)] = 64
    """Pods in PreBind and Bind at the same time; more wait for their turn."""
    slice_milliseconds: Annotated[int, Meta(ge=1, le=100)] = 4
    """How long decisions go on before connections and watches get their turn."""
    watchdog_seconds: Annotated[int, Meta(ge=0, le=3600)] = 30
    """After so long without a turn of the loop the process says who holds it, and ends. 0: never."""
    records_mebibytes: Annotated[int, Meta(ge=1, le=65536)] = 16
    """How much is remembered about decisions."""
    plugin_poll_seconds: Annotated[int, Meta(ge=1, le=3600)] = 2
    """How often the files of --plugins-dir are looked at."""
    stop_seconds: Annotated[int, Meta(ge=0, le=3600)] = 20
    """How long what is under way may take when the process is told to stop."""
    request_timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] = 60
    """The API server's --request-timeout: for so long a write with a lost answer may still take effect."""
    bind_requests: bool = False
    """Whether the batch engine has pods bound by the binder; the pod engine has, by the plugin BindRequestBinder."""
    bind_attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    """How often the binder may fail with one request before another node is looked for."""
    stale_request_seconds: Annotated[int, Meta(ge=1, le=86400)] = 600
    """A request of which no binder speaks for so long is complained about; one that failed without a pod goes."""
    binder_workers: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Pods that the binder binds at the same time."""
    binder_plugin_seconds: Annotated[int, Meta(ge=1, le=86400)] = 900
    """How long a call of a binder plugin may take; longer than any bindTimeoutSeconds, below 6 staleRequestSeconds."""
    binder_plugins: dict[str, Any] = {}
    """The binder's plugins by name: enabled, priority and arguments of each that is not to be as shipped."""
    binder_lease_namespace: str = ""
    """Where `why` looks for the binder's lease; none: where the pod engine's own is, and kube-system for sessions."""
    resource_reservation: ReservationSettings = ReservationSettings()
    """The pods that hold shared GPUs, for the binder that makes them and the scheduler that counts them; see below."""
    ties: Literal["drawn", "inOrder"] = "drawn"
    """Which of equally good nodes a single pod gets: one that is drawn each time, or the first in a fixed order."""
    volcano_quirk_fixes: tuple[str, ...] = ()
    """Names of Volcano's quirks that the batch engine is to do without; the page about differences has them."""
    page_address: str = ""
    """host:port of loopback on which the page is shown to everybody on this machine; none: nowhere."""


class _SettingsFile(BayplanSettings, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""


def load_settings(text: str, place: str) -> BayplanSettings:
    """The settings that a text (YAML or JSON) describes; `place` names it in complaints."""
    found = _tree(text, place)
    _check_keys(found, place)
    if (found.get("apiVersion"), found.get("kind")) != (API_VERSION, KIND):
        raise _settings_error(
            f"{place} is {found.get('kind') or 'of no kind'} of {found.get('apiVersion') or 'no apiVersion'}; "
            f"write apiVersion: {API_VERSION} and kind: {KIND}"
        )
    try:
        settings = msgspec.convert(found, _SettingsFile)
    except msgspec.ValidationError as fault:
        what, _, where = str(fault).partition(" - at `$.")
        key = where.rstrip("`")
        raise _settings_error(f"{place}: {key}: {_lower_first(what)}, and it is {_value_at(found, key)!r}") from None
    for below, problem in settings.resource_reservation.validate():
        key = f"resourceReservation.{below}"
        raise _settings_error(f"{place}: {key}: {problem}, and it is {_value_at(found, key)!r}")
    for problem in _conflicting_timeouts(settings, found):
        raise _settings_error(f"{place}: {problem}")
    return BayplanSettings(**{name: getattr(settings, name) for name in BayplanSettings.__struct_fields__})


def _conflicting_timeouts(settings: BayplanSettings, found: dict[str, Any]) -> Iterator[str]:
    """What would end a call of a binder plugin that does as it was told. What is not said may be in another process's
    file: the engine has requests deleted, the binder carries them out."""
    limit_s, stale_s = settings.binder_plugin_seconds, settings.stale_request_seconds
    if {"binderPluginSeconds", "staleRequestSeconds"} <= found.keys() and STALE_FACTOR * stale_s <= limit_s:
        yield (
            f"staleRequestSeconds is {stale_s} and binderPluginSeconds {limit_s}: a request would be deleted after "
            f"{STALE_FACTOR} times {stale_s} s, while a plugin may still be at work on it; write a staleRequestSeconds "
            f"above {limit_s / STALE_FACTOR:g}, or a binderPluginSeconds below {STALE_FACTOR * stale_s}"
        )
    for name, given in settings.binder_plugins.items():
        arguments = given.get("arguments") if isinstance(given, dict) else None
        wait_s = arguments.get("bindTimeoutSeconds") if isinstance(arguments, dict) else None
        if isinstance(wait_s, int | float) and wait_s > limit_s:
            yield (
                f"binderPlugins.{name}.arguments.bindTimeoutSeconds is {wait_s} and binderPluginSeconds {limit_s}: "
                "the call would be ended before the wait is over; write a binderPluginSeconds that is longer"
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
        raise _settings_error(
            f"{place} holds no object; write apiVersion: {API_VERSION}, kind: {KIND} and what is to be set"
        )
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
            raise _settings_error(f'{place}: there is no key "{above}{key}"; {hint}')
        if isinstance(value, dict) and isinstance(known[key], type) and issubclass(known[key], msgspec.Struct):
            _check_keys(value, place, known[key], f"{above}{key}.")


def _value_at(found: dict[str, Any], path: str) -> Any:
    """What the file has there; of what stands in a list or under a name that anybody may choose, all of that."""
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
