"""The API server seen from here: transport, list and watch, informers, writes, leases, kubeconfig.

Whoever needs the API server imports from this package alone.
"""

from bayplan.client.applying import Applied, Applier
from bayplan.client.blocking import BlockingService
from bayplan.client.catalogue import Catalogue, NamedKind, UnknownKind, read_catalogue
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
from bayplan.client.decoding import Unreadable
from bayplan.client.discovery import Offered
from bayplan.client.election import Election, Timings
from bayplan.client.elections import Elections
from bayplan.client.event_sink import EventSink, event_resource
from bayplan.client.informer import EVERYTHING, Informer, Selection
from bayplan.client.informers import Informers
from bayplan.client.lasting import LastingFaults
from bayplan.client.leaders import FORWARDED_TOKEN, leader_marks, path_to_leader
from bayplan.client.lists import Listed
from bayplan.client.pool import EAGER
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
from bayplan.client.secret import Secret
from bayplan.client.services import NotPosted, Service
from bayplan.client.tables import Column, Row, Table, Wanted, read_table, watch_objects, watch_table
from bayplan.client.target import Target, find_target, in_cluster
from bayplan.client.transport import Guard, Transport

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
