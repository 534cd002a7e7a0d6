"""How do the parts become a cluster? The composition root of this room, and the one name that others need of it.

    async with EmbeddedCluster(credentials) as cluster:
        print(cluster.url)

Cost: some 100 ms to start, most of it imports; about 60 MB of memory before the first object.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from bayplan.apiserver.auth.authentication import RequestAuthenticator
from bayplan.apiserver.auth.credentials import ClusterCredentials, admin_user, load_or_create
from bayplan.apiserver.auth.rbac import RbacAuthorizer
from bayplan.apiserver.auth.service_account_tokens import ServiceAccountTokens
from bayplan.apiserver.bootstrap import BootstrapObjects
from bayplan.apiserver.cleanup import Cleanup
from bayplan.apiserver.http.discovery import Discovery
from bayplan.apiserver.http.handler_chain import HandlerChain
from bayplan.apiserver.http.openapi_documents import OpenApiDocuments
from bayplan.apiserver.http.resource_handlers import ResourceHandlers
from bayplan.apiserver.http.server import HttpServer
from bayplan.apiserver.http.subresource_handlers import SubresourceHandlers
from bayplan.apiserver.requests import RequestUser
from bayplan.apiserver.resources.kinds import ResourceRegistry
from bayplan.apiserver.storage.crd_registry import CRD_RESOURCE, CustomResourceRegistry
from bayplan.apiserver.storage.selection_predicate import field_extractor
from bayplan.apiserver.storage.sqlite_backend import DataSync, SqliteBackend
from bayplan.apiserver.storage.store import Store
from bayplan.apiserver.storage.store_lookup import StoreLookup
from bayplan.apiserver.writes.create_templates import CreateTemplates
from bayplan.apiserver.writes.status_templates import StatusTemplates
from bayplan.apiserver.writes.write_pipeline import WritePipeline
from bayplan.apiserver.writes.writer import ObjectWriter
from bayplan.clock import Clock, SystemClock
from bayplan.errors import BayplanError

_VERSIONS_PER_SECOND = 100_000


class ListenError(BayplanError):
    """The address of the cluster cannot be listened on."""


def credentials_for(folder: Path, host: str, clock: Clock | None = None) -> ClusterCredentials:
    """Who a cluster is: found in the folder, or made there at its first start."""
    names = {"localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default.svc", host} - {"0.0.0.0", "::"}
    return load_or_create(folder, names, (clock or SystemClock()).now())


class EmbeddedCluster:
    """A Kubernetes API in this process."""

    def __init__(
        self,
        credentials: ClusterCredentials,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data: Path | None = None,
        data_sync: DataSync = "full",
        users: Mapping[str, RequestUser] | None = None,
        client_authority: Path | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        housekeeping: bool = True,
    ) -> None:
        """`data`: the file that keeps the objects; None keeps them in memory.

        `data_sync`: what a committed write survives. `full`: a power loss; one sync to the disk a group of writes.
        `normal`: the end of the process, also by SIGKILL, and not a power loss.
        `housekeeping`: whether it cleans up after deletions itself; not where controllers do so from outside.
        """
        self.credentials = credentials
        self._host, self._port = host, port
        self._client_authority = client_authority
        self._clock = clock or SystemClock()
        self._chance = chance or random.SystemRandom()
        self._journal = SqliteBackend(data, data_sync) if data is not None else None
        self.resources = ResourceRegistry()
        kept = self._journal.version if self._journal else 0
        self.store = Store(self._journal, version=max(kept, _initial_resource_version(self._clock)))
        self._definitions: CustomResourceRegistry | None = None
        self._restore()
        self._lookup = StoreLookup(self.store.uncommitted)
        self._tokens = ServiceAccountTokens(credentials.token, self._clock.now, self._service_account_uid)
        self._roles = RbacAuthorizer(self.store)
        self.people = RequestAuthenticator({credentials.token: admin_user(), **(users or {})}, self._tokens)
        self.writer = ObjectWriter(self.store, WritePipeline(self._lookup, self._clock), self._clock, self._chance)
        self._furniture = BootstrapObjects(self.store, self.writer, self.resources, credentials.authority.read_text())
        if client_authority is not None and client_authority.exists():
            self._furniture.client_authority = client_authority.read_text()
        self._housekeeping: Cleanup | None = None
        if housekeeping:
            self._housekeeping = Cleanup(self.store, self.writer, self.resources, self._furniture.create_missing)
        self._http: HttpServer | None = None

    def gateway(self) -> HandlerChain:
        """Everything but the sockets: what answers a request."""
        states = StatusTemplates(self.store, self._lookup, self._clock)
        committed = StoreLookup(self.store.committed)
        parts = SubresourceHandlers(
            self.writer, self._lookup, committed, self.people, self._roles, self._tokens, self._clock, states
        )
        moulds = CreateTemplates(self.store, self._lookup, self._clock, self._chance)
        endpoints = ResourceHandlers(self.store, self.writer, self._clock, self._chance, parts, moulds, states)
        discovery = Discovery(self.resources, f"{self._host}:{self._port}")
        return HandlerChain(
            self.people, self._roles, self.resources, discovery, OpenApiDocuments(self.resources), endpoints
        )

    async def __aenter__(self) -> EmbeddedCluster:
        try:
            await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def _start(self) -> None:
        self._http = HttpServer(self.gateway(), lambda: self.store.version)
        tls = self.credentials.server_tls(self._client_authority)
        try:
            self._port = await self._http.start(self._host, self._port, tls)
        except OSError as fault:
            where = f"{self._host}:{self._port}"
            why = (fault.strerror or str(fault)).rpartition(": ")[2]  # behind asyncio's own words
            raise ListenError(f"nobody can listen on {where}: {why}; name another address or port") from None
        self.create_initial_objects()
        if self._housekeeping is not None:
            self._housekeeping.wake()
        await self.store.wait_committed()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        if self._http is not None:
            await self._http.close()
        if self._housekeeping is not None:
            self._housekeeping.stop()
        await self.store.close()
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)

    def create_initial_objects(self) -> None:
        """Put in what every cluster starts with, where it is missing."""
        self._furniture.port = self._port
        self._furniture.all()

    @property
    def port(self) -> int:
        return self._port

    def write_kubeconfig(self, path: Path, name: str) -> None:
        self.credentials.write_kubeconfig(path, self.url, name)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"https://{host}:{self._port}"

    def _service_account_uid(self, namespace: str, name: str) -> str | None:
        """The uid of a service account."""
        entry = self.store.committed(("", "serviceaccounts")).get(namespace, name)
        return entry.uid if entry is not None else None

    def _restore(self) -> None:
        for resource in self.resources:
            self.store.committed(resource.storage).extract = field_extractor(resource)
        rows = list(self._journal.objects()) if self._journal is not None else []
        # Definitions first: they say what objects of the kinds that they bring can be selected by.
        for group, plural, version, raw in sorted(rows, key=lambda row: (row[0], row[1]) != CRD_RESOURCE):
            if (group, plural) != CRD_RESOURCE and self._definitions is None:
                self._definitions = CustomResourceRegistry(self.store, self.resources)
            self.store.restore((group, plural), raw, version)
        self._definitions = self._definitions or CustomResourceRegistry(self.store, self.resources)


def _initial_resource_version(clock: Clock) -> int:
    """Beyond every version that a cluster at this address may have told of before: none writes so fast as this counts.

    Who still watches from such a version, after a reset or a new start, hears that it is gone and lists anew; a count
    from one would leave him with objects that are no more.
    """
    return int(clock.now().timestamp() * _VERSIONS_PER_SECOND)
