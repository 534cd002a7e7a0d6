"""Feature gates of Volcano's programs.

Evaluated once at start from `--feature-gates`. An unknown name is refused with Volcano's message. One gate has an
effect; the log names all other changed gates as ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bayplan.codec.go_flags import go_bool, go_strings
from bayplan.config.feature_gates import LOCKED_GATES

QUEUE_ADMISSION_GATE = "SchedulingGatesQueueAdmission"
"""Opt-in scheduling gate for pods, until their queue has room: the webhook adds it, the scheduler removes it."""

_DEFAULTS = {
    "WorkLoadSupport": True,
    "VolcanoJobSupport": True,
    "PodDisruptionBudgetsSupport": True,
    "QueueCommandSync": True,
    "PriorityClass": True,
    "CSIStorage": False,
    "ResourceTopology": True,
    "CronVolcanoJobSupport": True,
    QUEUE_ADMISSION_GATE: False,
}
VOLCANO_GATES = frozenset(_DEFAULTS)
"""Gates that Kubernetes does not have."""

_NAMES = """
APIResponseCompression APIServerIdentity APIServerTracing APIServingWithRoutine AggregatedDiscoveryRemoveBetaType
AllAlpha AllBeta AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests
AllowOverwriteTerminationGracePeriodSeconds AllowParsingUserUIDFromCertAuth AllowServiceExternalIPs
AllowServiceLBStatusOnNonLB AllowUnsafeMalformedObjectDeletion AnonymousAuthConfigurableEndpoints AnyVolumeDataSource
AtomicFIFO AuthorizeNodeWithSelectors AuthorizePodWebsocketUpgradeCreatePermission AuthorizeWithSelectors
BtreeWatchCache CBORServingAndStorage CPUManagerPolicyAlphaOptions CPUManagerPolicyBetaOptions CPUManagerPolicyOptions
CRIListStreaming CSIMigrationPortworx CSIServiceAccountTokenSecrets CSIVolumeHealth
ChangeContainerStatusOnKubeletRestart ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation ClientsAllowCBOR
ClientsAllowTLSCacheGC ClientsPreferCBOR ClusterTrustBundle ClusterTrustBundleProjection ComponentFlagz
ComponentStatusz ConcurrentWatchObjectDecode ConsistentListFromCache ConstrainedImpersonation ContainerCheckpoint
ContainerRestartRules ContainerStopSignals ContextualLogging CoordinatedLeaderElection CronJobsScheduledAnnotation
CrossNamespaceVolumeDataSource CustomCPUCFSQuotaPeriod DRAAdminAccess DRAConsumableCapacity DRADeviceBindingConditions
DRADeviceTaintRules DRADeviceTaints DRAExtendedResource DRAListTypeAttributes DRANodeAllocatableResources
DRAPartitionableDevices DRAPrioritizedList DRAResourceClaimDeviceStatus DRAResourceClaimGranularStatusAuthorization
DRAResourcePoolStatus DRASchedulerFilterTimeout DRAWorkloadResourceClaims DeclarativeValidation
DeclarativeValidationBeta DeclarativeValidationTakeover DeploymentReplicaSetTerminatingReplicas
DetectCacheInconsistency DisableAllocatorDualWrite DisableCPUQuotaWithExclusiveCPUs DisableNodeKubeProxyVersion
DynamicResourceAllocation EnvFiles EventedPLEG ExecProbeTimeout ExtendWebSocketsToKubelet
ExternalServiceAccountTokenSigner GangScheduling GenericWorkload GitRepoVolumeDriver GracefulNodeShutdown
GracefulNodeShutdownBasedOnPodPriority HPAConfigurableTolerance HPAScaleToZero HonorPVReclaimPolicy HostnameOverride
ImageMaximumGCAge ImageVolume ImageVolumeWithDigest InOrderInformers InOrderInformersBatchProcess
InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScaling InPlacePodVerticalScalingAllocatedStatus
InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
InPlacePodVerticalScalingInitContainers InTreePluginPortworxUnregister InformerResourceVersion JobBackoffLimitPerIndex
JobManagedBy JobPodReplacementPolicy JobSuccessPolicy KMSv1 KubeletCgroupDriverFromCRI KubeletCrashLoopBackOffMax
KubeletEnsureSecretPulledImages KubeletFineGrainedAuthz KubeletInUserNamespace KubeletPSI
KubeletPodResourcesDynamicResources KubeletPodResourcesGet KubeletPodResourcesListUseActivePods
KubeletRegistrationGetOnExistsOnly KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders
KubeletTracing ListFromCacheSnapshot LoadBalancerIPMode LocalStorageCapacityIsolationFSQuotaMonitoring
LogarithmicScaleDown LoggingAlphaOptions LoggingBetaOptions LoggingStableOptions ManifestBasedAdmissionControlConfig
MatchLabelKeysInPodAffinity MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge
MaxUnavailableStatefulSet MemoryManager MemoryQoS MultiCIDRServiceAllocator MutableCSINodeAllocatableCount
MutablePVNodeAffinity MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs
MutatingAdmissionPolicy MyFeature NFTablesProxyMode NativeHistograms NodeDeclaredFeatures
NodeInclusionPolicyInPodTopologySpread NodeLogQuery NodeSwap NominatedNodeNameForExpectation OpenAPIEnums
OpportunisticBatching OrderedNamespaceDeletion PLEGOnDemandRelist PersistentVolumeClaimUnusedSinceTime
PodAndContainerStatsFromCRI PodCertificateRequest PodDeletionCost PodIndexLabel PodLevelResourceManagers
PodLevelResources PodLifecycleSleepAction PodLifecycleSleepActionAllowZero PodLogsQuerySplitStreams
PodObservedGenerationTracking PodReadyToStartContainersCondition PodSchedulingReadiness PodTopologyLabelsAdmission
PodsAPI PortForwardWebsockets PreferSameTrafficDistribution PreventStaticPodAPIReferences
ProbeHostPodSecurityStandards ProcMountType QOSReserved RecoverVolumeExpansionFailure RecursiveReadOnlyMounts
ReduceDefaultCrashLoopBackOffDecay RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation
RelaxedServiceNameValidation ReloadKubeletServerCertificateFile RemoteRequestHeaderUID
ResilientWatchCacheInitialization ResourceHealthStatus ResourceHealthStatusMessage
RestartAllContainersOnContainerExits RetryGenerateName RotateKubeletServerCertificate RuntimeClassInImageCriApi
SELinuxChangePolicy SELinuxMount SELinuxMountReadWriteOncePod SchedulerAsyncAPICalls SchedulerAsyncPreemption
SchedulerPopFromBackoffQ SchedulerQueueingHints SeparateCacheWatchRPC SeparateTaintEvictionController
ServiceAccountNodeAudienceRestriction ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo ServiceCIDRStatusFieldWiping
ServiceTrafficDistribution ShardedListAndWatch SidecarContainers SizeBasedListCostEstimate SizeMemoryBackedVolumes
StaleControllerConsistencyDaemonSet StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet
StaleControllerConsistencyStatefulSet StatefulSetAutoDeletePVC StatefulSetSemanticRevisionComparison
StorageCapacityScoring StorageNamespaceIndex StorageVersionAPI StorageVersionHash StorageVersionMigrator
StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf StrictCostEnforcementForVAP
StrictCostEnforcementForWebhooks StrictIPCIDRValidation StructuredAuthenticationConfiguration
StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics
StructuredAuthorizationConfiguration SupplementalGroupsPolicy TaintTolerationComparisonOperators
TokenRequestServiceAccountUIDValidation TopologyAwareHints TopologyAwareWorkloadScheduling
TopologyManagerPolicyAlphaOptions TopologyManagerPolicyBetaOptions TopologyManagerPolicyOptions
TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy
UnlockWhileProcessingFIFO UserNamespacesHostNetworkSupport UserNamespacesPodSecurityStandards UserNamespacesSupport
VolumeAttributesClass VolumeLimitScaling WatchCacheInitializationPostStartHook WatchFromStorageWithoutResourceVersion
WatchList WatchListClient WinDSR WinOverlay WindowsCPUAndMemoryAffinity WindowsGracefulNodeShutdown WindowsHostNetwork
WorkloadAwarePreemption WorkloadWithJob
"""
_KUBERNETES_GATES = frozenset(_NAMES.split())
"""Volcano's programs link Kubernetes, so they accept its gates, too: those of 1.34 to 1.36."""


def parse_volcano_gates(text: str) -> tuple[tuple[str, bool], ...]:
    """The gates in `Gate=true,Other=false`; raises `ValueError` with the message of Volcano's library."""
    return tuple(_parse_gate(each.strip()) for each in go_strings(text) if each.strip())


def is_queue_admission_enabled(given: Iterable[tuple[str, bool]]) -> bool:
    """Whether the scheduling gate holds pods until their queue has room."""
    return dict(given).get(QUEUE_ADMISSION_GATE, _DEFAULTS[QUEUE_ADMISSION_GATE])


def ignored_gate_messages(given: Iterable[tuple[str, bool]], *, none: bool = False) -> Iterator[str]:
    """A message for each gate that is set without effect; `none`: no gate has an effect in this program."""
    for name, on in dict(given).items():
        changed = name not in _DEFAULTS or on != _DEFAULTS[name]
        if changed and (none or name != QUEUE_ADMISSION_GATE):
            yield f"feature gate {name} has no effect here"


def _parse_gate(text: str) -> tuple[str, bool]:
    name, equals, value = (each.strip() for each in text.partition("="))
    if not equals:
        raise ValueError(f"missing bool value for {name}")
    try:
        on = go_bool(value)
    except ValueError as fault:
        raise ValueError(f"invalid value of {name}={value}, err: {fault}") from None
    if name not in _DEFAULTS and name not in _KUBERNETES_GATES:
        raise ValueError(f"unrecognized feature gate: {name}")
    if name in LOCKED_GATES and not on:
        raise ValueError(f"cannot set feature gate {name} to {value}, feature is locked to true")
    return name, on
