"""Ask a real API server what it makes of the manifests and of changed copies of them; keep its answers.

    PYTHONPATH=tests python tests/unit/apiserver/record_rules.py

takes two minutes and writes `rules.json.xz`. Nothing of a request is kept but the change; nothing of an answer but
what differs from the manifest's own answer.
"""

from __future__ import annotations

import json
import lzma
import tempfile
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import yaml

from bayplan.apiserver.resources.kinds import BUILT_IN, ServedResource
from cluster.api import Api, Refused
from cluster.run import BENCHMARK_FLAGS, Cluster
from support.builders.manifest_mutations import apply_mutation, mutations

HERE = Path(__file__).parent
RECORDING = HERE / "rules.json.xz"
Tree = dict[str, Any]

NAMESPACE = "default"
UNCHECKED = ("FlowSchema", "PriorityLevelConfiguration")
"""Kinds that are stored for whoever reads them, and only held to their metadata."""


def manifests() -> list[Tree]:
    return list(yaml.safe_load_all((HERE / "manifests.yaml").read_text()))


def resource_of(item: Tree) -> ServedResource:
    group, _, version = item["apiVersion"].rpartition("/")
    return next(r for r in BUILT_IN if (r.group, r.version, r.kind) == (group, version, item["kind"]))


def path_of(resource: ServedResource) -> str:
    root = f"/apis/{resource.api_version}" if resource.group else "/api/v1"
    return f"{root}/namespaces/{NAMESPACE}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"


class Server:
    """Questions to the real one; the answer is the object, or the Status of a refusal."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = Api(cluster, NAMESPACE)

    def ask(self, method: str, path: str, body: Tree | None = None, accept: str = "application/json") -> Tree:
        try:
            return self._api._ask(method, path, body, accept=accept)
        except Refused as refused:
            found: Tree = json.loads(str(refused).partition(": ")[2])
            return found
        except HTTPException:  # it hung up: something in there panicked
            return {"kind": "Status", "code": 500, "message": "hung up"}


def told(answer: Tree) -> Any:
    """A refusal as its causes, or as its message; an object without what the server makes up."""
    if answer.get("kind") == "Status":
        causes = answer.get("details", {}).get("causes")
        if answer.get("reason") == "Invalid" and causes:
            return sorted([each["field"], each["reason"], each["message"]] for each in causes)
        return f"{answer['code']} {answer['message']}"
    answer["metadata"].pop("managedFields", None)
    return answer


def undecodable(answer: Any) -> bool:
    return isinstance(answer, str) and ("cannot be handled as" in answer or answer.startswith("500"))


def creations(server: Server, item: Tree) -> Iterator[list[Any]]:
    path = f"{path_of(resource_of(item))}?dryRun=All"
    for where, value in mutations(item):
        answer = told(server.ask("POST", path, apply_mutation(item, where, value)))
        if not undecodable(answer):
            yield [where, value, answer]


def updates(server: Server, item: Tree) -> Tree:
    resource = resource_of(item)
    stored = server.ask("POST", path_of(resource), item)
    if stored["kind"] == "Status":
        raise SystemExit(f"{item['kind']} {item['metadata']}: {stored['message']}")
    stored["metadata"].pop("managedFields", None)
    path = f"{path_of(resource)}/{stored['metadata']['name']}"
    found = []
    for where, value in mutations(stored):
        answer = told(server.ask("PUT", f"{path}?dryRun=All", apply_mutation(stored, where, value)))
        if not undecodable(answer):
            found.append([where, value, answer])
    server.ask("DELETE", path, {"gracePeriodSeconds": 0})
    return {"stored": stored, "cases": found}


def main() -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), flags=BENCHMARK_FLAGS) as cluster:
        server = Server(cluster)
        for item in manifests():
            path = f"{path_of(resource_of(item))}?dryRun=All"
            created = told(server.ask("POST", path, item))
            case: Tree = {"item": item, "created": created}
            if item["kind"] not in UNCHECKED:
                case |= {"creations": list(creations(server, item)), "updates": updates(server, item)}
            found.append(case)
    text = json.dumps(found, separators=(",", ":"))
    RECORDING.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
