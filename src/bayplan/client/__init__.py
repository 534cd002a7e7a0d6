"""Client of the API server: transport, list and watch, informers, writes, leases, kubeconfig.

All other packages import from this package, not from its modules.
"""

from bayplan.client.applier import Applier, ApplyResult
from bayplan.client.auth.connection_config import ConnectionConfig, in_cluster_config, load_connection_config
from bayplan.client.auth.secret import Secret
from bayplan.client.client import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client
from bayplan.client.confirmed_writes import (
    REQUEST_TIMEOUT_S,
    ConfirmedWrite,
    ConfirmedWrites,
    LateCreates,
    NotWritten,
    WriteState,
    worker_slot,
)
from bayplan.client.discovery.rest_mapper import KindMapping, NoKindMatch, RestMapper, discover_rest_mapper
from bayplan.client.discovery.served_resources import ServedResources
from bayplan.client.election.leader_address import FORWARDED_TOKEN, leader_annotations, leader_proxy_path
from bayplan.client.election.leader_elector import ElectionTimings, LeaderElector
from bayplan.client.election.multi_lease import MultiLeaseElector
from bayplan.client.error_log_throttle import ErrorLogThrottle
from bayplan.client.event_sink import EventSink, event_resource
from bayplan.client.http.blocking_service import BlockingHttpService
from bayplan.client.http.connection_pool import WARM_CONNECTIONS
from bayplan.client.http.service_client import HttpService, ServiceCallError
from bayplan.client.http.transport import Transport, WriteGuard
from bayplan.client.informer.decoder import UndecodableObject
from bayplan.client.informer.informer import EVERYTHING, Informer, Selection
from bayplan.client.informer.informer_set import InformerSet
from bayplan.client.informer.pager import ListResult
from bayplan.client.resources import (
    ACCESS_REVIEWS,
    CORE_EVENTS,
    EVENTS,
    LEASES,
    PODS,
    TOKEN_REVIEWS,
    GroupVersionResource,
    resource_of,
)
from bayplan.client.tables import Table, TableColumn, TableQuery, TableRow, read_table, watch_objects, watch_table

__all__ = [
    "ACCESS_REVIEWS",
    "APPLY_PATCH",
    "CORE_EVENTS",
    "EVENTS",
    "EVERYTHING",
    "FORWARDED_TOKEN",
    "JSON_PATCH",
    "LEASES",
    "MERGE_PATCH",
    "PODS",
    "REQUEST_TIMEOUT_S",
    "STRATEGIC_PATCH",
    "TOKEN_REVIEWS",
    "WARM_CONNECTIONS",
    "Applier",
    "ApplyResult",
    "BlockingHttpService",
    "Client",
    "ConfirmedWrite",
    "ConfirmedWrites",
    "ConnectionConfig",
    "ElectionTimings",
    "ErrorLogThrottle",
    "EventSink",
    "GroupVersionResource",
    "HttpService",
    "Informer",
    "InformerSet",
    "KindMapping",
    "LateCreates",
    "LeaderElector",
    "ListResult",
    "MultiLeaseElector",
    "NoKindMatch",
    "NotWritten",
    "RestMapper",
    "Secret",
    "Selection",
    "ServedResources",
    "ServiceCallError",
    "Table",
    "TableColumn",
    "TableQuery",
    "TableRow",
    "Transport",
    "UndecodableObject",
    "WriteGuard",
    "WriteState",
    "discover_rest_mapper",
    "event_resource",
    "in_cluster_config",
    "leader_annotations",
    "leader_proxy_path",
    "load_connection_config",
    "read_table",
    "resource_of",
    "watch_objects",
    "watch_table",
    "worker_slot",
]
