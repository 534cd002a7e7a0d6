"""Which templates has a StatefulSet or a DaemonSet had? ControllerRevisions: one a template, numbered, some kept.

`kubectl rollout history` and `undo` read them. A template that comes back gets its old revision with a new number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from bayplan.client import MERGE_PATCH, Client, Resource
from bayplan.controllers.core.api_types import (
    REVISIONS,
    Revision,
    Tree,
    Whole,
)
from bayplan.controllers.core.owner_refs import owner_reference
from bayplan.controllers.workloads.template_hash import short_hash
from bayplan.errors import AlreadyExists

HASH_LABEL = "controller-revision-hash"


def snapshot(owner: Whole) -> Tree:
    """What a revision keeps: a patch that brings the template back."""
    return {"spec": {"template": {**(owner.spec.get("template") or {}), "$patch": "replace"}}}


def template_of(revision: Revision, owner: Whole) -> Tree:
    """The template that a revision keeps; the owner's own where it cannot be read."""
    data = revision.data if isinstance(revision.data, dict) else {}
    found = (data.get("spec") or {}).get("template")
    if not isinstance(found, dict):
        return owner.spec.get("template") or {}
    return {key: value for key, value in found.items() if key != "$patch"}


def ordered(revisions: Iterable[Revision]) -> list[Revision]:
    """The oldest first."""
    return sorted(revisions, key=lambda each: (each.revision, str(each.metadata.creation_timestamp), each.name))


async def latest_revision(
    client: Client, resource: Resource, owner: Whole, revisions: Sequence[Revision], label: str
) -> Revision:
    """The revision of the owner's template: the newest, an old one brought to the front, or one made now.

    `label`: under which the revision itself carries its hash."""
    wanted = snapshot(owner)
    known = ordered(revisions)
    same = [each for each in known if _equal(each.data, wanted)]
    newest = known[-1].revision if known else 0
    if same and same[-1].revision == newest:
        return same[-1]
    if same:
        meta = {"resourceVersion": same[-1].metadata.resource_version}
        answer = await client.patch(
            REVISIONS,
            {"metadata": meta, "revision": newest + 1},
            namespace=owner.namespace,
            name=same[-1].name,
            kind=MERGE_PATCH,
        )
        return msgspec.json.decode(answer, type=Revision)
    return await _create(client, resource, owner, wanted, newest + 1, label)


async def _create(client: Client, resource: Resource, owner: Whole, data: Tree, number: int, label: str) -> Revision:
    collisions = int(owner.status.get("collisionCount") or 0)
    labels = (owner.spec.get("template") or {}).get("metadata", {}).get("labels") or {}
    while True:
        short = short_hash(data, collisions)
        name = f"{owner.name[:223]}-{short}"
        body = {
            "apiVersion": REVISIONS.api_version,
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
            return msgspec.json.decode(await client.create(REVISIONS, body, namespace=owner.namespace), type=Revision)
        except AlreadyExists:
            found = await client.get(Revision, owner.namespace, name, resource=REVISIONS)
            if _equal(found.data, data):
                return found
            collisions += 1


def _equal(one: object, other: object) -> bool:
    return _plain(one) == _plain(other)


def _plain(value: object) -> object:
    """Without nulls and empty members: servers differ in whether they write them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None and item != {}}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def beyond_history(revisions: Iterable[Revision], living: Iterable[str], limit: int) -> list[Revision]:
    """What is to be forgotten: the oldest of those that no pod is of, beyond so many."""
    in_use = set(living)
    idle = [each for each in ordered(revisions) if each.name not in in_use]
    return idle[: max(0, len(idle) - limit)]
