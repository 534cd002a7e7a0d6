"""Record how a real API server handles the manifests and mutated copies of them.

    PYTHONPATH=tests python tests/unit/apiserver/record_rules.py

takes two minutes and writes `rules.json.xz`. The recording keeps only the mutation of a request, and of a response only
the difference from the response to the manifest itself.
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
"""Kinds without validation of their spec here: only their metadata is checked."""


def manifests() -> list[Tree]:
    return list(yaml.safe_load_all((HERE / "manifests.yaml").read_text()))


def resource_of(item: Tree) -> ServedResource:
    group, _, version = item["apiVersion"].rpartition("/")
    return next(r for r in BUILT_IN if (r.group, r.version, r.kind) == (group, version, item["kind"]))


def path_of(resource: ServedResource) -> str:
    root = f"/apis/{resource.api_version}" if resource.group else "/api/v1"
    return f"{root}/namespaces/{NAMESPACE}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"


class Server:
    """The real API server. A response is the object, or the Status of a refusal."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = Api(cluster, NAMESPACE)

    def request(self, method: str, path: str, body: Tree | None = None, accept: str = "application/json") -> Tree:
        try:
            return self._api._ask(method, path, body, accept=accept)
        except Refused as refused:
            found: Tree = json.loads(str(refused).partition(": ")[2])
            return found
        except HTTPException:  # the server closed the connection: a panic
            return {"kind": "Status", "code": 500, "message": "hung up"}


def outcome(answer: Tree) -> Any:
    """A refusal as its causes or its message; an object without managed fields."""
    if answer.get("kind") == "Status":
        causes = answer.get("details", {}).get("causes")
        if answer.get("reason") == "Invalid" and causes:
            return sorted([each["field"], each["reason"], each["message"]] for each in causes)
        return f"{answer['code']} {answer['message']}"
    answer["metadata"].pop("managedFields", None)
    return answer


def is_decode_error(answer: Any) -> bool:
    return isinstance(answer, str) and ("cannot be handled as" in answer or answer.startswith("500"))


def record_creates(server: Server, item: Tree) -> Iterator[list[Any]]:
    path = f"{path_of(resource_of(item))}?dryRun=All"
    for where, value in mutations(item):
        answer = outcome(server.request("POST", path, apply_mutation(item, where, value)))
        if not is_decode_error(answer):
            yield [where, value, answer]


def record_updates(server: Server, item: Tree) -> Tree:
    resource = resource_of(item)
    stored = server.request("POST", path_of(resource), item)
    if stored["kind"] == "Status":
        raise SystemExit(f"{item['kind']} {item['metadata']}: {stored['message']}")
    stored["metadata"].pop("managedFields", None)
    path = f"{path_of(resource)}/{stored['metadata']['name']}"
    found = []
    for where, value in mutations(stored):
        answer = outcome(server.request("PUT", f"{path}?dryRun=All", apply_mutation(stored, where, value)))
        if not is_decode_error(answer):
            found.append([where, value, answer])
    server.request("DELETE", path, {"gracePeriodSeconds": 0})
    return {"stored": stored, "cases": found}


def main() -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), flags=BENCHMARK_FLAGS) as cluster:
        server = Server(cluster)
        for item in manifests():
            path = f"{path_of(resource_of(item))}?dryRun=All"
            created = outcome(server.request("POST", path, item))
            case: Tree = {"item": item, "created": created}
            if item["kind"] not in UNCHECKED:
                case |= {"creations": list(record_creates(server, item)), "updates": record_updates(server, item)}
            found.append(case)
    text = json.dumps(found, separators=(",", ":"))
    RECORDING.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
