"""Put the questions of `schema_world` to a real API server and keep its answers.

    PYTHONPATH=tests python tests/unit/apiserver/record_schema.py

takes half a minute and writes `schema.json.xz`. Of an object that was made only what a test compares is kept.
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
SEEN = (
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
            with urllib.request.urlopen(request, context=self._trusted, timeout=30) as answer:
                return answer.status, answer.read(), answer.headers.get_all("Warning") or []
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read(), []

    def ask(
        self, method: str, path: str, body: Any = None, media: str = "application/json"
    ) -> tuple[int, Tree, list[str]]:
        raw = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
        code, text, warnings = self.raw(method, path, raw, media, "application/json")
        return code, json.loads(text), [each[7:-1].replace('\\"', '"') for each in warnings]


def answer(server: Server, question: SchemaRequest) -> Tree:
    query = f"?dryRun=All&fieldManager=m1&fieldValidation={question.validation}"
    code, found, warnings = server.ask(question.method, question.path + query, question.body, question.media)
    if code >= 300:
        return {"code": code, "message": found["message"]}
    kept = (
        {"metadata": found["metadata"], "spec": found.get("spec")} if question.topic in ("patching", "custom") else {}
    )
    kept.get("metadata", {}).pop("managedFields", None)
    return {"code": code, "warnings": warnings, **kept}


def write(server: Server, kind: Kind, name: str, step: Write, live: Tree | None) -> tuple[int, Tree]:
    item, who = f"{kind.path}/{name}", f"?fieldManager={step.manager}"
    if step.verb in ("apply", "force"):
        force = str(step.verb == "force").lower()
        return server.ask("PATCH", f"{item}{who}&force={force}", step.body, APPLY)[:2]
    if step.verb == "create":
        return server.ask("POST", kind.path + who, step.body)[:2]
    if step.verb == "update":
        assert live is not None
        metadata = {**step.body["metadata"], "resourceVersion": live["metadata"]["resourceVersion"]}
        return server.ask("PUT", item + who, {**step.body, "metadata": metadata})[:2]
    below = "/status" if step.verb == "status" else ""
    return server.ask("PATCH", item + below + who, step.body, MERGE)[:2]


def history(server: Server, plural: str, seed: int) -> list[Tree]:
    """What became of each write: the object, or the refusal."""
    told, live = History(plural, seed), None
    server.ask("DELETE", f"{told.kind.path}/{told.name}")
    found = []
    for _ in range(STEPS):
        step = told.next_write(exists=live is not None)
        code, made = write(server, told.kind, told.name, step, live)
        live = made if code < 300 else live
        kept = made if code < 300 else {"message": made["message"]}
        found.append({"code": code, **kept})
    return found


def seen(server: Server) -> list[Tree]:
    """Objects as JSON and as protobuf."""
    found = []
    for path in SEEN:
        packed = server.raw("GET", path, None, "", PROTOBUF)[1]
        found.append({"json": server.ask("GET", path)[1], "protobuf": base64.b64encode(packed).decode()})
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        server = Server(cluster)
        server.ask("POST", DEFINITIONS, CASES["definition"])
        server.ask("POST", PODS, CASES["live_pod"])
        time.sleep(2)
        answers = [answer(server, question) for question in schema_requests()]
        histories = {f"{plural} {seed}": history(server, plural, seed) for plural in KINDS for seed in SEEDS}
        recorded = {
            "live": server.ask("GET", f"{PODS}/pp")[1],
            "answers": answers,
            "histories": histories,
            "seen": seen(server),
        }
    RECORDING.write_bytes(lzma.compress(json.dumps(recorded, separators=(",", ":")).encode()))
    print(f"{len(answers)} answers, {RECORDING.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
