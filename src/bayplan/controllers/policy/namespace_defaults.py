"""Controllers of the objects that every namespace has: ServiceAccount `default` and ConfigMap `kube-root-ca.crt`."""

from __future__ import annotations

from contextlib import suppress

from bayplan.client import Selection
from bayplan.controllers.core.api_types import (
    CONFIG_MAPS,
    NAMESPACES,
    SERVICE_ACCOUNTS,
    ConfigMap,
    ServiceAccountFields,
    UntypedObject,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.errors import AlreadyExists
from bayplan.objects.meta import KubeObject

ROOT_CA_CONFIG_MAP = "kube-root-ca.crt"
_NOTE = {
    "kubernetes.io/description": "Contains a CA bundle that can be used to verify the kube-apiserver when using "
    "internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across "
    "distributions of Kubernetes clusters."
}


class _NamespaceDefaultController(Controller):
    """Base of controllers that create one object in each namespace."""

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.namespaces = self.informer(NAMESPACES, UntypedObject)
        self.namespaces.add_handler(self._on_namespace)

    def _on_namespace(self, _: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is not None and not new.terminating:
            self.queue.add(("", new.name))

    def _on_object(self, old: KubeObject | None, new: KubeObject | None) -> None:
        item = new if new is not None else old
        assert item is not None
        self.queue.add(("", item.namespace))

    def _is_active_namespace(self, namespace: str) -> bool:
        found = self.namespaces.get("", namespace)
        return found is not None and not found.terminating and found.status.get("phase", "Active") == "Active"


class DefaultServiceAccountController(_NamespaceDefaultController):
    name = "serviceaccount-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.accounts = self.informer(SERVICE_ACCOUNTS, ServiceAccountFields)
        self.accounts.add_handler(self._on_object)

    async def sync(self, key: Key) -> float | None:
        namespace = key[1]
        if not self._is_active_namespace(namespace) or self.accounts.get(namespace, "default") is not None:
            return None
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        with suppress(AlreadyExists):
            await self.client.create(SERVICE_ACCOUNTS, body, namespace=namespace)
        return None


class RootCaPublisher(_NamespaceDefaultController):
    name = "root-ca-certificate-publisher-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self._certificate = informers.client.target.authority().decode()
        self.maps = self.informer(
            CONFIG_MAPS, ConfigMap, selection=Selection(field_selector=f"metadata.name={ROOT_CA_CONFIG_MAP}")
        )
        self.maps.add_handler(self._on_object)

    async def sync(self, key: Key) -> float | None:
        namespace = key[1]
        if not self._certificate or not self._is_active_namespace(namespace):
            return None
        found = self.maps.get(namespace, ROOT_CA_CONFIG_MAP)
        data = {"ca.crt": self._certificate}
        if found is None:
            meta = {"name": ROOT_CA_CONFIG_MAP, "annotations": _NOTE}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
            with suppress(AlreadyExists):
                await self.client.create(CONFIG_MAPS, body, namespace=namespace)
        elif found.data != data:
            await self.write(CONFIG_MAPS, found, {"data": data})
        return None
