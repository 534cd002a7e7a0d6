"""How much of each ResourceQuota is used? Its status, from what exists.

The API server refuses what would exceed a quota by what its status says, and counts up itself; this counts anew when
objects change or go. A namespace without quotas costs a look-up for each change; one with a quota a walk over its
objects, a moment after the last change.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.client import Resource
from bayplan.client.discovery.preferred_resources import kinds_there
from bayplan.controllers.core.api_types import (
    CLAIMS,
    PODS,
    QUOTAS,
    SERVICES,
    SeenPod,
    Whole,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Feed, Key, World
from bayplan.controllers.policy.quota_usage import (
    PLAIN,
    added,
    claim_usage,
    in_scopes,
    pod_usage,
    scopes_of,
    service_usage,
)
from bayplan.objects.meta import KubeObject
from bayplan.objects.quotas import Amounts, number
from bayplan.objects.volumes import PersistentVolumeClaim

BREATH_S = 0.2


class Quotas(Controller):
    """Counts what namespaces use."""

    name = "resourcequota-controller"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.quotas = self.feed(QUOTAS, Whole)
        self.pods = self.feed(PODS, SeenPod)
        self.claims = self.feed(CLAIMS, PersistentVolumeClaim)
        self.services = self.feed(SERVICES, Whole)
        self._others: dict[str, Feed[KubeObject]] = {}
        """What else is counted, by how quotas call it."""
        self.quotas.listen(self.enqueue)
        self.pods.listen(self._on_pod)
        self.claims.listen(self._on_object)
        self.services.listen(self._on_object)

    def _on_object(self, old: KubeObject | None, new: KubeObject | None) -> None:
        item = new if new is not None else old
        assert item is not None
        for quota in self.quotas.within(item.namespace):
            self.queue.add((quota.namespace, quota.name), after_s=BREATH_S)

    def _on_pod(self, old: SeenPod | None, new: SeenPod | None) -> None:
        if old is None or new is None or old.finished != new.finished or old.spec != new.spec:
            self._on_object(old, new)

    async def sync(self, key: Key) -> float | None:
        quota = self.quotas.get(*key)
        if quota is None or quota.terminating:
            return None
        hard: dict[str, str] = quota.spec.get("hard") or {}
        total: Amounts = {name: number(0) for name in hard}
        for usage in self._usages(quota):
            added(total, usage)
        if not scopes_of(quota):
            await self._count_others(quota, total)
        used = {name: str(amount) for name, amount in total.items()}
        await self.write_status(QUOTAS, quota, {"hard": dict(hard), "used": used})
        return None

    def _usages(self, quota: Whole) -> Iterator[Amounts]:
        scopes = scopes_of(quota)
        for pod in self.pods.within(quota.namespace):
            if in_scopes(pod, scopes):
                yield pod_usage(pod)
        if scopes:
            return  # only pods have scopes
        yield from (claim_usage(claim) for claim in self.claims.within(quota.namespace))
        yield from (service_usage(service) for service in self.services.within(quota.namespace))

    async def _count_others(self, quota: Whole, total: Amounts) -> None:
        known = {"pods", "persistentvolumeclaims", "services"}
        for name in total:
            called = name.removeprefix("count/")
            if called in known or (called == name and name not in PLAIN):
                continue
            feed = await self._counted(called)
            if feed is not None:
                total[name] = number(len(feed.within(quota.namespace)))

    async def _counted(self, called: str) -> Feed[KubeObject] | None:
        """The feed of a kind that a quota counts, such as `deployments.apps`; watched from the first time on."""
        known = self._others.get(called)
        if known is None:
            plural, _, group = called.partition(".")
            resource = await self._offered(group, plural)
            if resource is None:
                return None
            known = self._others[called] = self.world.known(group, plural) or self.world.feed(resource, KubeObject)
            known.listen(self._unless_same)
        await known.wait_synced()
        return known

    async def _offered(self, group: str, plural: str) -> Resource | None:
        there = await kinds_there(self.client)
        return next((each for each in there.watchable() if (each.group, each.plural) == (group, plural)), None)

    def _unless_same(self, old: KubeObject | None, new: KubeObject | None) -> None:
        """Only how many there are counts."""
        if old is None or new is None:
            self._on_object(old, new)
