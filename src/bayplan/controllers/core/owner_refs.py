"""Which objects does an owner control, and how does it make more of them?

Asked by every workload controller at every sync. What carries our reference and fits our selector is ours; what nobody
controls and fits is adopted, after a look whether we still exist; what is ours and no longer fits is let go. Adopting
and letting go cost a request each and are rare; finding what is ours costs a look-up by uid.
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
from bayplan.objects.selectors.label_selectors import (
    NOTHING,
    LabelMatcher,
    SelectorError,
    compile_label_selector,
)

T = TypeVar("T", bound=KubeObject)


def selector_of(item: UntypedObject, field: str = "selector") -> LabelMatcher:
    """The compiled selector of an object's spec; one that is malformed selects nothing."""
    found = item.spec.get(field)
    return _compiled(msgspec.json.encode(found)) if found is not None else NOTHING


@lru_cache(maxsize=8192)
def _compiled(text: bytes) -> LabelMatcher:
    try:
        return compile_label_selector(msgspec.json.decode(text, type=LabelSelector))
    except (SelectorError, msgspec.ValidationError):
        return NOTHING


def owner_reference(resource: GroupVersionResource, owner: KubeObject) -> Tree:
    """How what an owner makes refers to it."""
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
    feed: SharedIndexInformer[T],
    resource: GroupVersionResource,
    owner: UntypedObject,
    selector: LabelMatcher,
    *,
    wanted: Callable[[T], bool] = lambda _: True,
) -> list[T]:
    """What the owner controls, after adopting and letting go. `wanted`: what else an orphan must be to be adopted."""
    kept = []
    for item in feed.owned_by(owner.uid):
        if selector.matches(item.metadata.labels):
            kept.append(item)
        elif not owner.terminating and item.metadata.deletion_timestamp is None:
            await _release(client, feed.resource, item, owner)
    if owner.terminating or selector.everything:
        return kept
    found = [
        item
        for item in feed.orphans(owner.namespace)
        if item.metadata.deletion_timestamp is None and selector.matches(item.metadata.labels) and wanted(item)
    ]
    if found and await _owner_exists(client, resource, owner):
        reference = owner_reference(resource, owner)
        kept += [item for item in found if await _adopt(client, feed.resource, item, reference)]
    return kept


async def _owner_exists(client: Client, resource: GroupVersionResource, owner: UntypedObject) -> bool:
    """Whether the owner is still there and not on its way out, by the server's own word."""
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
    """A pod as a template says, with the owner's reference. `generate`: what its name begins with."""
    meta = template.get("metadata") or {}
    kept = {key: meta[key] for key in ("labels", "annotations", "finalizers") if meta.get(key)}
    named = {"name": name} if name else {"generateName": generate}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**kept, **named, "ownerReferences": [owner]},
        "spec": template.get("spec") or {},
    }


def generated_prefix(name: str) -> str:
    """What names of an owner's pods begin with."""
    return f"{name}-"


def count_where(items: Sequence[T], so: Callable[[T], bool]) -> int:
    return sum(1 for item in items if so(item))
