"""ResourceQuota controller: keeps the usage in the status of each ResourceQuota.

The API server's admission refuses what would exceed the quota's status, and increments it; the controller recomputes it
when objects change or are deleted. A change in a namespace without quotas costs one lookup. A sync walks the objects of
the namespace, shortly after the last change.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.client import GroupVersionResource
from bayplan.client.discovery.preferred_resources import server_preferred_resources
from bayplan.controllers.core.api_types import (
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_QUOTAS,
    SERVICES,
    PodFields,
    UntypedObject,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Key, SharedIndexInformer, SharedInformerFactory
from bayplan.controllers.policy.quota_usage import (
    COUNTED_KINDS,
    add_known,
    claim_usage,
    in_scopes,
    pod_usage,
    scopes_of,
    service_usage,
)
from bayplan.objects.meta import KubeObject
from bayplan.objects.quotas import Amounts, object_count
from bayplan.objects.volumes import PersistentVolumeClaim

BATCH_PERIOD_S = 0.2


class ResourceQuotaController(Controller):
    """Keeps the usage of namespaces."""

    name = "resourcequota-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.quotas = self.informer(RESOURCE_QUOTAS, UntypedObject)
        self.pods = self.informer(PODS, PodFields)
        self.claims = self.informer(PERSISTENT_VOLUME_CLAIMS, PersistentVolumeClaim)
        self.services = self.informer(SERVICES, UntypedObject)
        self._other_informers: dict[str, SharedIndexInformer[KubeObject]] = {}
        """Informers of further counted resources, by their name in quotas."""
        self.quotas.add_handler(self.enqueue)
        self.pods.add_handler(self._on_pod)
        self.claims.add_handler(self._on_object)
        self.services.add_handler(self._on_object)

    def _on_object(self, old: KubeObject | None, new: KubeObject | None) -> None:
        item = new if new is not None else old
        assert item is not None
        for quota in self.quotas.by_namespace(item.namespace):
            self.queue.add((quota.namespace, quota.name), after_s=BATCH_PERIOD_S)

    def _on_pod(self, old: PodFields | None, new: PodFields | None) -> None:
        if old is None or new is None or old.finished != new.finished or old.spec != new.spec:
            self._on_object(old, new)

    async def sync(self, key: Key) -> float | None:
        quota = self.quotas.get(*key)
        if quota is None or quota.terminating:
            return None
        hard: dict[str, str] = quota.spec.get("hard") or {}
        total: Amounts = {name: object_count(0) for name in hard}
        for usage in self._usages(quota):
            add_known(total, usage)
        if not scopes_of(quota):
            await self._count_others(quota, total)
        used = {name: str(amount) for name, amount in total.items()}
        await self.write_status(RESOURCE_QUOTAS, quota, {"hard": dict(hard), "used": used})
        return None

    def _usages(self, quota: UntypedObject) -> Iterator[Amounts]:
        scopes = scopes_of(quota)
        for pod in self.pods.by_namespace(quota.namespace):
            if in_scopes(pod, scopes):
                yield pod_usage(pod)
        if scopes:
            return  # scopes apply to pods only
        yield from (claim_usage(claim) for claim in self.claims.by_namespace(quota.namespace))
        yield from (service_usage(service) for service in self.services.by_namespace(quota.namespace))

    async def _count_others(self, quota: UntypedObject, total: Amounts) -> None:
        typed = {"pods", "persistentvolumeclaims", "services"}
        for name in total:
            resource_name = name.removeprefix("count/")
            if resource_name in typed or (resource_name == name and name not in COUNTED_KINDS):
                continue
            informer = await self._counting_informer(resource_name)
            if informer is not None:
                total[name] = object_count(len(informer.by_namespace(quota.namespace)))

    async def _counting_informer(self, resource_name: str) -> SharedIndexInformer[KubeObject] | None:
        """Informer of a resource that a quota counts, such as `deployments.apps`; started at first use."""
        informer = self._other_informers.get(resource_name)
        if informer is None:
            plural, _, group = resource_name.partition(".")
            resource = await self._find_resource(group, plural)
            if resource is None:
                return None
            running = self.informers.get_informer(group, plural)
            informer = self._other_informers[resource_name] = running or self.informers.informer(resource, KubeObject)
            informer.add_handler(self._on_add_or_delete)
        await informer.wait_synced()
        return informer

    async def _find_resource(self, group: str, plural: str) -> GroupVersionResource | None:
        served = await server_preferred_resources(self.client)
        return next((each for each in served.watchable() if (each.group, each.plural) == (group, plural)), None)

    def _on_add_or_delete(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """Event handler: only adds and deletes change a count."""
        if old is None or new is None:
            self._on_object(old, new)
