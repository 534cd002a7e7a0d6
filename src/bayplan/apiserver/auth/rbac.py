"""May this user do that? Roles and bindings, as Kubernetes evaluates them.

Asked for every request of whoever is not an administrator, and by the access reviews. Roles and bindings are read from
the store and kept decoded until one of them changes. Cost: a walk over the bindings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bayplan.apiserver.requests import AUTHENTICATED_GROUP, RequestUser
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.storage.store import CommittedObjects, Store
from bayplan.apiserver.validation.metadata import selector_matches

_GROUP = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class AuthorizationAttributes:
    """What somebody wants to do: to objects, or to a path that is about none."""

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
        """The sentence behind `is forbidden: `."""
        scope = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        return (
            f'User "{user.name}" cannot {self.verb} resource "{self.full_resource}" in API group "{self.group}" {scope}'
        )


class RbacAuthorizer:
    """The roles and bindings of the cluster."""

    def __init__(self, store: Store) -> None:
        self._places = {
            name: store.committed((_GROUP, name))
            for name in ("clusterroles", "roles", "clusterrolebindings", "rolebindings")
        }
        self._read: dict[str, tuple[int, dict[str, Tree]]] = {}
        self._changes = 0
        store.add_commit_listener(lambda place, _: self._changed(place))

    def allows(self, user: RequestUser, asked: AuthorizationAttributes) -> bool:
        if user.is_master or (asked.path and AUTHENTICATED_GROUP in user.groups and _is_discovery(asked)):
            return True
        return any(_rule_allows(rule, asked) for rule in self.rules(user, asked.namespace))

    def rules(self, user: RequestUser, namespace: str) -> Iterator[Tree]:
        """Every rule that holds for the user in the namespace."""
        for binding in self._all("clusterrolebindings").values():
            if _binds_user(binding, user, ""):
                yield from self._rules_of(binding, "")
        if not namespace:
            return
        for key, binding in self._all("rolebindings").items():
            if key.startswith(f"{namespace}/") and _binds_user(binding, user, namespace):
                yield from self._rules_of(binding, namespace)

    def _rules_of(self, binding: Tree, namespace: str) -> Iterable[Tree]:
        ref = binding.get("roleRef") or {}
        if ref.get("kind") == "ClusterRole":
            role = self._all("clusterroles").get(ref.get("name", ""))
        else:
            role = self._all("roles").get(f"{namespace}/{ref.get('name', '')}")
        return (role.get("rules") or ()) if role else ()

    def _all(self, name: str) -> dict[str, Tree]:
        known = self._read.get(name)
        if known is None or known[0] != self._changes:
            found = {entry.key: entry.tree() for entry in self._places[name].entries()}
            known = self._read[name] = (self._changes, found)
        return known[1]

    def _changed(self, place: CommittedObjects) -> None:
        self._changes += place.name[0] == _GROUP


def aggregated_rules(role: Tree, others: Iterable[Tree]) -> list[Tree]:
    """The rules of a role that is put together of others, which it selects by their labels; each rule once."""
    by_name = sorted(others, key=lambda each: str(each["metadata"]["name"]))
    found: list[Tree] = []
    for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ():
        for other in by_name:
            if other["metadata"]["name"] != role["metadata"]["name"] and selector_matches(
                selector, other["metadata"].get("labels") or {}
            ):
                found += [rule for rule in other.get("rules") or () if rule not in found]
    return found


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


def _rule_allows(rule: Tree, asked: AuthorizationAttributes) -> bool:
    if not _matches_any(rule.get("verbs"), asked.verb):
        return False
    if asked.path:
        return any(_path_matches(each, asked.path) for each in rule.get("nonResourceURLs") or ())
    if not _matches_any(rule.get("apiGroups"), asked.group) or not _resource_matches(rule.get("resources"), asked):
        return False
    names = rule.get("resourceNames")
    return not names or asked.name in names


def _matches_any(listed: list[str] | None, wanted: str) -> bool:
    return "*" in (listed or ()) or wanted in (listed or ())


def _resource_matches(listed: list[str] | None, asked: AuthorizationAttributes) -> bool:
    wanted = {"*", asked.full_resource}
    if asked.subresource:
        wanted.add(f"*/{asked.subresource}")
    return not wanted.isdisjoint(listed or ())


def _path_matches(pattern: str, path: str) -> bool:
    return pattern == path or (pattern.endswith("*") and path.startswith(pattern[:-1]))


_DISCOVERY = ("/api", "/apis", "/openapi", "/version")
_HEALTH = ("/healthz", "/livez", "/readyz")  # as a whole: what single checks say is for those who may


def _is_discovery(asked: AuthorizationAttributes) -> bool:
    """What the roles that every cluster starts with leave open to whoever is known."""
    path = asked.path
    known = path in _HEALTH or any(path == each or path.startswith(f"{each}/") for each in _DISCOVERY)
    return asked.verb == "get" and known
