"""ControllerRevisions of a StatefulSet or DaemonSet: one per template, numbered, with limited history.

`kubectl rollout history` and `undo` read them. A template that returns gets its old revision with a new number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from bayplan.client import MERGE_PATCH, Client, GroupVersionResource
from bayplan.controllers.core.api_types import CONTROLLER_REVISIONS, ControllerRevision, Tree, UntypedObject
from bayplan.controllers.core.owner_refs import owner_reference
from bayplan.controllers.workloads.template_hash import short_hash
from bayplan.errors import AlreadyExists

HASH_LABEL = "controller-revision-hash"


def revision_data(owner: UntypedObject) -> Tree:
    """Data of a revision: the patch that restores the template."""
    return {"spec": {"template": {**(owner.spec.get("template") or {}), "$patch": "replace"}}}


def template_of(revision: ControllerRevision, owner: UntypedObject) -> Tree:
    """Template of a revision; the owner's template when the data is invalid."""
    data = revision.data if isinstance(revision.data, dict) else {}
    found = (data.get("spec") or {}).get("template")
    if not isinstance(found, dict):
        return owner.spec.get("template") or {}
    return {key: value for key, value in found.items() if key != "$patch"}


def sort_by_revision(revisions: Iterable[ControllerRevision]) -> list[ControllerRevision]:
    """Sort by revision number, oldest first."""
    return sorted(revisions, key=lambda each: (each.revision, str(each.metadata.creation_timestamp), each.name))


async def latest_revision(
    client: Client,
    resource: GroupVersionResource,
    owner: UntypedObject,
    revisions: Sequence[ControllerRevision],
    label: str,
) -> ControllerRevision:
    """Return the revision of the owner's template: the newest one, an old one with a new number, or a new object.

    `label`: label of the revision that holds its hash."""
    wanted = revision_data(owner)
    known = sort_by_revision(revisions)
    equal = [each for each in known if _equal(each.data, wanted)]
    newest = known[-1].revision if known else 0
    if equal and equal[-1].revision == newest:
        return equal[-1]
    if equal:
        meta = {"resourceVersion": equal[-1].metadata.resource_version}
        answer = await client.patch(
            CONTROLLER_REVISIONS,
            {"metadata": meta, "revision": newest + 1},
            namespace=owner.namespace,
            name=equal[-1].name,
            kind=MERGE_PATCH,
        )
        return msgspec.json.decode(answer, type=ControllerRevision)
    return await _create(client, resource, owner, wanted, newest + 1, label)


async def _create(
    client: Client, resource: GroupVersionResource, owner: UntypedObject, data: Tree, number: int, label: str
) -> ControllerRevision:
    collisions = int(owner.status.get("collisionCount") or 0)
    labels = (owner.spec.get("template") or {}).get("metadata", {}).get("labels") or {}
    while True:
        short = short_hash(data, collisions)
        name = f"{owner.name[:223]}-{short}"
        body = {
            "apiVersion": CONTROLLER_REVISIONS.api_version,
            "kind": "ControllerRevision",
            "metadata": {
                "name": name,
                "labels": {**labels, label: short},
                "ownerReferences": [owner_reference(resource, owner)],
            },
            "data": data,
            "revision": number,
        }
        try:
            return msgspec.json.decode(
                await client.create(CONTROLLER_REVISIONS, body, namespace=owner.namespace), type=ControllerRevision
            )
        except AlreadyExists:
            found = await client.get(ControllerRevision, owner.namespace, name, resource=CONTROLLER_REVISIONS)
            if _equal(found.data, data):
                return found
            collisions += 1


def _equal(one: object, other: object) -> bool:
    return _without_empty(one) == _without_empty(other)


def _without_empty(value: object) -> object:
    """Remove nulls and empty members: servers differ in whether they write them."""
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item is not None and item != {}}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


def revisions_to_delete(
    revisions: Iterable[ControllerRevision], living: Iterable[str], limit: int
) -> list[ControllerRevision]:
    """Oldest revisions without pods, above the history limit."""
    in_use = set(living)
    idle = [each for each in sort_by_revision(revisions) if each.name not in in_use]
    return idle[: max(0, len(idle) - limit)]
