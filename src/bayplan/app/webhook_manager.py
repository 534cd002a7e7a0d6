"""Composition of the admission webhooks: watches of queues and namespaces, settings, certificate and HTTPS server."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
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
from bayplan.apiserver.admission.volcano_webhooks import template_errors
from bayplan.app.insecure_serving import health_server
from bayplan.certificates import self_signed, subject_alternative_names
from bayplan.client import Client, ConnectionConfig, GroupVersionResource, Informer, InformerSet, resource_of
from bayplan.clock import SystemClock
from bayplan.errors import AlreadyExists, ConfigError, NotFound, ServingError
from bayplan.objects.kinds import Kind
from bayplan.objects.meta import KubeObject
from bayplan.server.admission_webhooks import AdmissionHandler, WebhookServer, webhook_configurations
from bayplan.server.http.serving_tls import ServingTls, TlsOptions

log = logging.getLogger(__name__)

Tree = dict[str, Any]
DEFAULT_SERVICE_NAME = "volcano-admission-service"
_MIN_REMAINING_VALIDITY = timedelta(days=30)
"""A certificate of Bayplan that expires sooner than this is renewed at the start."""
_REGISTRATION_WAIT_S = 300
"""Time to wait for webhook configurations that another tool creates; Volcano waits as long."""
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
    """The address of health probes without TLS; empty: none."""
    qps: float = 50.0
    burst: int = 100

    def webhooks(self) -> tuple[AdmissionWebhook, ...]:
        return webhooks_for(self.paths)


class _WatchedObjects:
    """Queues and namespaces from watches, for webhooks that need them. Without such webhooks nothing is watched: a
    cluster without Volcano has no queues."""

    def __init__(self, client: Client, webhooks: Sequence[AdmissionWebhook]) -> None:
        self._queues: Informer = client.informer(_QUEUE_RESOURCE, _ignore)
        self._spaces: Informer = client.informer(_NAMESPACE_RESOURCE, _ignore)
        needed = any(webhook.needs_context for webhook in webhooks)
        self.informers = InformerSet([self._queues, self._spaces] if needed else [])

    def queues(self) -> Mapping[str, Tree]:
        return {key[1]: _tree(item) for key, item in self._queues.store.items() if isinstance(item, _WatchedQueue)}

    def namespace(self, name: str) -> Tree | None:
        item = self._spaces.store.get(("", name))
        return None if item is None else _tree(item)

    def template_errors(self, name: str, namespace: str, template: Tree) -> list[str]:
        return template_errors(name, namespace, template)


def _ignore(_old: KubeObject | None, _new: KubeObject | None) -> None:
    """Ignore the event: only the informers' stores are used."""


def _tree(item: KubeObject) -> Tree:
    metadata = {"name": item.name, "annotations": item.metadata.annotations}
    more = {"spec": item.spec, "status": item.status} if isinstance(item, _WatchedQueue) else {}
    return {"metadata": metadata, **more}


@asynccontextmanager
async def webhook_manager_process(
    target: ConnectionConfig, options: WebhookManagerOptions
) -> AsyncIterator[WebhookServer]:
    """The webhook server, listening once the queues are known."""
    clock = SystemClock()
    limits: dict[str, Any] = {"qps": options.qps, "burst": options.burst}
    async with (
        Client(target, clock=clock, chance=random.Random(), user_agent="bayplan-admission", **limits) as client,
        health_server(options.health_address, (), clock),
    ):
        watched = _WatchedObjects(client, options.webhooks())
        informers_task = asyncio.create_task(watched.informers.run())
        try:
            await watched.informers.wait_synced()
            webhooks = AdmissionHandler(options.webhooks(), watched, options.settings)
            tls = ServingTls(options.tls, clock, address=options.address)
            server = WebhookServer(webhooks, tls=tls, clock=clock, address=options.address, port=options.port)
            await server.start()
            try:
                yield server
            finally:
                await server.close()
        finally:
            informers_task.cancel()
            await asyncio.gather(informers_task, return_exceptions=True)


async def register_webhooks(client: Client, manifests: Sequence[Tree]) -> None:
    """Create or update the webhook configurations, so that the API server calls Bayplan."""
    for body in manifests:
        resource = _KINDS[body["kind"].startswith("Mutating")]
        try:
            await client.create(resource, body)
        except AlreadyExists:
            found = await client.get_raw(resource, "", body["metadata"]["name"])
            annotations = {**found["metadata"].get("annotations", {}), **body["metadata"].get("annotations", {})}
            metadata = {**found["metadata"], "annotations": annotations}
            await client.update(resource, {**found, "metadata": metadata, "webhooks": body["webhooks"]})


async def update_ca_bundles(client: Client, webhooks: Sequence[AdmissionWebhook], authority: bytes) -> None:
    """Set the CA bundle in webhook configurations that another tool creates, such as Volcano's chart.

    Waits for them: a chart creates them last."""
    bundle = base64.b64encode(authority).decode()
    for webhook in webhooks:
        resource, name = _KINDS[webhook.mutating], webhook.registration(DEFAULT_SERVICE_NAME)
        found = await _wait_for_configuration(client, resource, name)
        hooks = found.get("webhooks") or []
        if any(hook["clientConfig"].get("caBundle") != bundle for hook in hooks):
            updated = [{**hook, "clientConfig": {**hook["clientConfig"], "caBundle": bundle}} for hook in hooks]
            await client.update(resource, {**found, "webhooks": updated})


async def _wait_for_configuration(client: Client, resource: GroupVersionResource, name: str) -> Tree:
    for _ in range(_REGISTRATION_WAIT_S):
        try:
            return await client.get_raw(resource, "", name)
        except NotFound:
            log.info("waiting for %s %s", resource.plural, name)
            await client.clock.sleep(1.0)
    raise ServingError(
        f"the API server has no {name} in {resource.plural} after {_REGISTRATION_WAIT_S} s; create it, or let "
        "bayplan create it with --webhook-service"
    )


def webhook_manifests(
    webhooks: Sequence[AdmissionWebhook],
    *,
    url: str = "",
    service: str = "",
    namespace: str = "",
    port: int = 443,
    authority: bytes = b"",
    sharing: Sequence[str] = (DEFAULT_SCHEDULER,),
) -> list[Tree]:
    """Webhook configurations, with a URL or a service of the cluster. `sharing`: the schedulers whose pods may share
    GPUs."""
    client: Tree = {"url": url} if url else {"service": {"name": service, "namespace": namespace, "port": port}}
    if authority:
        client["caBundle"] = base64.b64encode(authority).decode()
    return webhook_configurations(webhooks, name=service or DEFAULT_SERVICE_NAME, client=client, sharing=sharing)


def ensure_certificate(folder: Path, names: Sequence[str]) -> tuple[Path, Path]:
    """A self-signed certificate for these names, and its key, in a folder; created if there is no valid one. An API
    server rejects all requests to a webhook whose certificate has other names or has expired."""
    certificate, key = folder / "webhooks.crt", folder / "webhooks.key"
    if not key.exists() or not _is_certificate_valid(certificate, names, datetime.now(UTC)):
        pair = self_signed(names, datetime.now(UTC))
        folder.mkdir(parents=True, exist_ok=True)
        key.touch(mode=0o600)
        key.write_text(pair.key)
        certificate.write_text(pair.certificate)
    return certificate, key


def _is_certificate_valid(path: Path, names: Sequence[str], now: datetime) -> bool:
    """Whether the certificate exists, has all these names, and does not expire soon."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        known = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    return set(subject_alternative_names(names)) <= set(known) and (
        found.not_valid_after_utc - now > _MIN_REMAINING_VALIDITY
    )


def parse_resource_groups(text: str) -> tuple[ResourceGroup, ...]:
    try:
        tree = yaml.safe_load(text) or {}
        return tuple(ResourceGroup.parse(each) for each in tree.get("resourceGroups") or ())
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as fault:
        raise ConfigError(
            f"the admission configuration cannot be read: {fault}; see its resourceGroups", stage="decoding"
        ) from None
