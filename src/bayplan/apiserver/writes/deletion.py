"""Deletion of one object: removed at once, or marked until its grace period, finalizers and dependents are over.

The same rules decide whether a write that removes the last finalizer removes the object. This module decides;
`ObjectWriter` writes. Cost: a copy of the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from bayplan.apiserver import api_errors
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.schema.decoder import BuiltInReader, ExpectedKind, parse_json
from bayplan.apiserver.schema.protobuf import MAGIC, decode_protobuf
from bayplan.apiserver.schema.types import built_in_types
from bayplan.apiserver.writes.metadata import timestamp
from bayplan.codec.field_errors import FieldErrorList

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
CRD_CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""A CustomResourceDefinition is deleted after the objects of its kind."""
_DEFINITIONS = ("apiextensions.k8s.io", "customresourcedefinitions")
_EXPECTED = ExpectedKind("", "v1", "DeleteOptions")
_POLICIES = ("Background", "Foreground", "Orphan")
_ORPHAN_BY_DEFAULT = frozenset({("", "replicationcontrollers"), ("batch", "jobs")})
"""Kinds whose dependents are orphaned by default, as in their first versions."""
_RETURNS_OBJECT = frozenset(
    {
        *(("", plural) for plural in ("namespaces", "persistentvolumeclaims", "persistentvolumes", "pods")),
        *(("", plural) for plural in ("podtemplates", "resourcequotas", "serviceaccounts", "services")),
        *(("storage.k8s.io", plural) for plural in ("csidrivers", "csinodes", "storageclasses", "volumeattachments")),
        ("storage.k8s.io", "volumeattributesclasses"),
        *(("resource.k8s.io", plural) for plural in ("deviceclasses", "resourceclaims", "resourceclaimtemplates")),
        ("resource.k8s.io", "resourceslices"),
    }
)
"""Kinds whose deletion returns the object; the deletion of the other kinds returns a Status."""

DeletionOutcome = Literal["removed", "marked", "unchanged"]


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    grace_s: int | None = None
    policy: str = ""
    uid: str = ""
    version: str = ""
    dry_run: bool = False

    @classmethod
    def of(cls, body: Tree) -> DeleteOptions:
        """Parses a body, or query parameters in the form of a body. Raises kube-apiserver's errors."""
        errors = FieldErrorList()
        policy, orphan = body.get("propagationPolicy") or "", body.get("orphanDependents")
        if policy and orphan is not None:
            errors.invalid("propagationPolicy", policy, "orphanDependents and deletionPropagation cannot be both set")
        elif policy and policy not in _POLICIES:
            errors.unsupported("propagationPolicy", policy, ("Foreground", "Background", "Orphan", "nil"))
        dry_run = body.get("dryRun") or []
        errors.extend(_dry_run_faults(dry_run))
        if errors:
            raise api_errors.invalid("DeleteOptions", "meta.k8s.io", "", errors)
        if orphan is not None:
            policy = "Orphan" if orphan else "Background"
        preconditions = body.get("preconditions") or {}
        grace = body.get("gracePeriodSeconds")
        return cls(
            grace, policy, preconditions.get("uid") or "", preconditions.get("resourceVersion") or "", bool(dry_run)
        )

    @classmethod
    def of_request(cls, content: bytes, query: Mapping[str, str]) -> DeleteOptions:
        """Parses the body; without a body the query parameters."""
        if content.strip():
            return cls.of(_read(content))
        body: Tree = {"propagationPolicy": query.get("propagationPolicy")}
        if query.get("gracePeriodSeconds"):
            body["gracePeriodSeconds"] = _parse_int(query["gracePeriodSeconds"])
        if query.get("orphanDependents"):
            body["orphanDependents"] = query["orphanDependents"].lower() == "true"
        if query.get("dryRun"):
            body["dryRun"] = [query["dryRun"]]
        return cls.of(body)

    def check(self, resource: ServedResource, tree: Tree) -> None:
        """Refuse if the preconditions do not match the object."""
        metadata = tree["metadata"]
        if self.uid and self.uid != metadata.get("uid"):
            raise api_errors.conflict(
                resource,
                metadata["name"],
                f"the UID in the precondition ({self.uid}) does not match the UID in record ({metadata.get('uid')}). "
                "The object might have been deleted and then recreated",
                resource_name=resource.kind,
            )
        if self.version and self.version != metadata.get("resourceVersion"):
            raise api_errors.conflict(
                resource,
                metadata["name"],
                f"the ResourceVersion in the precondition ({self.version}) does not match the ResourceVersion in "
                f"record ({metadata.get('resourceVersion')}). The object might have been modified",
                resource_name=resource.kind,
            )


def begin_deletion(
    resource: ServedResource, tree: Tree, options: DeleteOptions, now: datetime
) -> tuple[DeletionOutcome, bool]:
    """Mark the tree for deletion, in place.

    Returns the outcome, and whether the mark is written although the object is removed at once: watches of pods see the
    mark before the removal.
    """
    metadata = tree["metadata"]
    graceful = _grace_period_s(resource, tree, options, now)
    if graceful == "pending":
        return "unchanged", False
    changed = _update_propagation_finalizers(resource, metadata, options.policy)
    waiting = bool(metadata.get("finalizers")) or _namespace_has_finalizers(resource, tree)
    if graceful == "no":
        if not waiting:
            return "removed", False
        marked = _set_deletion_timestamp(resource, metadata, now) | _set_terminating(resource, tree)
        return ("marked" if marked or changed else "unchanged"), True
    if waiting or metadata["deletionGracePeriodSeconds"] > 0:
        return "marked", True
    return "removed", True


def can_remove(resource: ServedResource, tree: Tree) -> bool:
    """Whether nothing blocks the removal of the object after a write."""
    metadata = tree["metadata"]
    marked = "deletionTimestamp" in metadata and metadata.get("deletionGracePeriodSeconds", 0) == 0
    return marked and not metadata.get("finalizers") and not _namespace_has_finalizers(resource, tree)


def returns_deleted_object(resource: ServedResource) -> bool:
    return resource.storage in _RETURNS_OBJECT


def deleted_status(resource: ServedResource, tree: Tree) -> Tree:
    """The Status for kinds whose deletion does not return the object."""
    metadata = tree["metadata"]
    details = {"name": metadata["name"], **({"group": resource.group} if resource.group else {})}
    details |= {"kind": resource.plural, "uid": metadata.get("uid", "")}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _read(content: bytes) -> Tree:
    """The options in a body. Every group version that it names is accepted; they are all equal."""
    if content.startswith(MAGIC):
        return decode_protobuf(content, built_in_types())[2]
    type_ = built_in_types().of("", "v1", "DeleteOptions")
    assert type_ is not None
    given = {**parse_json(content, _EXPECTED), "apiVersion": "v1", "kind": "DeleteOptions"}
    found, _, wrong = BuiltInReader(type_, _EXPECTED).read(given)
    if wrong is not None:
        raise api_errors.bad_request(f'DeleteOptions in version "v1" cannot be handled as a DeleteOptions: {wrong}')
    return found


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise api_errors.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _dry_run_faults(dry_run: list[Any]) -> FieldErrorList:
    errors = FieldErrorList()
    for each in dry_run:
        if each != "All":
            errors.unsupported("dryRun", dry_run, ("All",))
            break
    return errors


def _grace_period_s(
    resource: ServedResource, tree: Tree, options: DeleteOptions, now: datetime
) -> Literal["no", "yes", "pending"]:
    """Set the grace period. Only pods have one; a second deletion can only shorten it."""
    if resource.storage != ("", "pods"):
        return "no"
    metadata = tree["metadata"]
    if "deletionTimestamp" in metadata:
        known = metadata.get("deletionGracePeriodSeconds")
        if known is None:
            return "no"
        if options.grace_s is None or options.grace_s >= known:
            return "pending"
        end = datetime.fromisoformat(metadata["deletionTimestamp"]) + timedelta(seconds=options.grace_s - known)
        metadata |= {"deletionTimestamp": timestamp(end), "deletionGracePeriodSeconds": options.grace_s}
        return "yes"
    period = options.grace_s if options.grace_s is not None else tree["spec"].get("terminationGracePeriodSeconds", 0)
    if not tree["spec"].get("nodeName") or (tree.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        period = 0
    period = 1 if period < 0 else period
    metadata["deletionTimestamp"] = timestamp(now + timedelta(seconds=period))
    metadata["deletionGracePeriodSeconds"] = period
    _count_generation(metadata)
    return "yes"


def _update_propagation_finalizers(resource: ServedResource, metadata: Tree, policy: str) -> bool:
    """Set the finalizers of the propagation policy. Returns whether they changed."""
    if resource.storage == ("", "events"):
        return False
    before = metadata.get("finalizers") or []
    orphan = policy == "Orphan" or (not policy and (ORPHAN in before or resource.storage in _ORPHAN_BY_DEFAULT))
    foreground = policy == "Foreground" or (not policy and FOREGROUND in before and not orphan)
    after = [each for each in before if each not in (ORPHAN, FOREGROUND)]
    after += [ORPHAN] * orphan + [FOREGROUND] * foreground
    if resource.storage == _DEFINITIONS and CRD_CLEANUP_FINALIZER not in after and "deletionTimestamp" not in metadata:
        after.append(CRD_CLEANUP_FINALIZER)
    if set(after) == set(before):
        return False
    metadata["finalizers"] = after
    if not after:
        del metadata["finalizers"]
    return True


def _set_deletion_timestamp(resource: ServedResource, metadata: Tree, now: datetime) -> bool:
    before = (metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds"))
    if before[0] is None:
        _count_generation(metadata)
    if before[0] is None or datetime.fromisoformat(before[0]) > now:
        metadata["deletionTimestamp"] = timestamp(now)
    if resource.storage != ("", "namespaces"):
        metadata["deletionGracePeriodSeconds"] = 0
    return before != (metadata["deletionTimestamp"], metadata.get("deletionGracePeriodSeconds"))


def _count_generation(metadata: Tree) -> None:
    if metadata.get("generation"):
        metadata["generation"] += 1


def _namespace_has_finalizers(resource: ServedResource, tree: Tree) -> bool:
    """A namespace has finalizers in its spec, which are removed when it is empty."""
    return resource.storage == ("", "namespaces") and bool((tree.get("spec") or {}).get("finalizers"))


def _set_terminating(resource: ServedResource, tree: Tree) -> bool:
    if resource.storage != ("", "namespaces") or (tree.get("status") or {}).get("phase") == "Terminating":
        return False
    tree["status"] = {**(tree.get("status") or {}), "phase": "Terminating"}
    return True
