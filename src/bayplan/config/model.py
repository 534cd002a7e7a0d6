"""The configuration structs.

`Configuration` is a KubeSchedulerConfiguration v1 after decoding, defaulting and validation. Every field has its value,
and every in-tree plugin with arguments has them, decoded. It is frozen and shared by all users of the configuration.
The structs `Versioned…` have the form of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec

from bayplan.codec.go_duration import GoDuration
from bayplan.config.schema import NO_OMIT_EMPTY, ConfigStruct, EmbeddedIn, Float32, Int32, Int64, RawArgs

GROUP = "kubescheduler.config.k8s.io"
VERSION = "v1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "KubeSchedulerConfiguration"

DEFAULT_SCHEDULER_NAME = "default-scheduler"
MULTI_POINT = "multiPoint"

DEFAULT_EXTENDER_TIMEOUT = GoDuration.of_seconds(5)


class LeaderElection(ConfigStruct, frozen=True):
    """How replicas elect the one that schedules."""

    go_name: ClassVar[str] = "LeaderElectionConfiguration"
    go_package: ClassVar[str] = "v1alpha1"

    leader_elect: Annotated[bool, NO_OMIT_EMPTY] = True
    lease_duration: GoDuration = GoDuration.of_seconds(15)
    renew_deadline: GoDuration = GoDuration.of_seconds(10)
    retry_period: GoDuration = GoDuration.of_seconds(2)
    resource_lock: Annotated[str, NO_OMIT_EMPTY] = "leases"
    resource_name: Annotated[str, NO_OMIT_EMPTY] = "kube-scheduler"
    resource_namespace: Annotated[str, NO_OMIT_EMPTY] = "kube-system"


class ClientConnection(ConfigStruct, frozen=True):
    go_name: ClassVar[str] = "ClientConnectionConfiguration"
    go_package: ClassVar[str] = "v1alpha1"

    kubeconfig: Annotated[str, NO_OMIT_EMPTY] = ""
    accept_content_types: Annotated[str, NO_OMIT_EMPTY] = ""
    content_type: Annotated[str, NO_OMIT_EMPTY] = "application/vnd.kubernetes.protobuf"
    qps: Annotated[Float32, NO_OMIT_EMPTY] = 50.0
    burst: Annotated[Int32, NO_OMIT_EMPTY] = 100


class ExtenderTLSConfig(ConfigStruct, frozen=True):
    """Certificates for connections to an extender; data takes precedence over files."""

    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: bytes = b""
    key_data: bytes = b""
    ca_data: bytes = b""


class ExtenderManagedResource(ConfigStruct, frozen=True):
    name: Annotated[str, NO_OMIT_EMPTY] = ""
    ignored_by_scheduler: bool = False


class ExtenderConfig(ConfigStruct, frozen=True):
    """An HTTP service that filters, scores, preempts or binds.

    An empty verb means that it does not support the call.
    """

    go_name: ClassVar[str] = "Extender"

    url_prefix: Annotated[str, NO_OMIT_EMPTY] = ""
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: Int64 = 0
    bind_verb: str = ""
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    tls_config: ExtenderTLSConfig | None = None
    http_timeout: GoDuration = GoDuration()
    node_cache_capable: bool = False
    managed_resources: tuple[ExtenderManagedResource, ...] = ()
    ignorable: bool = False

    @property
    def timeout(self) -> GoDuration:
        """The timeout of a call; the default is five seconds."""
        return self.http_timeout or DEFAULT_EXTENDER_TIMEOUT


class PluginRef(ConfigStruct, frozen=True):
    """A plugin in a list. A weight of 0 means that it was not set."""

    go_name: ClassVar[str] = "Plugin"

    name: Annotated[str, NO_OMIT_EMPTY] = ""
    weight: Annotated[Int32, NO_OMIT_EMPTY] = 0


class PluginSet(ConfigStruct, frozen=True):
    """The plugins that one extension point, or all points, enable and disable."""

    enabled: tuple[PluginRef, ...] = ()
    disabled: tuple[PluginRef, ...] = ()


class Plugins(ConfigStruct, frozen=True):
    """A plugin set for each extension point, and one for all of them (`multiPoint`)."""

    pre_enqueue: PluginSet = PluginSet()
    queue_sort: PluginSet = PluginSet()
    pre_filter: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()
    post_filter: PluginSet = PluginSet()
    pre_score: PluginSet = PluginSet()
    score: PluginSet = PluginSet()
    reserve: PluginSet = PluginSet()
    permit: PluginSet = PluginSet()
    pre_bind: PluginSet = PluginSet()
    bind: PluginSet = PluginSet()
    post_bind: PluginSet = PluginSet()
    multi_point: PluginSet = PluginSet()
    placement_generate: PluginSet = PluginSet()
    placement_score: PluginSet = PluginSet()

    def at(self, point: str) -> PluginSet:
        """The set of a point by its name in the file (`preFilter`, `multiPoint`)."""
        found: PluginSet = getattr(self, _ATTRIBUTE_NAMES[point])
        return found

    def items(self) -> tuple[tuple[str, PluginSet], ...]:
        return tuple((point, self.at(point)) for point in _ATTRIBUTE_NAMES)

    def enabled_names(self) -> frozenset[str]:
        """Every plugin that some list enables."""
        return frozenset(plugin.name for _, plugins in self.items() for plugin in plugins.enabled)


_ATTRIBUTE_NAMES = {info.encode_name: info.name for info in msgspec.structs.fields(Plugins)}

EXTENSION_POINTS = tuple(point for point in _ATTRIBUTE_NAMES if point != MULTI_POINT)


class PluginConfig(ConfigStruct, frozen=True):
    """The arguments of one plugin as they stand in the file."""

    name: Annotated[str, NO_OMIT_EMPTY] = ""
    args: RawArgs = RawArgs()


class VersionedProfile(ConfigStruct, frozen=True):
    """A profile as it stands in a file."""

    go_name: ClassVar[str] = "KubeSchedulerProfile"

    scheduler_name: str | None = None
    percentage_of_nodes_to_score: Int32 | None = None
    plugins: Plugins | None = None
    plugin_config: tuple[PluginConfig, ...] = ()


class SharedSettings(ConfigStruct, frozen=True):
    parallelism: Annotated[Int32, NO_OMIT_EMPTY] = 16
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    enable_profiling: Annotated[bool, NO_OMIT_EMPTY, EmbeddedIn("DebuggingConfiguration")] = True
    enable_contention_profiling: Annotated[bool | None, EmbeddedIn("DebuggingConfiguration")] = None
    percentage_of_nodes_to_score: Annotated[Int32, NO_OMIT_EMPTY] = 0
    pod_initial_backoff_seconds: Annotated[Int64, NO_OMIT_EMPTY] = 1
    pod_max_backoff_seconds: Annotated[Int64, NO_OMIT_EMPTY] = 10
    extenders: tuple[ExtenderConfig, ...] = ()
    delay_cache_until_active: bool = False


class VersionedConfiguration(SharedSettings, frozen=True):
    """A configuration as it stands in a file."""

    go_name: ClassVar[str] = KIND

    profiles: tuple[VersionedProfile, ...] = ()


class ProfileConfig(msgspec.Struct, frozen=True):
    """One scheduler name with its plugins and their arguments.

    `plugin_config` has a struct for each in-tree plugin that takes arguments, and plain JSON values for all other
    plugins.
    """

    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    percentage_of_nodes_to_score: int | None = None
    plugins: Plugins = Plugins()
    plugin_config: Mapping[str, Any] = {}


class Configuration(SharedSettings, frozen=True):
    """The configuration in force."""

    profiles: tuple[ProfileConfig, ...] = ()

    def percentage_for(self, profile: ProfileConfig) -> int:
        """The percentage of nodes to score for pods of a profile. The profile's own setting wins, even if it is 0."""
        own = profile.percentage_of_nodes_to_score
        return self.percentage_of_nodes_to_score if own is None else own
