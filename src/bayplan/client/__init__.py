"""The API server seen from here: transport, list and watch, informers, writes, leases, kubeconfig.

Whoever needs the API server imports from this package alone.
"""

from bayplan.client.applier import Applied, Applier
from bayplan.client.auth.connection_config import Target, find_target, in_cluster
from bayplan.client.auth.secret import Secret
from bayplan.client.client import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Client,
)
from bayplan.client.confirmed_writes import (
    REQUEST_TIMEOUT_S,
    ConfirmedWrites,
    Found,
    LateCreates,
    Missing,
    Written,
    worker_slot,
)
from bayplan.client.discovery.rest_mapper import (
    Catalogue,
    NamedKind,
    UnknownKind,
    read_catalogue,
)
from bayplan.client.discovery.served_resources import Offered
from bayplan.client.election.leader_address import FORWARDED_TOKEN, leader_marks, path_to_leader
from bayplan.client.election.leader_elector import Election, Timings
from bayplan.client.election.multi_lease import Elections
from bayplan.client.error_log_throttle import LastingFaults
from bayplan.client.event_sink import EventSink, event_resource
from bayplan.client.http.blocking_service import BlockingService
from bayplan.client.http.connection_pool import EAGER
from bayplan.client.http.service_client import NotPosted, Service
from bayplan.client.http.transport import Guard, Transport
from bayplan.client.informer.decoder import Unreadable
from bayplan.client.informer.informer import EVERYTHING, Informer, Selection
from bayplan.client.informer.informer_set import Informers
from bayplan.client.informer.pager import Listed
from bayplan.client.resources import (
    ACCESS_REVIEWS,
    CORE_EVENTS,
    EVENTS,
    LEASES,
    PODS,
    TOKEN_REVIEWS,
    Resource,
    resource_of,
)
from bayplan.client.tables import Column, Row, Table, Wanted, read_table, watch_objects, watch_table

__all__ = [
    "ACCESS_REVIEWS",
    "APPLY_PATCH",
    "CORE_EVENTS",
    "EAGER",
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
    "Applied",
    "Applier",
    "BlockingService",
    "Catalogue",
    "Client",
    "Column",
    "ConfirmedWrites",
    "Election",
    "Elections",
    "EventSink",
    "Found",
    "Guard",
    "Informer",
    "Informers",
    "LastingFaults",
    "LateCreates",
    "Listed",
    "Missing",
    "NamedKind",
    "NotPosted",
    "Offered",
    "Resource",
    "Row",
    "Secret",
    "Selection",
    "Service",
    "Table",
    "Target",
    "Timings",
    "Transport",
    "UnknownKind",
    "Unreadable",
    "Wanted",
    "Written",
    "event_resource",
    "find_target",
    "in_cluster",
    "leader_marks",
    "path_to_leader",
    "read_catalogue",
    "read_table",
    "resource_of",
    "watch_objects",
    "watch_table",
    "worker_slot",
]
