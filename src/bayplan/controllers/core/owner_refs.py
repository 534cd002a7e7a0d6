"""Owner references: finds, adopts and releases the objects of an owner, as upstream's ControllerRefManager.

Workload controllers call it in every sync. Objects with the owner's reference that match its selector are claimed.
Matching objects without a controller are adopted after a check that the owner still exists. Owned objects that no
longer match are released. Adoption and release cost a request each and are rare; a claim costs a lookup by uid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

import msgspec

from bayplan.client import Client, GroupVersionResource
from bayplan.controllers.core.api_types import Tree, UntypedObject
from bayplan.controllers.core.shared_informers import SharedIndexInformer
from bayplan.errors import NotFound
from bayplan.objects.meta import KubeObject, LabelSelector
from bayplan.objects.selectors.label_selectors import NOTHING, LabelMatcher, SelectorError, compile_label_selector

T = TypeVar("T", bound=KubeObject)


def selector_of(item: UntypedObject, field: str = "selector") -> LabelMatcher:
    """Compile the selector of an object's spec. An invalid selector matches nothing."""
    found = item.spec.get(field)
    return _compile_selector(msgspec.json.encode(found)) if found is not None else NOTHING


@lru_cache(maxsize=8192)
def _compile_selector(text: bytes) -> LabelMatcher:
    try:
        return compile_label_selector(msgspec.json.decode(text, type=LabelSelector))
    except (SelectorError, msgspec.ValidationError):
        return NOTHING


def owner_reference(resource: GroupVersionResource, owner: KubeObject) -> Tree:
    """Build the controller reference to an owner."""
    assert resource.kind is not None
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind.name,
        "name": owner.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


async def claim_objects(
    client: Client,
    informer: SharedIndexInformer[T],
    resource: GroupVersionResource,
    owner: UntypedObject,
    selector: LabelMatcher,
    *,
    wanted: Callable[[T], bool] = lambda _: True,
) -> list[T]:
    """Return the objects of an owner after adoption and release. `wanted`: further condition for adoption."""
    claimed = []
    for item in informer.owned_by(owner.uid):
        if selector.matches(item.metadata.labels):
            claimed.append(item)
        elif not owner.terminating and item.metadata.deletion_timestamp is None:
            await _release(client, informer.resource, item, owner)
    if owner.terminating or selector.everything:
        return claimed
    found = [
        item
        for item in informer.orphans(owner.namespace)
        if item.metadata.deletion_timestamp is None and selector.matches(item.metadata.labels) and wanted(item)
    ]
    if found and await _owner_exists(client, resource, owner):
        reference = owner_reference(resource, owner)
        claimed += [item for item in found if await _adopt(client, informer.resource, item, reference)]
    return claimed


async def _owner_exists(client: Client, resource: GroupVersionResource, owner: UntypedObject) -> bool:
    """Whether the owner exists and is not being deleted, according to the API server."""
    try:
        meta = (await client.get_raw(resource, owner.namespace, owner.name))["metadata"]
    except NotFound:
        return False
    return meta["uid"] == owner.uid and "deletionTimestamp" not in meta


async def _adopt(client: Client, resource: GroupVersionResource, item: KubeObject, reference: Tree) -> bool:
    meta = item.metadata
    patch = {"metadata": {"uid": meta.uid, "ownerReferences": [reference]}}
    try:
        await client.patch(resource, patch, namespace=meta.namespace, name=meta.name)
    except NotFound:
        return False
    return True


async def _release(client: Client, resource: GroupVersionResource, item: KubeObject, owner: UntypedObject) -> None:
    meta = item.metadata
    patch = {"metadata": {"uid": meta.uid, "ownerReferences": [{"$patch": "delete", "uid": owner.uid}]}}
    with suppress(NotFound):
        await client.patch(resource, patch, namespace=meta.namespace, name=meta.name)


def pod_from_template(template: Tree, owner: Tree, *, name: str = "", generate: str = "") -> Tree:
    """Build a pod from a template, with its owner reference. `generate`: generateName of the pod."""
    meta = template.get("metadata") or {}
    claimed = {key: meta[key] for key in ("labels", "annotations", "finalizers") if meta.get(key)}
    name_field = {"name": name} if name else {"generateName": generate}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**claimed, **name_field, "ownerReferences": [owner]},
        "spec": template.get("spec") or {},
    }


def generated_prefix(name: str) -> str:
    """generateName of an owner's pods."""
    return f"{name}-"


def count_where(items: Sequence[T], matches: Callable[[T], bool]) -> int:
    return sum(1 for item in items if matches(item))
