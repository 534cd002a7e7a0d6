"""Feature gates of kube-scheduler.

Evaluated once at start from `--feature-gates`, `--emulated-version` and `--min-compatibility-version`. Errors are
kube-scheduler's. Gates of other components are accepted, because a control plane often shares one list. The log names
them, since a typing error looks the same. The log also names gates of the scheduler that cannot be changed in Bayplan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType

from bayplan.codec.go_flags import go_bool
from bayplan.errors import ConfigError

VERSION = (1, 36)
RELEASE = "1.36.4"
"""The kube-scheduler release that Bayplan follows."""

_MIN_VERSION = (1, 33)
_STAGE = "flags"
_COMPONENT = "kube"
_VERSION_TEXT = re.compile(r"v?(\d+)\.(\d+)")

ENABLED_GATES = frozenset(
    {
        "ClearingNominatedNodeNameAfterBinding",
        "DRAConsumableCapacity",
        "DRADeviceBindingConditions",
        "DRADeviceTaints",
        "DRAExtendedResource",
        "DRAPartitionableDevices",
        "DRAPrioritizedList",
        "DRAResourceClaimDeviceStatus",
        "DRAResourceClaimGranularStatusAuthorization",
        "DRASchedulerFilterTimeout",
        "InPlacePodLevelResourcesVerticalScaling",
        "MatchLabelKeysInPodTopologySpread",
        "MatchLabelKeysInPodTopologySpreadSelectorMerge",
        "NodeDeclaredFeatures",
        "NominatedNodeNameForExpectation",
        "OpportunisticBatching",
        "PodLevelResources",
        "SchedulerAsyncPreemption",
        "SchedulerPopFromBackoffQ",
    }
)
LOCKED_GATES = frozenset(
    {
        "DRAAdminAccess",
        "DynamicResourceAllocation",
        "InPlacePodVerticalScaling",
        "MatchLabelKeysInPodAffinity",
        "MutableCSINodeAllocatableCount",
        "NodeInclusionPolicyInPodTopologySpread",
        "PodObservedGenerationTracking",
        "PodSchedulingReadiness",
        "SchedulerQueueingHints",
        "VolumeAttributesClass",
    }
)
DISABLED_GATES = frozenset(
    {
        "CoordinatedLeaderElection",
        "DRADeviceTaintRules",
        "DRAListTypeAttributes",
        "DRANodeAllocatableResources",
        "DRAResourcePoolStatus",
        "DRAWorkloadResourceClaims",
        "GangScheduling",
        "GenericWorkload",
        "SchedulerAsyncAPICalls",
        "StorageCapacityScoring",
        "TaintTolerationComparisonOperators",
        "TopologyAwareWorkloadScheduling",
        "UserNamespacesHostNetworkSupport",
        "VolumeLimitScaling",
        "WorkloadAwarePreemption",
    }
)
_GA_GATES = LOCKED_GATES | {"DRAPrioritizedList"}
_DISABLED_BETA_GATES = frozenset({"CoordinatedLeaderElection", "DRADeviceTaintRules", "SchedulerAsyncAPICalls"})

GENERIC_WORKLOAD, GANG_SCHEDULING, TOPOLOGY_AWARE_WORKLOAD_SCHEDULING = (
    "GenericWorkload",
    "GangScheduling",
    "TopologyAwareWorkloadScheduling",
)
WORKLOAD_AWARE_PREEMPTION = "WorkloadAwarePreemption"
CONFIGURABLE_GATES = frozenset(
    {
        "SchedulerPopFromBackoffQ",
        "OpportunisticBatching",
        GENERIC_WORKLOAD,
        GANG_SCHEDULING,
        TOPOLOGY_AWARE_WORKLOAD_SCHEDULING,
        WORKLOAD_AWARE_PREEMPTION,
    }
)
"""Gates that change Bayplan's behaviour, or whose effect Bayplan does not need (it never batches pods by hints)."""

_GATE_DEPENDENCIES = {
    "GangScheduling": ("GenericWorkload",),
    "TopologyAwareWorkloadScheduling": ("GenericWorkload",),
    "WorkloadAwarePreemption": ("GangScheduling",),
}


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """The gates from the command line, and the state of all known gates."""

    set_gates: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    emulated_version: str = "1.36"

    def enabled(self, name: str) -> bool:
        return self.set_gates.get(name, name in ENABLED_GATES or name in LOCKED_GATES)

    def all(self) -> Iterator[tuple[str, str, bool]]:
        """Name, stage (ALPHA, BETA; empty once general) and state of each gate that the scheduler knows."""
        for name in sorted(ENABLED_GATES | LOCKED_GATES | DISABLED_GATES):
            beta = name in ENABLED_GATES or name in _DISABLED_BETA_GATES
            yield name, "" if name in _GA_GATES else "BETA" if beta else "ALPHA", self.is_effective(name)

    def is_effective(self, name: str) -> bool:
        """Whether a gate is on. A gate that cannot be changed has its fixed state."""
        return name in ENABLED_GATES or name in LOCKED_GATES if name not in CONFIGURABLE_GATES else self.enabled(name)

    def ineffective_gates(self) -> list[str]:
        """Gates of the scheduler that the command line sets without effect."""
        known = (name for name in sorted(self.set_gates) if name in ENABLED_GATES or name in DISABLED_GATES)
        return [
            name for name in known if name not in CONFIGURABLE_GATES and self.set_gates[name] != (name in ENABLED_GATES)
        ]

    def unknown(self) -> Iterator[tuple[str, str]]:
        """Gates from the command line that the scheduler does not know, each with the nearest known name, or ""."""
        known = {name.lower(): name for name in sorted(ENABLED_GATES | LOCKED_GATES | DISABLED_GATES)}
        for name in sorted(self.set_gates.keys() - known.values()):
            near = get_close_matches(name.lower(), known, n=1)
            yield name, known[near[0]] if near else ""


def parse_feature_gates(
    gates: Iterable[str], emulated: Iterable[str] = (), compatible: Iterable[str] = ()
) -> FeatureGates:
    """The gates of the three flags; raises `ConfigError` with kube-scheduler's message if they are invalid."""
    version = _parse_version(emulated)
    least = _parse_version(compatible)
    if not _MIN_VERSION <= version <= VERSION:
        raise _flag_error(
            f"emulation version {_version_text(version)} is not between [{_version_text(_MIN_VERSION)}, "
            f"{_version_text(VERSION)}.0]"
        )
    if not _MIN_VERSION <= least <= version:
        raise _flag_error(
            f"minCompatibilityVersion version {_version_text(least)} is not between "
            f"[{_version_text(_MIN_VERSION)}, {_version_text(version)}]"
        )
    given = dict(filter(None, map(_parse_gate, gates)))
    for name, value in given.items():
        if name in LOCKED_GATES and not value:
            raise _flag_error(f"cannot set feature gate {name} to false, feature is locked to true")
    features = FeatureGates(MappingProxyType(given), _version_text(version))
    for name, needed in _GATE_DEPENDENCIES.items():
        missing = [each for each in needed if not features.enabled(each)]
        if features.enabled(name) and missing:
            raise _flag_error(f"{name} is enabled, but depends on features that are disabled: [{' '.join(missing)}]")
    return features


def _parse_gate(text: str) -> tuple[str, bool] | None:
    component, colon, rest = text.partition(":")
    if colon and component.strip() != _COMPONENT:
        raise _flag_error(f"component not registered: {component.strip()}")
    name, equals, value = (rest if colon else text).partition("=")
    name, value = name.strip(), value.strip()
    if not name and not equals:
        return None
    if not equals:
        raise _flag_error(f"missing bool value for {name}")
    try:
        return name, go_bool(value)
    except ValueError as fault:
        raise _flag_error(f"invalid value of {name}={value}, err: {fault}") from None


def _parse_version(texts: Iterable[str]) -> tuple[int, int]:
    """The version given for kube-scheduler's component; the default is the current version."""
    version_given = VERSION
    for text in texts:
        component, equals, version = text.rpartition("=")
        if equals and component != _COMPONENT:
            raise _flag_error(f"component not registered: {component}")
        found = _VERSION_TEXT.fullmatch(version)
        if found is None:
            raise _flag_error(f'could not parse "{version}" as version')
        version_given = int(found[1]), int(found[2])
    return version_given


def _version_text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _flag_error(text: str) -> ConfigError:
    return ConfigError(text, stage=_STAGE)
