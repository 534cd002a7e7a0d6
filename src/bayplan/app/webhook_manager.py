"""How do the webhooks become a process? Queues and namespaces by watch, doors, settings, a certificate, a port."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509

from bayplan.admission.gpu_sharing import DEFAULT_SCHEDULER
from bayplan.admission.webhooks import (
    DEFAULT_WEBHOOKS,
    AdmissionSettings,
    AdmissionWebhook,
    ResourceGroup,
    webhooks_for,
)
from bayplan.apiserver.admission.volcano_webhooks import template_faults
from bayplan.app.health_server import health_server
from bayplan.client import Client, ConnectionConfig, GroupVersionResource, Informer, InformerSet, resource_of
from bayplan.clock import SystemClock
from bayplan.errors import AlreadyExists, ConfigError, NotFound, ServingError
from bayplan.objects.kinds import Kind
from bayplan.objects.meta import KubeObject
from bayplan.server.admission_webhooks import AdmissionHandler, WebhookServer, webhook_configurations
from bayplan.server.http.self_signed import self_signed
from bayplan.server.http.serving_tls import ServingTls, TlsOptions

log = logging.getLogger(__name__)

Tree = dict[str, Any]
DEFAULT_SERVICE_NAME = "volcano-admission-service"
_MIN_REMAINING_VALIDITY = timedelta(days=30)
"""A certificate of ours that is good for less is made anew at the start."""
_REGISTRATION_WAIT_S = 300
"""For so many seconds registrations of others' making are waited for; Volcano waits as long."""
_KINDS = {
    True: GroupVersionResource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", namespaced=False),
    False: GroupVersionResource(
        "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", namespaced=False
    ),
}


class _WatchedQueue(KubeObject, frozen=True):
    spec: Tree = {}
    status: Tree = {}


class _WatchedNamespace(KubeObject, frozen=True):
    """A Namespace."""


_QUEUE_RESOURCE = resource_of(Kind("Queue", "queues", "scheduling.volcano.sh", _WatchedQueue, versions=("v1beta1",)))
_NAMESPACE_RESOURCE = resource_of(Kind("Namespace", "namespaces", "", _WatchedNamespace))


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookManagerOptions:
    """The flags of Volcano's webhook manager."""

    address: str = ""
    port: int = 8443
    tls: TlsOptions = field(default_factory=TlsOptions)
    paths: Sequence[str] = DEFAULT_WEBHOOKS
    settings: AdmissionSettings = field(default_factory=AdmissionSettings)
    health_address: str = ""
    """Where probes are answered without TLS, if they are."""
    qps: float = 50.0
    burst: int = 100

    def webhooks(self) -> tuple[AdmissionWebhook, ...]:
        return webhooks_for(self.paths)


class _WatchedObjects:
    """What decisions depend on, kept by watches; by none where they depend on the object alone, for a cluster without
    Volcano has no queues."""

    def __init__(self, client: Client, doors: Sequence[AdmissionWebhook]) -> None:
        self._queues: Informer = client.informer(_QUEUE_RESOURCE, _ignore)
        self._spaces: Informer = client.informer(_NAMESPACE_RESOURCE, _ignore)
        needed = any(door.needs_context for door in doors)
        self.informers = InformerSet([self._queues, self._spaces] if needed else [])

    def queues(self) -> Mapping[str, Tree]:
        return {key[1]: _tree(item) for key, item in self._queues.store.items() if isinstance(item, _WatchedQueue)}

    def namespace(self, name: str) -> Tree | None:
        item = self._spaces.store.get(("", name))
        return None if item is None else _tree(item)

    def template_faults(self, name: str, namespace: str, template: Tree) -> list[str]:
        return template_faults(name, namespace, template)


def _ignore(_old: KubeObject | None, _new: KubeObject | None) -> None:
    """The stores are all that is wanted."""


def _tree(item: KubeObject) -> Tree:
    metadata = {"name": item.name, "annotations": item.metadata.annotations}
    more = {"spec": item.spec, "status": item.status} if isinstance(item, _WatchedQueue) else {}
    return {"metadata": metadata, **more}


@asynccontextmanager
async def webhook_manager_process(
    target: ConnectionConfig, options: WebhookManagerOptions
) -> AsyncIterator[WebhookServer]:
    """The webhooks, listening, once the queues are known."""
    clock = SystemClock()
    limits: dict[str, Any] = {"qps": options.qps, "burst": options.burst}
    async with (
        Client(target, clock=clock, chance=random.Random(), user_agent="bayplan-admission", **limits) as client,
        health_server(options.health_address, (), clock),
    ):
        watched = _WatchedObjects(client, options.webhooks())
        running = asyncio.create_task(watched.informers.run())
        try:
            await watched.informers.wait_synced()
            webhooks = AdmissionHandler(options.webhooks(), watched, options.settings)
            tls = ServingTls(options.tls, clock, address=options.address)
            server = WebhookServer(webhooks, tls=tls, address=options.address, port=options.port)
            await server.start()
            try:
                yield server
            finally:
                await server.close()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def register_webhooks(client: Client, manifests: Sequence[Tree]) -> None:
    """Make an API server ask us, whether it asked somebody of this name before or not."""
    for body in manifests:
        resource = _KINDS[body["kind"].startswith("Mutating")]
        try:
            await client.create(resource, body)
        except AlreadyExists:
            found = await client.get_raw(resource, "", body["metadata"]["name"])
            said = {**found["metadata"].get("annotations", {}), **body["metadata"].get("annotations", {})}
            metadata = {**found["metadata"], "annotations": said}
            await client.update(resource, {**found, "metadata": metadata, "webhooks": body["webhooks"]})


async def update_ca_bundles(client: Client, doors: Sequence[AdmissionWebhook], authority: bytes) -> None:
    """Say in the registrations that somebody else makes, such as Volcano's chart, who signed our certificate.

    They are waited for: a chart makes them when everything else is there."""
    bundle = base64.b64encode(authority).decode()
    for door in doors:
        resource, name = _KINDS[door.mutating], door.registration(DEFAULT_SERVICE_NAME)
        found = await _wait_for_configuration(client, resource, name)
        hooks = found.get("webhooks") or []
        if any(hook["clientConfig"].get("caBundle") != bundle for hook in hooks):
            told = [{**hook, "clientConfig": {**hook["clientConfig"], "caBundle": bundle}} for hook in hooks]
            await client.update(resource, {**found, "webhooks": told})


async def _wait_for_configuration(client: Client, resource: GroupVersionResource, name: str) -> Tree:
    for _ in range(_REGISTRATION_WAIT_S):
        try:
            return await client.get_raw(resource, "", name)
        except NotFound:
            log.info("waiting for %s %s", resource.plural, name)
            await client.clock.sleep(1.0)
    raise ServingError(
        f"there is no {name} among the {resource.plural} after {_REGISTRATION_WAIT_S} s; make it, or "
        "have us make it with "
        "--webhook-service"
    )


def webhook_manifests(
    doors: Sequence[AdmissionWebhook],
    *,
    url: str = "",
    service: str = "",
    namespace: str = "",
    port: int = 443,
    authority: bytes = b"",
    sharing: Sequence[str] = (DEFAULT_SCHEDULER,),
) -> list[Tree]:
    """The registrations of these doors, reached by URL or by a service of the cluster. `sharing`: the schedulers whose
    pods may share GPUs."""
    client: Tree = {"url": url} if url else {"service": {"name": service, "namespace": namespace, "port": port}}
    if authority:
        client["caBundle"] = base64.b64encode(authority).decode()
    return webhook_configurations(doors, name=service or DEFAULT_SERVICE_NAME, client=client, sharing=sharing)


def ensure_certificate(folder: Path, names: Sequence[str]) -> tuple[Path, Path]:
    """A certificate of our own for these names, and its key, in a folder; made where there is none that will do. An API
    server that is shown one for other names, or one that is over, refuses whatever the webhooks are asked about."""
    certificate, key = folder / "webhooks.crt", folder / "webhooks.key"
    if not key.exists() or not _is_certificate_valid(certificate, names, datetime.now(UTC)):
        pair = self_signed(names, datetime.now(UTC))
        folder.mkdir(parents=True, exist_ok=True)
        key.touch(mode=0o600)
        key.write_text(pair.key.reveal())
        certificate.write_text(pair.certificate)
    return certificate, key


def _is_certificate_valid(path: Path, names: Sequence[str], now: datetime) -> bool:
    """Whether a certificate is there, good for all these names, and for a while yet."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        known = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    good_for = {*known.get_values_for_type(x509.DNSName), *map(str, known.get_values_for_type(x509.IPAddress))}
    return {
        _certificate_name(name) for name in names
    } <= good_for and found.not_valid_after_utc - now > _MIN_REMAINING_VALIDITY


def _certificate_name(name: str) -> str:
    """A host name or an address as certificates spell it."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name.encode("idna").decode()


def parse_resource_groups(text: str) -> tuple[ResourceGroup, ...]:
    """The resource groups of Volcano's admission configuration."""
    try:
        tree = yaml.safe_load(text) or {}
        return tuple(ResourceGroup.parse(each) for each in tree.get("resourceGroups") or ())
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as fault:
        raise ConfigError(f"the admission configuration cannot be read: {fault}", stage="decoding") from None
