"""Objects that exist in a new cluster.

Namespaces, the service `kubernetes`, two priority classes, the default RBAC roles, and in every namespace a service
account and the CA certificate. Existing objects are not changed. `EmbeddedCluster` calls this at its start. Cost: some
160 writes, 30 ms.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

import msgspec

from bayplan.apiserver.requests import MASTERS_GROUP, RequestUser, WriteOptions, WriteRequest
from bayplan.apiserver.resources.kinds import ResourceRegistry, Tree
from bayplan.apiserver.storage.store import Store
from bayplan.apiserver.writes.writer import ObjectWriter

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_RBAC = "rbac.authorization.k8s.io"
_API_SERVER_USER = RequestUser("system:apiserver", (MASTERS_GROUP,))
_MANAGER = "kube-apiserver"


@dataclass(slots=True)
class BootstrapObjects:
    store: Store
    writer: ObjectWriter
    resources: ResourceRegistry
    authority: str
    client_authority: str = ""
    port: int = 443

    def all(self) -> None:
        for name in NAMESPACES:
            self._create_if_missing("Namespace", "", {"metadata": {"name": name}})
        for name in NAMESPACES:
            self.create_missing(name)
        for tree in _priority_classes():
            self._create_if_missing("PriorityClass", "scheduling.k8s.io", tree)
        for kind, tree in _bootstrap_roles():
            self._create_if_missing(kind, _RBAC, tree, tree["metadata"].pop("namespace", ""))
        self._create_if_missing("Service", "", _kubernetes_service(self.port), "default")
        self._create_if_missing("ConfigMap", "", self._authentication_config(), "kube-system")

    def create_missing(self, namespace: str) -> None:
        """Create the default objects of a namespace."""
        self._create_if_missing("ServiceAccount", "", {"metadata": {"name": "default"}}, namespace)
        description = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints"
        root = {
            "metadata": {"name": "kube-root-ca.crt", "annotations": {"kubernetes.io/description": description}},
            "data": {"ca.crt": self.authority},
        }
        self._create_if_missing("ConfigMap", "", root, namespace)

    def _authentication_config(self) -> Tree:
        """The ConfigMap from which schedulers and other servers read the trusted client CA."""
        data = {
            "requestheader-allowed-names": "[]",
            "requestheader-client-ca-file": "",
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-username-headers": '["X-Remote-User"]',
        }
        if self.client_authority:
            data["client-ca-file"] = self.client_authority
        return {"metadata": {"name": "extension-apiserver-authentication"}, "data": data}

    def _create_if_missing(self, kind: str, group: str, tree: Tree, namespace: str = "") -> None:
        resource = self.resources.built_in(kind, group)
        if self.store.uncommitted_objects(resource.storage).get(namespace, tree["metadata"]["name"]) is not None:
            return
        write = WriteRequest(resource, namespace, _API_SERVER_USER, WriteOptions(), _MANAGER)
        self.writer.create(write, {"kind": kind, "apiVersion": resource.api_version, **tree})


def _priority_classes() -> Iterator[Tree]:
    for name, value, what in (
        ("cluster", 2_000_000_000, "must run in the cluster, but can be moved to another node if necessary."),
        ("node", 2_000_001_000, "must not be moved from their current node."),
    ):
        text = f"Used for system critical pods that {what}"
        yield {"metadata": {"name": f"system-{name}-critical"}, "value": value, "description": text}


def _kubernetes_service(port: int) -> Tree:
    return {
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "10.0.0.1",
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        },
    }


def _bootstrap_roles() -> Iterator[tuple[str, Tree]]:
    """The roles that `scripts/roles/make_roles.py` read from a cluster of the supported Kubernetes release."""
    packed = resources.files("bayplan.apiserver").joinpath("first_roles.json.gz").read_bytes()
    for tree in msgspec.json.decode(gzip.decompress(packed), type=list[Tree]):
        kind = tree.pop("kind")
        tree["metadata"]["annotations"] = {"rbac.authorization.kubernetes.io/autoupdate": "true"}
        yield kind, tree
