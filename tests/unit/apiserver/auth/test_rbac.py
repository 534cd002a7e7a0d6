"""RBAC roles and bindings, service account tokens, and the credential files of a cluster."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bayplan.apiserver.auth.credentials import CredentialsError, load_or_create, read_tokens
from bayplan.apiserver.auth.rbac import AuthorizationAttributes, RbacAuthorizer
from bayplan.apiserver.auth.service_account_tokens import ServiceAccountTokens
from bayplan.apiserver.requests import RequestUser
from bayplan.clock import ManualClock
from support.harness.apiserver_store import ApiserverStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RBAC = "rbac.authorization.k8s.io"
BOB = RequestUser("bob", ("team",))


def authorizer_with(rule: dict[str, Any], subject: dict[str, Any], *, cluster_wide: bool = True) -> RbacAuthorizer:
    store = ApiserverStore()
    scope = "Cluster" if cluster_wide else ""
    head = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": "r"}}
    store.create({**head, "kind": f"{scope}Role", "rules": [rule]})
    ref = {"apiGroup": RBAC, "kind": f"{scope}Role", "name": "r"}
    store.create({**head, "kind": f"{scope}RoleBinding", "roleRef": ref, "subjects": [subject]})
    return RbacAuthorizer(store.store)


PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
TO_BOB = {"apiGroup": RBAC, "kind": "User", "name": "bob"}
GET = AuthorizationAttributes("get", resource="pods", namespace="default", name="p")


@pytest.mark.parametrize(
    ("rule", "subject", "attributes", "allowed"),
    [
        pytest.param(PODS, TO_BOB, GET, True, id="by name"),
        pytest.param(PODS, {"apiGroup": RBAC, "kind": "Group", "name": "team"}, GET, True, id="by group"),
        pytest.param(PODS, {"apiGroup": RBAC, "kind": "User", "name": "eve"}, GET, False, id="another user"),
        pytest.param(PODS, TO_BOB, AuthorizationAttributes("delete", resource="pods"), False, id="another verb"),
        pytest.param(PODS, TO_BOB, AuthorizationAttributes("get", "apps", "pods"), False, id="another group"),
        pytest.param(
            PODS, TO_BOB, AuthorizationAttributes("get", resource="pods", subresource="log"), False, id="a sub-resource"
        ),
        pytest.param(
            {**PODS, "resources": ["*/scale"]},
            TO_BOB,
            AuthorizationAttributes("get", resource="x", subresource="scale"),
            True,
            id="a sub-resource of any resource",
        ),
        pytest.param({**PODS, "resourceNames": ["q"]}, TO_BOB, GET, False, id="another object"),
        pytest.param(
            {"nonResourceURLs": ["/m/*"], "verbs": ["get"]},
            TO_BOB,
            AuthorizationAttributes("get", path="/m/x"),
            True,
            id="a path",
        ),
    ],
)
def test_a_rule_allows_its_subjects_verbs_and_resources(
    rule: dict[str, Any], subject: dict[str, Any], attributes: AuthorizationAttributes, allowed: bool
) -> None:
    assert authorizer_with(rule, subject).allows(BOB, attributes) is allowed


def test_a_role_applies_to_its_namespace_only() -> None:
    roles = authorizer_with(PODS, TO_BOB, cluster_wide=False)
    assert roles.allows(BOB, GET)
    assert not roles.allows(BOB, AuthorizationAttributes("get", resource="pods", namespace="other"))
    assert not roles.allows(BOB, AuthorizationAttributes("get", resource="pods"))


CLAIMS = {
    "nbf": NOW.timestamp(),
    "exp": NOW.timestamp() + 600,
    "sub": "system:serviceaccount:default:a",
    "kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "a", "uid": "u"}},
}


def test_a_token_is_valid_until_it_expires_or_its_account_is_recreated() -> None:
    clock, accounts = ManualClock(), {("default", "a"): "u"}
    tokens = ServiceAccountTokens("secret", clock.now, lambda namespace, name: accounts.get((namespace, name)))
    token = tokens.issue(CLAIMS)
    found = tokens.user(token)
    assert found is not None
    assert (found.name, found.groups[1]) == ("system:serviceaccount:default:a", "system:serviceaccounts:default")
    assert tokens.user(token[:-2]) is None
    assert ServiceAccountTokens("another", clock.now, lambda *_: "u").user(token) is None
    clock.advance(601)
    assert tokens.user(token) is None
    fresh = tokens.issue({**CLAIMS, "exp": NOW.timestamp() + 6000})
    accounts["default", "a"] = "recreated"
    assert tokens.user(fresh) is None


def test_credentials_are_created_once_and_private(tmp_path: Path) -> None:
    first = load_or_create(tmp_path / "c", ["localhost"], NOW)
    certificate = first.authority.read_bytes()
    second = load_or_create(tmp_path / "c", ["localhost"], NOW + timedelta(days=1))
    assert (second.token, second.authority.read_bytes()) == (first.token, certificate)
    for name in ("token", "server.key"):
        assert stat.S_IMODE((tmp_path / "c" / name).stat().st_mode) == 0o600
    other = load_or_create(tmp_path / "c", ["localhost", "example.com"], NOW)
    assert (other.token, other.authority.read_bytes() == certificate) == (first.token, False)


def test_users_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text('t1,ann,u1,"a,b"\nt2,bob,u2\n')
    assert read_tokens(path) == {"t1": RequestUser("ann", ("a", "b"), "u1"), "t2": RequestUser("bob", (), "u2")}
    path.write_text("only-a-token\n")
    with pytest.raises(CredentialsError, match="is not a valid line; use token,user,uid"):
        read_tokens(path)
    with pytest.raises(CredentialsError, match="cannot be read"):
        read_tokens(tmp_path / "none.csv")
