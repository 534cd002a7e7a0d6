"""Validation of the scheduler configuration.

All errors are collected, in kube-scheduler's order: connection, leader election, each profile, conditions across
profiles, backoff, extenders. Called once per configuration, after the defaulting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bayplan.codec.field_errors import AsJson, FieldError, FieldPath, aggregate, duplicate, invalid, required
from bayplan.config.defaults import ConfigurationDraft, ProfileDraft
from bayplan.config.encode import encode_internal
from bayplan.config.model import (
    API_VERSION,
    EXTENSION_POINTS,
    VERSION,
    ClientConnection,
    Configuration,
    ExtenderConfig,
    LeaderElection,
)
from bayplan.config.plugin_args import ArgsKinds
from bayplan.config.schema import RawArgs
from bayplan.errors import ConfigError
from bayplan.objects.name_validation import label_key_problems
from bayplan.objects.resources import is_extended_resource_name

REMOVED_PLUGINS = frozenset({"AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"})

# Lists of these points are not searched for removed plugins.
_PLACEMENT_POINTS = ("placementGenerate", "placementScore")

# kube-scheduler registers the validator of NodeResourcesFit under this name, where it never gets arguments of its type.
_MISPLACED_VALIDATOR = "NodeResourcesFitArgs"

_MAX_PERCENTAGE = 100


def validate(draft: ConfigurationDraft, kinds: ArgsKinds) -> list[FieldError]:
    """All errors of the configuration."""
    settings = draft.settings
    return [
        *_client_connection(settings.client_connection, FieldPath("clientConnection")),
        *_leader_election(settings.leader_election, FieldPath("leaderElection")),
        *_parallelism(settings),
        *_profiles(draft.profiles, FieldPath("profiles"), kinds),
        *_percentage(settings.percentage_of_nodes_to_score, FieldPath("percentageOfNodesToScore")),
        *_backoff(settings),
        *_extenders(settings.extenders, FieldPath("extenders")),
    ]


def _client_connection(connection: ClientConnection, path: FieldPath) -> Iterator[FieldError]:
    if connection.burst < 0:
        yield invalid(path.child("burst"), connection.burst, "must be non-negative")


def check_rate(qps: float, burst: int) -> None:
    """Raise `ConfigError` if a rate limit permits no request. A rate of 0 or below is no limit."""
    if qps > 0 and burst <= 0:
        raise ConfigError(
            "burst is required to be greater than 0 when RateLimiter is not set and QPS is set to greater than 0",
            stage="flags",
        )


def check_election(election: LeaderElection) -> None:
    """Raise `ConfigError` if no leader can be elected. Flags may override the file."""
    if errors := list(_leader_election(election, FieldPath("leaderElection"))):
        raise ConfigError(aggregate(errors), stage="invalid")


def _leader_election(election: LeaderElection, path: FieldPath) -> Iterator[FieldError]:
    if not election.leader_elect:
        return
    durations = {
        "leaseDuration": election.lease_duration,
        "renewDeadline": election.renew_deadline,
        "retryPeriod": election.retry_period,
    }
    for name, duration in durations.items():
        if duration.nanoseconds <= 0:
            yield invalid(path.child(name), str(duration), "must be greater than zero")
    if election.lease_duration <= election.renew_deadline:
        shown = str(election.renew_deadline)
        yield invalid(path.child("leaseDuration"), shown, "must be greater than `RenewDeadline`")
    names = {
        "resourceLock": election.resource_lock,
        "resourceNamespace": election.resource_namespace,
        "resourceName": election.resource_name,
    }
    yield from (required(path.child(name)) for name, value in names.items() if not value)
    if election.resource_lock != "leases":
        yield invalid(path.child("resourceLock"), election.resource_lock, 'resourceLock value must be "leases"')


def _parallelism(settings: Configuration) -> Iterator[FieldError]:
    if settings.parallelism <= 0:
        message = "should be an integer value greater than zero"
        yield invalid(FieldPath("parallelism"), settings.parallelism, message)


def _percentage(percentage: int | None, path: FieldPath) -> Iterator[FieldError]:
    if percentage is not None and not 0 <= percentage <= _MAX_PERCENTAGE:
        yield invalid(path, percentage, "not in valid range [0-100]")


def _backoff(settings: Configuration) -> Iterator[FieldError]:
    initial, longest = settings.pod_initial_backoff_seconds, settings.pod_max_backoff_seconds
    if initial <= 0:
        yield invalid(FieldPath("podInitialBackoffSeconds"), initial, "must be greater than 0")
    if longest < initial:
        message = "must be greater than or equal to PodInitialBackoffSeconds"
        yield invalid(FieldPath("podMaxBackoffSeconds"), longest, message)


def _profiles(profiles: tuple[ProfileDraft, ...], path: FieldPath, kinds: ArgsKinds) -> Iterator[FieldError]:
    names: set[str] = set()
    for number, profile in enumerate(profiles):
        place = path.index(number)
        if not profile.scheduler_name:
            yield required(place.child("schedulerName"))
        yield from _percentage(profile.percentage_of_nodes_to_score, place.child("percentageOfNodesToScore"))
        yield from _removed_plugins(profile, place.child("plugins"))
        yield from _plugin_config(profile, place.child("pluginConfig"), kinds)
        if profile.scheduler_name in names:
            # Upstream shows a path object here, which prints as an empty struct.
            yield duplicate(place.child("schedulerName"), {})
        names.add(profile.scheduler_name)
    yield from _queue_sort(profiles, path)


def _removed_plugins(profile: ProfileDraft, path: FieldPath) -> Iterator[FieldError]:
    for point in EXTENSION_POINTS:
        if point in _PLACEMENT_POINTS:
            continue
        for position, plugin in enumerate(profile.plugins.at(point).enabled):
            if plugin.name in REMOVED_PLUGINS:
                yield _removed_plugin_error(path.child(point, "enabled").index(position), plugin.name)


def _removed_plugin_error(path: FieldPath, name: str) -> FieldError:
    message = f'was invalid in version "{VERSION}" (KubeSchedulerConfiguration is version "{API_VERSION}")'
    return invalid(path, name, message)


def _plugin_config(profile: ProfileDraft, path: FieldPath, kinds: ArgsKinds) -> Iterator[FieldError]:
    seen: set[str] = set()
    for position, (name, args) in enumerate(profile.plugin_config):
        place = path.index(position)
        if name in seen:
            yield duplicate(place, name)
        seen.add(name)
        if name in REMOVED_PLUGINS:
            yield _removed_plugin_error(place, name)
        elif name == _MISPLACED_VALIDATOR:
            yield invalid(place.child("args"), AsJson(encode_internal(args)), "has to match plugin args")
        elif name in kinds and kinds[name].validated_at_load:
            yield from kinds[name].validate(args, place.child("args"))


def _queue_sort(profiles: tuple[ProfileDraft, ...], path: FieldPath) -> Iterator[FieldError]:
    """All pods wait in one queue, so all profiles must have the same queue sort plugin."""
    first = profiles[0].plugins.queue_sort
    if len(first.enabled) > 1:
        place = path.index(0).child("plugins", "queueSort", "Enabled")
        yield invalid(place, len(first.enabled), "only one queue sort plugin can be enabled")
    sorter = first.enabled[0].name if first.enabled else ""
    wanted = dict(profiles[0].plugin_config).get(sorter) if sorter else None
    for number, profile in enumerate(profiles[1:], start=1):
        place = path.index(number)
        if profile.plugins.queue_sort != first:
            shown = encode_internal(profile.plugins.queue_sort)
            yield invalid(place.child("plugins", "queueSort"), shown, "must be the same for all profiles")
        for name, args in profile.plugin_config:
            if name == sorter and not _equal_args(args, wanted):
                shown = AsJson(encode_internal(args))
                message = "queueSort must be the same for all profiles"
                yield invalid(place.child("pluginConfig", "args"), shown, message)


def _equal_args(one: Any, other: Any) -> bool:
    """Raw arguments are compared as texts, so spaces count; absent arguments equal null."""
    if isinstance(one, RawArgs) or isinstance(other, RawArgs):
        return (one or RawArgs()) == (other or RawArgs())
    return bool(one == other)


def _extenders(extenders: tuple[ExtenderConfig, ...], path: FieldPath) -> Iterator[FieldError]:
    managed: set[str] = set()
    for number, extender in enumerate(extenders):
        place = path.index(number)
        if extender.prioritize_verb and extender.weight <= 0:
            yield invalid(place.child("weight"), extender.weight, "must have a positive weight applied to it")
        for position, resource in enumerate(extender.managed_resources):
            name_path = place.child("managedResources").index(position).child("name")
            yield from _extended_resource(resource.name, name_path)
            if resource.name in managed:
                yield invalid(name_path, resource.name, "duplicate extender managed resource name")
            managed.add(resource.name)
    binders = sum(1 for extender in extenders if extender.bind_verb)
    if binders > 1:
        yield invalid(path, f"found {binders} extenders implementing bind", "only one extender can implement bind")


def _extended_resource(name: str, path: FieldPath) -> Iterator[FieldError]:
    problems = label_key_problems(name)
    # The name has a named type here, and is therefore shown as JSON.
    yield from (invalid(path, AsJson(name), problem) for problem in problems)
    if not problems and not is_extended_resource_name(name):
        yield invalid(path, name, "is an invalid extended resource name")
