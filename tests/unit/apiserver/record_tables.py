"""Record the table rows of a real API server for objects in many states.

    PYTHONPATH=tests python tests/unit/apiserver/record_tables.py

takes some 20 seconds and writes `tables.json.xz`.
"""

from __future__ import annotations

import json
import lzma
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from cluster.run import BENCHMARK_FLAGS, Cluster
from unit.apiserver.record_rules import HERE, Server, manifests, path_of, resource_of

RECORDING = HERE / "tables.json.xz"
Tree = dict[str, Any]


COLUMNS: list[Tree] = [
    {"name": name, "type": kind, "jsonPath": path}
    for name, kind, path in (
        ("Phase", "string", ".status.phase"),
        ("Count", "integer", ".spec.count"),
        ("Share", "number", ".spec.share"),
        ("On", "boolean", ".spec.on"),
        ("Since", "date", ".status.since"),
        ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
        ("Unready", "string", ".status.conditions[?(@.type!='Ready')].status"),
        ("First", "string", ".spec.names[0]"),
        ("Last", "string", ".spec.names[-1]"),
        ("All", "string", ".spec.names[*]"),
        ("Each", "string", ".status.conditions[*].type"),
        ("Map", "string", ".spec.map"),
        ("Dotted", "string", r".metadata.labels.example\.com/role"),
        ("Quoted", "string", ".spec.map['a']"),
        ("Slash", "string", ".metadata.annotations['example\\.com/note']"),
        ("Whole", "string", ".spec.share"),
        ("Flag", "string", ".spec.on"),
        ("List", "string", ".spec.names"),
        ("Text", "integer", ".spec.text"),
        ("Created", "date", ".metadata.creationTimestamp"),
    )
]
COLUMNS[3] |= {"priority": 1, "description": "Is it on?"}
COLUMNS[1] |= {"format": "int32"}
CONDITIONS = [{"type": "Held", "status": "False"}, {"type": "Ready", "status": "True"}]
FULL = {
    "metadata": {"labels": {"example.com/role": "r"}, "annotations": {"example.com/note": "n"}},
    "spec": {"count": 3, "share": 0.5, "on": True, "names": ["a", "b"], "map": {"b": 1, "a": [1, "x"]}, "text": "7"},
    "status": {"phase": "Up", "since": "2020-01-01T00:00:00Z", "conditions": CONDITIONS},
}
ODD = {
    "spec": {"count": "3", "share": 2, "on": "yes", "names": [], "map": "m", "text": 7},
    "status": {"phase": 5, "since": "soon", "conditions": {}},
}
WHOLE = {
    "spec": {"count": 3.7, "share": 1e21, "on": False, "names": [None, 1.5], "map": {"a": None}},
    "status": {"phase": None, "since": None, "conditions": [{"type": "Ready"}]},
}
THINGS = [FULL, ODD, WHOLE, {}]


def definition(name: str, columns: list[Tree]) -> Tree:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    if columns:
        version["additionalPrinterColumns"] = columns
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{name.lower()}s.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"plural": f"{name.lower()}s", "kind": name},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def wait_until_served(server: Server, path: str) -> None:
    for _ in range(100):
        with suppress(ValueError):  # the 404 of an unknown path is not JSON
            if server.request("GET", path)["kind"] != "Status":
                return
        time.sleep(0.1)
    raise SystemExit(f"{path} is not served after 10 s")


class Recorder:
    """Creates and updates objects, and records their rows."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.found: Tree = {"columns": {}, "rows": []}

    def put(self, path: str, item: Tree) -> None:
        request = self._server.request
        answer = request("POST", path, item)
        name = answer.get("metadata", {}).get("name", "")
        if answer["kind"] != "Status" and "status" in item and "/example.com/" not in path:
            answer = request("PUT", f"{path}/{name}/status", answer | {"status": item["status"]})
        if answer["kind"] == "Status":
            raise SystemExit(f"{item['kind']} {name}: {answer['message']}")
        if name.startswith("ends"):
            request("DELETE", f"{path}/{name}", {})
        self.record_row(f"{path}/{name}")

    def record_row(self, path: str) -> None:
        stored = self._server.request("GET", path)
        stored["metadata"].pop("managedFields", None)
        table = self._server.request("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
        columns = [{k: v for k, v in each.items() if k != "description"} for each in table["columnDefinitions"]]
        self.found["columns"][f"{stored['apiVersion']} {stored['kind']}"] = columns
        row = table["rows"][0]
        self.found["rows"].append([stored, row["cells"], row.get("conditions", [])])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), flags=BENCHMARK_FLAGS) as cluster:
        server = Server(cluster)
        recorder = Recorder(server)
        for name, columns in (("Thing", COLUMNS), ("Plain", [])):
            server.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(name, columns))
        for kind, things in (("Thing", THINGS), ("Plain", THINGS[:1])):
            path = f"/apis/example.com/v1/namespaces/default/{kind.lower()}s"
            wait_until_served(server, path)
            for number, thing in enumerate(things):
                metadata = {**thing.get("metadata", {}), "name": f"t{number}"}
                recorder.put(path, {**thing, "apiVersion": "example.com/v1", "kind": kind, "metadata": metadata})
        for item in [*manifests(), *yaml.safe_load((HERE / "table_states.yaml").read_text())]:
            recorder.put(path_of(resource_of(item)), item)
    recorder.found["now"] = datetime.now(UTC).isoformat()
    text = json.dumps(recorder.found, separators=(",", ":"))
    RECORDING.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
