"""Send the requests of `schema_requests` to a real API server and record its responses.

    PYTHONPATH=tests python tests/unit/apiserver/record_schema.py

takes half a minute and writes `schema.json.xz`. Of a created object only the compared parts are kept.
"""

from __future__ import annotations

import base64
import json
import lzma
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cluster.run import Cluster
from support.builders.schema_requests import (
    APPLY,
    CASES,
    DEFINITIONS,
    KINDS,
    MERGE,
    PODS,
    RECORDING,
    History,
    Kind,
    SchemaRequest,
    Write,
    schema_requests,
)

Tree = dict[str, Any]

SEEDS, STEPS = (1, 2), 40
PROTOBUF = "application/vnd.kubernetes.protobuf"
READ_PATHS = (
    f"{PODS}/pp",
    "/apis/apps/v1/namespaces/default/deployments/history-deployments",
    "/api/v1/namespaces/default/services/kubernetes",
    "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical",
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/probes",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node-proxier",
)


class Server:
    def __init__(self, cluster: Cluster) -> None:
        self._url = cluster.url
        self._trusted = ssl.create_default_context(cafile=str(cluster.ca_file))
        self._trusted.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        self._headers = {"Authorization": f"Bearer {cluster.tokens['admin']}", "User-Agent": "recorder/1"}

    def raw(self, method: str, path: str, body: bytes | None, media: str, accept: str) -> tuple[int, bytes, list[str]]:
        headers = {**self._headers, "Accept": accept, **({"Content-Type": media} if body is not None else {})}
        request = urllib.request.Request(self._url + path, data=body, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, context=self._trusted, timeout=30) as response:
                return response.status, response.read(), response.headers.get_all("Warning") or []
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read(), []

    def ask(
        self, method: str, path: str, body: Any = None, media: str = "application/json"
    ) -> tuple[int, Tree, list[str]]:
        raw = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
        code, text, warnings = self.raw(method, path, raw, media, "application/json")
        return code, json.loads(text), [each[7:-1].replace('\\"', '"') for each in warnings]


def record_response(server: Server, sent: SchemaRequest) -> Tree:
    query = f"?dryRun=All&fieldManager=m1&fieldValidation={sent.validation}"
    code, found, warnings = server.ask(sent.method, sent.path + query, sent.body, sent.media)
    if code >= 300:
        return {"code": code, "message": found["message"]}
    compared = (
        {"metadata": found["metadata"], "spec": found.get("spec")} if sent.topic in ("patching", "custom") else {}
    )
    compared.get("metadata", {}).pop("managedFields", None)
    return {"code": code, "warnings": warnings, **compared}


def write(server: Server, kind: Kind, name: str, step: Write, live: Tree | None) -> tuple[int, Tree]:
    item, manager_query = f"{kind.path}/{name}", f"?fieldManager={step.manager}"
    if step.verb in ("apply", "force"):
        force = str(step.verb == "force").lower()
        return server.ask("PATCH", f"{item}{manager_query}&force={force}", step.body, APPLY)[:2]
    if step.verb == "create":
        return server.ask("POST", kind.path + manager_query, step.body)[:2]
    if step.verb == "update":
        assert live is not None
        metadata = {**step.body["metadata"], "resourceVersion": live["metadata"]["resourceVersion"]}
        return server.ask("PUT", item + manager_query, {**step.body, "metadata": metadata})[:2]
    subresource_path = "/status" if step.verb == "status" else ""
    return server.ask("PATCH", item + subresource_path + manager_query, step.body, MERGE)[:2]


def history(server: Server, plural: str, seed: int) -> list[Tree]:
    """The result of each write: the object, or the refusal."""
    writes, live = History(plural, seed), None
    server.ask("DELETE", f"{writes.kind.path}/{writes.name}")
    found = []
    for _ in range(STEPS):
        step = writes.next_write(exists=live is not None)
        code, result = write(server, writes.kind, writes.name, step, live)
        live = result if code < 300 else live
        compared = result if code < 300 else {"message": result["message"]}
        found.append({"code": code, **compared})
    return found


def read_objects(server: Server) -> list[Tree]:
    """Objects as JSON and as protobuf."""
    found = []
    for path in READ_PATHS:
        encoded = server.raw("GET", path, None, "", PROTOBUF)[1]
        found.append({"json": server.ask("GET", path)[1], "protobuf": base64.b64encode(encoded).decode()})
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        server = Server(cluster)
        server.ask("POST", DEFINITIONS, CASES["definition"])
        server.ask("POST", PODS, CASES["live_pod"])
        time.sleep(2)
        answers = [record_response(server, sent) for sent in schema_requests()]
        histories = {f"{plural} {seed}": history(server, plural, seed) for plural in KINDS for seed in SEEDS}
        recorded = {
            "live": server.ask("GET", f"{PODS}/pp")[1],
            "answers": answers,
            "histories": histories,
            "seen": read_objects(server),
        }
    RECORDING.write_bytes(lzma.compress(json.dumps(recorded, separators=(",", ":")).encode()))
    print(f"{len(answers)} answers, {RECORDING.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
