"""A client of the API server for tests: plain JSON over a persistent connection, faster than a kubectl each time."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

from cluster.run import ADMIN, Cluster
from support.harness.deadlines import DEADLINE_S

Tree = dict[str, Any]
_JSON = "application/json"

_PATHS = {
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "PodGroup": "/apis/scheduling.k8s.io/v1alpha2/namespaces/{}/podgroups",
    "Event": "/apis/events.k8s.io/v1/namespaces/{}/events",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
}


class Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Api:
    """One namespace of one cluster, with administrator rights."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self._kept = threading.local()
        self._tls = ssl.create_default_context(cafile=str(cluster.ca_file))
        self._tls.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)

    def create(self, *items: Tree) -> list[Tree]:
        """Create all of these, several at a time; returns them as stored."""
        if len(items) < 4:
            return [self._ask("POST", self.path(item["kind"]), item) for item in items]
        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(lambda item: self._ask("POST", self.path(item["kind"]), item), items))

    def try_to_create(self, item: Tree) -> Tree:
        """The result of a dry-run create."""
        return self._ask("POST", f"{self.path(item['kind'])}?dryRun=All", item)

    def get(self, kind: str, name: str) -> Tree:
        return self._ask("GET", self.path(kind, name))

    def list(self, kind: str, **selectors: str) -> list[Tree]:
        query = f"?{urlencode(selectors)}" if selectors else ""
        found: list[Tree] = self._ask("GET", self.path(kind) + query)["items"]
        return found

    def patch(self, kind: str, name: str, body: Tree, *, sub: str = "", strategic: bool = False) -> Tree:
        content = "application/strategic-merge-patch+json" if strategic else "application/merge-patch+json"
        return self._ask("PATCH", self.path(kind, name, sub), body, content)

    def delete(self, kind: str, *names: str, now: bool = False) -> None:
        options = {"gracePeriodSeconds": 0} if now else {}
        for name in names:
            self._ask("DELETE", self.path(kind, name), options)

    def delete_collection(self, kind: str) -> None:
        """Delete all objects of a kind in the namespace."""
        self._ask("DELETE", self.path(kind), {"gracePeriodSeconds": 0})

    def delete_all(self, kind: str, names: Iterable[str]) -> None:
        """Delete those that still exist."""

        def gone(name: str) -> None:
            try:
                self.delete(kind, name, now=True)
            except Refused as fault:
                if fault.code != 404:
                    raise

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(gone, names))

    def pod(self, name: str) -> Tree:
        return self.get("Pod", name)

    def pods(self) -> dict[str, Tree]:
        return {each["metadata"]["name"]: each for each in self.list("Pod")}

    def path(self, kind: str, name: str = "", sub: str = "") -> str:
        return "/".join(filter(None, (_PATHS[kind].format(self.namespace), name, sub)))

    def _ask(self, method: str, path: str, body: Tree | None = None, content: str = _JSON, accept: str = _JSON) -> Tree:
        headers = {"Authorization": f"Bearer {self.cluster.tokens[ADMIN]}", "Content-Type": content, "Accept": accept}
        text = json.dumps(body) if body is not None else None
        for last in (False, True):
            connection = self._connection()
            try:
                connection.request(method, path, text, headers)
                answer = connection.getresponse()
                raw = answer.read()
                break
            except (OSError, http.client.HTTPException):
                connection.close()
                if last:
                    raise
        if answer.status >= 400:
            raise Refused(answer.status, raw.decode(errors="replace"))
        found: Tree = json.loads(raw)
        return found

    def _connection(self) -> http.client.HTTPSConnection:
        kept: http.client.HTTPSConnection | None = getattr(self._kept, "connection", None)
        if kept is None:
            host, _, port = self.cluster.url.removeprefix("https://").partition(":")
            kept = self._kept.connection = http.client.HTTPSConnection(
                host, int(port), context=self._tls, timeout=DEADLINE_S
            )
        return kept
