"""RBAC authorization: roles and bindings, evaluated as in Kubernetes.

Called for every request of a user outside system:masters, and by the access reviews. Roles and bindings are decoded
once and cached until one of them changes. Cost: a walk over the bindings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bayplan.apiserver.requests import AUTHENTICATED_GROUP, RequestUser
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.storage.store import CommittedObjects, Store

_GROUP = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class AuthorizationAttributes:
    """What a user wants to do: to objects, or to a non-resource path."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def full_resource(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    def denial_message(self, user: RequestUser) -> str:
        """The text after `is forbidden: `."""
        scope = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        return (
            f'User "{user.name}" cannot {self.verb} resource "{self.full_resource}" in API group "{self.group}" {scope}'
        )


class RbacAuthorizer:
    def __init__(self, store: Store) -> None:
        self._objects = {
            name: store.committed_objects((_GROUP, name))
            for name in ("clusterroles", "roles", "clusterrolebindings", "rolebindings")
        }
        self._cache: dict[str, tuple[int, dict[str, Tree]]] = {}
        self._changes = 0
        store.add_commit_listener(lambda objects, _: self._on_change(objects))

    def allows(self, user: RequestUser, attributes: AuthorizationAttributes) -> bool:
        if user.is_master or (attributes.path and AUTHENTICATED_GROUP in user.groups and _is_discovery(attributes)):
            return True
        return any(_rule_allows(rule, attributes) for rule in self.rules(user, attributes.namespace))

    def rules(self, user: RequestUser, namespace: str) -> Iterator[Tree]:
        for binding in self._decode_objects("clusterrolebindings").values():
            if _binds_user(binding, user, ""):
                yield from self._role_rules(binding, "")
        if not namespace:
            return
        for key, binding in self._decode_objects("rolebindings").items():
            if key.startswith(f"{namespace}/") and _binds_user(binding, user, namespace):
                yield from self._role_rules(binding, namespace)

    def _role_rules(self, binding: Tree, namespace: str) -> Iterable[Tree]:
        ref = binding.get("roleRef") or {}
        if ref.get("kind") == "ClusterRole":
            role = self._decode_objects("clusterroles").get(ref.get("name", ""))
        else:
            role = self._decode_objects("roles").get(f"{namespace}/{ref.get('name', '')}")
        return (role.get("rules") or ()) if role else ()

    def _decode_objects(self, name: str) -> dict[str, Tree]:
        cached = self._cache.get(name)
        if cached is None or cached[0] != self._changes:
            found = {entry.key: entry.tree() for entry in self._objects[name].entries()}
            cached = self._cache[name] = (self._changes, found)
        return cached[1]

    def _on_change(self, objects: CommittedObjects) -> None:
        self._changes += objects.name[0] == _GROUP


def _binds_user(binding: Tree, user: RequestUser, namespace: str) -> bool:
    return any(_subject_matches(subject, user, namespace) for subject in binding.get("subjects") or ())


def _subject_matches(subject: Tree, user: RequestUser, namespace: str) -> bool:
    match subject.get("kind"):
        case "User":
            return bool(subject.get("name") == user.name)
        case "Group":
            return subject.get("name") in user.groups
        case "ServiceAccount":
            where = subject.get("namespace") or namespace
            return user.name == f"system:serviceaccount:{where}:{subject.get('name')}"
    return False


def _rule_allows(rule: Tree, attributes: AuthorizationAttributes) -> bool:
    if not _matches_any(rule.get("verbs"), attributes.verb):
        return False
    if attributes.path:
        return any(_path_matches(each, attributes.path) for each in rule.get("nonResourceURLs") or ())
    if not _matches_any(rule.get("apiGroups"), attributes.group) or not _resource_matches(
        rule.get("resources"), attributes
    ):
        return False
    names = rule.get("resourceNames")
    return not names or attributes.name in names


def _matches_any(listed: list[str] | None, wanted: str) -> bool:
    return "*" in (listed or ()) or wanted in (listed or ())


def _resource_matches(listed: list[str] | None, attributes: AuthorizationAttributes) -> bool:
    wanted = {"*", attributes.full_resource}
    if attributes.subresource:
        wanted.add(f"*/{attributes.subresource}")
    return not wanted.isdisjoint(listed or ())


def _path_matches(pattern: str, path: str) -> bool:
    return pattern == path or (pattern.endswith("*") and path.startswith(pattern[:-1]))


_DISCOVERY = ("/api", "/apis", "/openapi", "/version")
_HEALTH = ("/healthz", "/livez", "/readyz")  # without subpaths: single checks need a permission


def _is_discovery(attributes: AuthorizationAttributes) -> bool:
    """Whether the default roles allow the path to every authenticated user."""
    path = attributes.path
    cached = path in _HEALTH or any(path == each or path.startswith(f"{each}/") for each in _DISCOVERY)
    return attributes.verb == "get" and cached
