"""Bodies of the review kinds: SelfSubjectReview, TokenReview, the access reviews and SelfSubjectRulesReview.

`SubresourceHandlers` passes users and decisions in; this module checks the request and builds the response.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.apiserver.api_errors import bad_request, invalid
from bayplan.apiserver.resources.kinds import Tree
from bayplan.codec.field_errors import FieldErrorList

_GROUP = "authorization.k8s.io"


def self_subject_review(user: Tree, now: str) -> Tree:
    """`user` is the userInfo: username, uid, groups, extra."""
    return {
        "kind": "SelfSubjectReview",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"creationTimestamp": now},
        "status": {"userInfo": user},
    }


def token_review(review: Tree, user: Tree | None, audience: str) -> Tree:
    status: Tree = {"user": {}, "error": "invalid bearer token"}
    if user is not None:
        status = {"authenticated": True, "user": user, "audiences": [audience]}
    head = {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": review.get("metadata") or {}}
    return {**head, "spec": review.get("spec") or {}, "status": status}


def review_attributes(review: Tree, *, namespace: str = "") -> Tree:
    """The attributes of an access review: verb, group, resource, subresource, namespace, name, or verb and path.

    `namespace` is that of the URL of a LocalSubjectAccessReview.
    """
    kind, spec = review.get("kind", ""), review.get("spec") or {}
    objects, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    errors = FieldErrorList()
    if objects is not None and path is not None:
        shown = {"Path": path.get("path", ""), "Verb": path.get("verb", "")}
        rule = "cannot be specified in combination with resourceAttributes"
        errors.invalid("spec.nonResourceAttributes", shown, rule)
    elif objects is None and path is None:
        rule = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        errors.invalid("spec.resourceAttributes", None, rule)
    if not kind.startswith("Self") and not spec.get("user") and not spec.get("groups"):
        errors.invalid("spec.user", "", "at least one of user or group must be specified")
    if kind == "LocalSubjectAccessReview":
        _check_local_namespace(errors, objects, path, namespace)
    if errors:
        raise invalid("", _GROUP, "", errors)
    return _attributes(objects, path)


def _check_local_namespace(errors: FieldErrorList, objects: Tree | None, path: Tree | None, namespace: str) -> None:
    given = (objects or {}).get("namespace", "")
    if objects is not None and given != namespace:
        errors.invalid("spec.resourceAttributes.namespace", given, "must match metadata.namespace")
    if path is not None:
        shown = {"Path": path.get("path", ""), "Verb": path.get("verb", "")}
        errors.invalid("spec.nonResourceAttributes", shown, "disallowed on this kind of request")


def _attributes(objects: Tree | None, path: Tree | None) -> Tree:
    if objects is None:
        return {"verb": (path or {}).get("verb", ""), "path": (path or {}).get("path", "")}
    names = ("verb", "group", "resource", "subresource", "namespace", "name")
    return {name: objects.get(name, "") for name in names}


def access_review(review: Tree, *, allowed: bool, reason: str = "", namespace: str = "") -> Tree:
    status: Tree = {"allowed": allowed}
    if reason:
        status["reason"] = reason
    metadata = dict(review.get("metadata") or {})
    if namespace:
        metadata["namespace"] = namespace
    head = {"kind": review.get("kind", ""), "apiVersion": f"{_GROUP}/v1", "metadata": metadata}
    return {**head, "spec": review.get("spec") or {}, "status": status}


def rules_namespace(review: Tree) -> str:
    name = (review.get("spec") or {}).get("namespace")
    if not name:
        raise bad_request("no namespace on request")
    return str(name)


def rules_review(rules: Iterable[Mapping[str, Any]]) -> Tree:
    objects, paths = [], []
    for rule in rules:
        if rule.get("nonResourceURLs"):
            paths.append({"verbs": rule.get("verbs", []), "nonResourceURLs": rule["nonResourceURLs"]})
        else:
            names = ("verbs", "apiGroups", "resources", "resourceNames")
            objects.append({name: rule[name] for name in names if rule.get(name)})
    return {
        "kind": "SelfSubjectRulesReview",
        "apiVersion": f"{_GROUP}/v1",
        "metadata": {},
        "spec": {},
        "status": {"resourceRules": objects, "nonResourceRules": paths, "incomplete": False},
    }
