"""Namespace controller: deletes the objects of a deleted namespace, pods first, and then removes its finalizer.

Only namespaces are watched. A deletion is rare; each sync lists what is left of each kind.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

import msgspec

from bayplan.client import GroupVersionResource
from bayplan.client.discovery.preferred_resources import (
    PreferredResource,
    PreferredResources,
    server_preferred_resources,
)
from bayplan.controllers.core.api_types import NAMESPACES, Tree, UntypedObject
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.errors import ApiError, BayplanError, Conflict, NotFound
from bayplan.objects.meta import KubeObject, format_time

FINALIZER = "kubernetes"
RECHECK_S = 0.5
NAMESPACE_DELETION_GRACE_PERIOD_S = 2.0
"""Seconds for which a deleted namespace keeps its content. `kubectl delete -f` deletes the namespace of a manifest
first and then the objects in it one by one; these must still exist then. Upstream waits five seconds."""


class _PartialList(msgspec.Struct, frozen=True):
    items: tuple[KubeObject, ...] = ()


class NamespaceController(Controller):
    """Empties deleted namespaces and removes their finalizer."""

    name = "namespace-controller"
    workers = 10

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.namespaces = self.informer(NAMESPACES, UntypedObject)
        self.namespaces.add_handler(self._on_namespace)

    def _on_namespace(self, _: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is not None and new.terminating:
            self.queue.add(("", new.name), after_s=NAMESPACE_DELETION_GRACE_PERIOD_S)

    async def sync(self, key: Key) -> float | None:
        found = self.namespaces.get(*key)
        if found is None or not found.terminating or FINALIZER not in (found.spec.get("finalizers") or ()):
            return None
        served = await server_preferred_resources(self.client)
        wanted = {"list", "delete"}
        resources = [each for each in served.resources if each.resource.namespaced and wanted <= each.verbs]
        pods = [each for each in resources if (each.resource.group, each.resource.plural) == ("", "pods")]
        left, faults = await self._empty_resources(found.name, pods)
        if not left and not faults:
            other_resources = [each for each in resources if each not in pods]
            left, faults = await self._empty_resources(found.name, other_resources)
        if left or faults or served.failed:
            await self._write_conditions(found, served, left, faults)
            return RECHECK_S
        await self._remove_finalizer(found)
        return None

    async def _empty_resources(
        self, namespace: str, resources: list[PreferredResource]
    ) -> tuple[dict[str, list[KubeObject]], list[str]]:
        """Delete the objects of these resources. Returns what is left and the failures."""
        answers = await asyncio.gather(*(self._empty(namespace, each) for each in resources), return_exceptions=True)
        left: dict[str, list[KubeObject]] = {}
        faults: list[str] = []
        for resource, answer in zip(resources, answers, strict=True):
            if isinstance(answer, BayplanError):
                faults.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            elif answer:
                left[_resource_text(resource.resource)] = answer
        return left, faults

    async def _empty(self, namespace: str, resource: PreferredResource) -> list[KubeObject]:
        items = await self._list(namespace, resource.resource)
        living = [each for each in items if each.metadata.deletion_timestamp is None]
        if not living:
            return items
        if "deletecollection" in resource.verbs:
            body = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"})
            await self.client.transport.request("DELETE", resource.resource.path(namespace), body)
        else:
            for each in living:
                await self.delete(resource.resource, each, propagation="Background")
        return await self._list(namespace, resource.resource)

    async def _list(self, namespace: str, resource: GroupVersionResource) -> list[KubeObject]:
        try:
            answer = await self.client.transport.request("GET", resource.path(namespace))
        except ApiError as fault:
            if isinstance(fault, NotFound) or fault.code == 405:
                return []
            raise
        return list(msgspec.json.decode(answer.body, type=_PartialList).items)

    async def _remove_finalizer(self, found: UntypedObject) -> None:
        tree = await self.client.get_raw(NAMESPACES, "", found.name)
        if tree["metadata"]["uid"] != found.uid:
            return
        finalizers = [each for each in tree["spec"].get("finalizers") or () if each != FINALIZER]
        tree["spec"]["finalizers"] = finalizers
        try:
            await self.client.update(NAMESPACES, tree, subresource="finalize")
        except (Conflict, NotFound):
            self.enqueue(None, found)

    async def _write_conditions(
        self, found: UntypedObject, served: PreferredResources, left: dict[str, list[KubeObject]], faults: list[str]
    ) -> None:
        """Write the conditions with what still blocks the deletion."""
        now = self.clock.now()
        status = {**found.status, "conditions": conditions(found, served, left, faults, now)}
        if status["conditions"] != found.status.get("conditions"):
            await self.write_status(NAMESPACES, found, status)


def conditions(
    found: UntypedObject,
    served: PreferredResources,
    left: dict[str, list[KubeObject]],
    faults: list[str],
    now: datetime,
) -> list[Tree]:
    """Upstream's five conditions of a terminating namespace."""
    counts = ", ".join(f"{name} has {len(items)} resource instances" for name, items in sorted(left.items()))
    finalizers: dict[str, int] = {}
    for items in left.values():
        for item in items:
            for name in item.metadata.finalizers:
                finalizers[name] = finalizers.get(name, 0) + 1
    held = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(finalizers.items()))
    current: tuple[Tree, ...] = (
        _condition(
            "NamespaceDeletionDiscoveryFailure", ", ".join(served.failed), "DiscoveryFailed", "ResourcesDiscovered"
        ),
        _condition(
            "NamespaceDeletionGroupVersionParsingFailure", "", "GroupVersionParsingFailed", "ParsedGroupVersions"
        ),
        _condition("NamespaceDeletionContentFailure", "; ".join(faults), "ContentDeletionFailed", "ContentDeleted"),
        _condition("NamespaceContentRemaining", counts, "SomeResourcesRemain", "ContentRemoved"),
        _condition("NamespaceFinalizersRemaining", held, "SomeFinalizersRemain", "ContentHasNoFinalizers"),
    )
    before: dict[str, Tree] = {each["type"]: each for each in found.status.get("conditions") or ()}
    merged: list[Tree] = []
    for each in current:
        previous = before.get(each["type"])
        since = (
            previous["lastTransitionTime"] if previous and previous["status"] == each["status"] else format_time(now)
        )
        merged.append({**each, "lastTransitionTime": since})
    return merged


_SUCCESS_MESSAGES = {
    "ResourcesDiscovered": "All resources successfully discovered",
    "ParsedGroupVersions": "All legacy kube types successfully parsed",
    "ContentDeleted": "All content successfully deleted, may be waiting on finalization",
    "ContentRemoved": "All content successfully removed",
    "ContentHasNoFinalizers": "All content-preserving finalizers finished",
}
_FAILURE_REASONS = {
    "DiscoveryFailed": "Discovery failed for some groups: ",
    "ContentDeletionFailed": "Failed to delete all resource types: ",
    "SomeResourcesRemain": "Some resources are remaining: ",
    "SomeFinalizersRemain": "Some content in the namespace has finalizers remaining: ",
    "GroupVersionParsingFailed": "",
}


def _condition(kind: str, problem: str, bad: str, good: str) -> Tree:
    if problem:
        return {"type": kind, "status": "True", "reason": bad, "message": _FAILURE_REASONS[bad] + problem}
    return {"type": kind, "status": "False", "reason": good, "message": _SUCCESS_MESSAGES[good]}


def _resource_text(resource: GroupVersionResource) -> str:
    return f"{resource.plural}.{resource.group}"
