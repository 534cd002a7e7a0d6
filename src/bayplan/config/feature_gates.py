"""Which feature gates does this scheduler know, and what do flags make of them?

Asked once at start with the texts of `--feature-gates`, `--emulated-version` and `--min-compatibility-version`. Errors
are kube-scheduler's. Gates of other components are accepted, because one list is often shared by a whole control plane;
they are told, since a slip of the pen looks just like them. So is a gate that would change something here and cannot be
turned: nobody is to believe that it was.
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
"""The kube-scheduler that we behave as."""

_OLDEST = (1, 33)
_STAGE = "flags"
_COMPONENT = "kube"
_VERSION_TEXT = re.compile(r"v?(\d+)\.(\d+)")

ON = frozenset(
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
LOCKED_ON = frozenset(
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
OFF = frozenset(
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
_GENERAL = LOCKED_ON | {"DRAPrioritizedList"}
_BETA_AND_OFF = frozenset({"CoordinatedLeaderElection", "DRADeviceTaintRules", "SchedulerAsyncAPICalls"})

GROUPS, GANGS, PLACEMENTS = "GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling"
GROUP_PREEMPTION = "WorkloadAwarePreemption"
TURNABLE = frozenset({"SchedulerPopFromBackoffQ", "OpportunisticBatching", GROUPS, GANGS, PLACEMENTS, GROUP_PREEMPTION})
"""Gates that change something here, or nothing because there is nothing to change (pods are never batched by hints)."""

_NEEDS = {
    "GangScheduling": ("GenericWorkload",),
    "TopologyAwareWorkloadScheduling": ("GenericWorkload",),
    "WorkloadAwarePreemption": ("GangScheduling",),
}


@dataclass(frozen=True, slots=True)
class Features:
    """The gates that were given, and what holds for all that are known."""

    given: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    emulated_version: str = "1.36"

    def enabled(self, name: str) -> bool:
        return self.given.get(name, name in ON or name in LOCKED_ON)

    def all(self) -> Iterator[tuple[str, str, bool]]:
        """Name, stage (ALPHA, BETA; none once general) and whether it is on, of each that the scheduler knows."""
        for name in sorted(ON | LOCKED_ON | OFF):
            beta = name in ON or name in _BETA_AND_OFF
            yield name, "" if name in _GENERAL else "BETA" if beta else "ALPHA", self.in_force(name)

    def in_force(self, name: str) -> bool:
        """Whether a gate is on, those that were turned in vain as they are."""
        return name in ON or name in LOCKED_ON if name not in TURNABLE else self.enabled(name)

    def without_effect(self) -> list[str]:
        """Gates of the scheduler that were turned and stay as they are."""
        known = (name for name in sorted(self.given) if name in ON or name in OFF)
        return [name for name in known if name not in TURNABLE and self.given[name] != (name in ON)]

    def unknown(self) -> Iterator[tuple[str, str]]:
        """Gates that were given and that the scheduler does not know, each with the nearest that it does, or ""."""
        known = {name.lower(): name for name in sorted(ON | LOCKED_ON | OFF)}
        for name in sorted(self.given.keys() - known.values()):
            near = get_close_matches(name.lower(), known, n=1)
            yield name, known[near[0]] if near else ""


def features_of(gates: Iterable[str], emulated: Iterable[str] = (), compatible: Iterable[str] = ()) -> Features:
    """What three flags say; `ConfigError` in kube-scheduler's words where they cannot be meant."""
    version = _version(emulated)
    least = _version(compatible)
    if not _OLDEST <= version <= VERSION:
        raise _refused(f"emulation version {_text(version)} is not between [{_text(_OLDEST)}, {_text(VERSION)}.0]")
    if not _OLDEST <= least <= version:
        raise _refused(
            f"minCompatibilityVersion version {_text(least)} is not between [{_text(_OLDEST)}, {_text(version)}]"
        )
    given = dict(filter(None, map(_gate, gates)))
    for name, value in given.items():
        if name in LOCKED_ON and not value:
            raise _refused(f"cannot set feature gate {name} to false, feature is locked to true")
    features = Features(MappingProxyType(given), _text(version))
    for name, needed in _NEEDS.items():
        missing = [each for each in needed if not features.enabled(each)]
        if features.enabled(name) and missing:
            raise _refused(f"{name} is enabled, but depends on features that are disabled: [{' '.join(missing)}]")
    return features


def _gate(text: str) -> tuple[str, bool] | None:
    component, colon, rest = text.partition(":")
    if colon and component.strip() != _COMPONENT:
        raise _refused(f"component not registered: {component.strip()}")
    name, equals, value = (rest if colon else text).partition("=")
    name, value = name.strip(), value.strip()
    if not name and not equals:
        return None
    if not equals:
        raise _refused(f"missing bool value for {name}")
    try:
        return name, go_bool(value)
    except ValueError as fault:
        raise _refused(f"invalid value of {name}={value}, err: {fault}") from None


def _version(texts: Iterable[str]) -> tuple[int, int]:
    """The version that is told of the one component there is; ours where none is."""
    told = VERSION
    for text in texts:
        component, equals, version = text.rpartition("=")
        if equals and component != _COMPONENT:
            raise _refused(f"component not registered: {component}")
        found = _VERSION_TEXT.fullmatch(version)
        if found is None:
            raise _refused(f'could not parse "{version}" as version')
        told = int(found[1]), int(found[2])
    return told


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _refused(text: str) -> ConfigError:
    return ConfigError(text, stage=_STAGE)
