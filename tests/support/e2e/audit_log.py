"""A real API server with an audit log of one ServiceAccount, under exactly the RBAC rules of `deploy/`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from cluster.api import Tree
from cluster.run import Cluster

KUSTOMIZE = Path(__file__).resolve().parents[3] / "deploy" / "kustomize"

AccessRight = tuple[str, str, str]
"""A group, a resource with its subresource, and a verb."""

_POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
  - {{level: Metadata, users: {accounts}}}
  - {{level: None}}
"""


@dataclass(frozen=True)
class DeployedFolder:
    """The account and the rules of a folder of `deploy/`."""

    folder: str
    namespace: str
    name: str

    @property
    def base(self) -> Path:
        return KUSTOMIZE / self.folder

    @property
    def account(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    def objects(self) -> list[Tree]:
        paths = sorted(self.base.glob("*.yaml"))
        return [tree for path in paths for tree in yaml.safe_load_all(path.read_text()) if tree]

    def rights(self) -> set[AccessRight]:
        """Every right that the folder's rules grant."""
        found = set()
        for role in (tree for tree in self.objects() if tree["kind"] in ("Role", "ClusterRole")):
            for rule in role["rules"]:
                found |= set(itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"]))
        return found

    def log(self, cluster: Cluster) -> list[Tree]:
        """The audit log entries of the account."""
        text = (cluster.folder.parent / "audit.log").read_text()
        return [tree for tree in map(json.loads, text.splitlines()) if tree["user"]["username"] == self.account]

    @contextmanager
    def audited(self, folder: Path) -> Iterator[Cluster]:
        with run_audited_cluster(folder, self.base, self) as cluster:
            yield cluster


@contextmanager
def run_audited_cluster(folder: Path, overlay: Path, *accounts: DeployedFolder) -> Iterator[Cluster]:
    """A server with all objects of an overlay, and an audit log of their accounts."""
    policy = folder / "policy.yaml"
    policy.write_text(_POLICY.format(accounts=json.dumps([each.account for each in accounts])))
    flags = (
        f"--audit-policy-file={policy}",
        f"--audit-log-path={folder / 'audit.log'}",
        "--audit-log-mode=blocking-strict",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
    )
    with Cluster(folder / "cluster", flags=flags, users=["limited"]) as cluster:
        cluster.kubectl("apply", "-k", str(overlay))
        for each in accounts:
            cluster.tokens[each.name] = cluster.kubectl("-n", each.namespace, "create", "token", each.name).strip()
        yield cluster


def used_rights(entries: list[Tree]) -> set[AccessRight]:
    found = set()
    for entry in entries:
        if "objectRef" in entry:
            about = entry["objectRef"]
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            found.add((about.get("apiGroup", ""), resource, entry["verb"]))
    return found


def denied_requests(entries: list[Tree]) -> list[str]:
    return [
        f"{each['verb']} {each['requestURI']}"
        for each in entries
        if each.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
        or each.get("responseStatus", {}).get("code") == 403
    ]
