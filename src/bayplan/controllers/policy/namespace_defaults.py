"""Does every namespace have what pods in it need? The account `default`, and the certificate of the cluster."""

from __future__ import annotations

from contextlib import suppress

from bayplan.client import Selection
from bayplan.controllers.core.api_types import (
    ACCOUNTS,
    CONFIG_MAPS,
    NAMESPACES,
    Account,
    ConfigMap,
    Whole,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Key, World
from bayplan.errors import AlreadyExists
from bayplan.objects.meta import KubeObject

ROOT = "kube-root-ca.crt"
_NOTE = {
    "kubernetes.io/description": "Contains a CA bundle that can be used to verify the kube-apiserver when using "
    "internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across "
    "distributions of Kubernetes clusters."
}


class _Furnishing(Controller):
    """Something that every namespace has."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.namespaces = self.feed(NAMESPACES, Whole)
        self.namespaces.listen(self._on_namespace)

    def _on_namespace(self, _: Whole | None, new: Whole | None) -> None:
        if new is not None and not new.terminating:
            self.queue.add(("", new.name))

    def _on_thing(self, old: KubeObject | None, new: KubeObject | None) -> None:
        item = new if new is not None else old
        assert item is not None
        self.queue.add(("", item.namespace))

    def _wanting(self, namespace: str) -> bool:
        found = self.namespaces.get("", namespace)
        return found is not None and not found.terminating and found.status.get("phase", "Active") == "Active"


class ServiceAccounts(_Furnishing):
    """Keeps the account `default`."""

    name = "serviceaccount-controller"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.accounts = self.feed(ACCOUNTS, Account)
        self.accounts.listen(self._on_thing)

    async def sync(self, key: Key) -> float | None:
        namespace = key[1]
        if not self._wanting(namespace) or self.accounts.get(namespace, "default") is not None:
            return None
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        with suppress(AlreadyExists):
            await self.client.create(ACCOUNTS, body, namespace=namespace)
        return None


class RootCertificates(_Furnishing):
    """Keeps the certificate by which pods know the API server."""

    name = "root-ca-certificate-publisher-controller"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._certificate = world.client.target.authority().decode()
        self.maps = self.feed(CONFIG_MAPS, ConfigMap, selection=Selection(field_selector=f"metadata.name={ROOT}"))
        self.maps.listen(self._on_thing)

    async def sync(self, key: Key) -> float | None:
        namespace = key[1]
        if not self._certificate or not self._wanting(namespace):
            return None
        found = self.maps.get(namespace, ROOT)
        data = {"ca.crt": self._certificate}
        if found is None:
            meta = {"name": ROOT, "annotations": _NOTE}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
            with suppress(AlreadyExists):
                await self.client.create(CONFIG_MAPS, body, namespace=namespace)
        elif found.data != data:
            await self.write(CONFIG_MAPS, found, {"data": data})
        return None
