"""Composition root of the embedded API server.

    async with EmbeddedCluster(credentials) as cluster:
        print(cluster.url)

`app/cluster.py` and tests create it. Like kube-apiserver it does not clean up after deletions: garbage collection,
deleted namespaces and the protection of volumes are the work of controllers (`CLEANUP_CONTROLLERS`). Cost: some 100 ms
to start, most of it imports; about 60 MB of memory before the first object.
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
from bayplan.apiserver.writes.crd_finalizer import CrdFinalizer
from bayplan.apiserver.writes.create_templates import CreateTemplates
from bayplan.apiserver.writes.status_templates import StatusTemplates
from bayplan.apiserver.writes.write_pipeline import WritePipeline
from bayplan.apiserver.writes.writer import ObjectWriter
from bayplan.clock import Clock, SystemClock
from bayplan.errors import BayplanError

_VERSIONS_PER_SECOND = 100_000


class ListenError(BayplanError):
    """The server cannot listen on its address."""


def credentials_for(folder: Path, host: str, clock: Clock | None = None) -> ClusterCredentials:
    """The credentials in the folder. The first start of a cluster creates them."""
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
    ) -> None:
        """`data`: the SQLite file of the objects; None keeps them in memory.

        `data_sync`: what a committed write survives. `full`: a power loss; each group of writes costs one sync to the
        disk. `normal`: the end of the process, also by SIGKILL, but not a power loss.
        """
        self.credentials = credentials
        self._host, self._port = host, port
        self._client_authority = client_authority
        self._clock = clock or SystemClock()
        self._chance = chance or random.SystemRandom()
        self._backend = SqliteBackend(data, data_sync) if data is not None else None
        self.resources = ResourceRegistry()
        stored_version = self._backend.version if self._backend else 0
        self.store = Store(self._backend, version=max(stored_version, _initial_resource_version(self._clock)))
        self._definitions: CustomResourceRegistry | None = None
        self._restore()
        self._lookup = StoreLookup(self.store.uncommitted_objects)
        self._tokens = ServiceAccountTokens(credentials.token, self._clock.now, self._service_account_uid)
        self._roles = RbacAuthorizer(self.store)
        self.authenticator = RequestAuthenticator({credentials.token: admin_user(), **(users or {})}, self._tokens)
        self.writer = ObjectWriter(self.store, WritePipeline(self._lookup, self._clock), self._clock, self._chance)
        self._bootstrap = BootstrapObjects(self.store, self.writer, self.resources, credentials.authority.read_text())
        if client_authority is not None and client_authority.exists():
            self._bootstrap.client_authority = client_authority.read_text()
        self._crd_finalizer = CrdFinalizer(self.store, self.writer, self.resources)
        self._http: HttpServer | None = None

    def handler_chain(self) -> HandlerChain:
        """Everything behind the socket: authentication, authorization and the handlers."""
        statuses = StatusTemplates(self.store, self._lookup, self._clock)
        committed = StoreLookup(self.store.committed_objects)
        subresources = SubresourceHandlers(
            self.writer, self._lookup, committed, self.authenticator, self._roles, self._tokens, self._clock, statuses
        )
        templates = CreateTemplates(self.store, self._lookup, self._clock, self._chance)
        handlers = ResourceHandlers(
            self.store, self.writer, self._clock, self._chance, subresources, templates, statuses
        )
        discovery = Discovery(self.resources, f"{self._host}:{self._port}")
        openapi = OpenApiDocuments(self.resources)
        return HandlerChain(self.authenticator, self._roles, self.resources, discovery, openapi, handlers)

    async def __aenter__(self) -> EmbeddedCluster:
        try:
            await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def _start(self) -> None:
        self._http = HttpServer(self.handler_chain(), lambda: self.store.version)
        tls = self.credentials.server_tls(self._client_authority)
        try:
            self._port = await self._http.start(self._host, self._port, tls)
        except OSError as error:
            address = f"{self._host}:{self._port}"
            reason = (error.strerror or str(error)).rpartition(": ")[2]  # without the text that asyncio puts in front
            raise ListenError(f"cannot listen on {address}: {reason}; use another address or port") from None
        self.create_initial_objects()
        self._crd_finalizer.wake()
        await self.store.wait_committed()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        if self._http is not None:
            await self._http.close()
        self._crd_finalizer.stop()
        await self.store.close()
        if self._backend is not None:
            await asyncio.to_thread(self._backend.close)

    def create_initial_objects(self) -> None:
        """Create the bootstrap objects that are missing."""
        self._bootstrap.port = self._port
        self._bootstrap.all()

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
        entry = self.store.committed_objects(("", "serviceaccounts")).get(namespace, name)
        return entry.uid if entry is not None else None

    def _restore(self) -> None:
        for resource in self.resources:
            self.store.committed_objects(resource.storage).extract = field_extractor(resource)
        rows = list(self._backend.objects()) if self._backend is not None else []
        # Definitions first: they name the fields by which custom resources are selected.
        for group, plural, version, raw in sorted(rows, key=lambda row: (row[0], row[1]) != CRD_RESOURCE):
            if (group, plural) != CRD_RESOURCE and self._definitions is None:
                self._definitions = CustomResourceRegistry(self.store, self.resources)
            self.store.restore((group, plural), raw, version)
        self._definitions = self._definitions or CustomResourceRegistry(self.store, self.resources)


def _initial_resource_version(clock: Clock) -> int:
    """A resource version above all versions that an earlier cluster at this address can have returned.

    It grows by 100,000 a second, faster than any cluster writes. A client that still watches from such an older
    version, after a reset or a restart, gets 410 Gone and lists again. With a count from one the client would keep
    deleted objects.
    """
    return int(clock.now().timestamp() * _VERSIONS_PER_SECOND)
