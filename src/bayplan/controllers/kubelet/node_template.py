"""Template of fake nodes: a Node manifest with placeholders for the node's index.

Rendered once per node. Any text of the manifest may contain `{index}`, `{index%3}` (three zones in turn) or
`{index/40}` (racks of forty). Missing fields are filled in as a kubelet would.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

from bayplan.codec.quantity import parse_quantity
from bayplan.codec.yaml import read_manifests
from bayplan.errors import ObjectError
from bayplan.objects.core import Node
from bayplan.objects.kinds import convert

ADDRESS = "127.0.0.1"
CLOSED_PORT = 1
"""Port of the node's kubelet endpoint. Nothing listens there, so requests for logs fail at once."""

CAPACITY = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}
_SYSTEM = {
    "machineID": "",
    "systemUUID": "",
    "bootID": "",
    "kernelVersion": "",
    "osImage": "",
    "containerRuntimeVersion": "fake://0",
    "kubeletVersion": "v1.36.0+bayplan",
    "kubeProxyVersion": "",
    "operatingSystem": "linux",
    "architecture": "amd64",
}
_INDEX = re.compile(r"\{index(?:(?P<operator>[%/])(?P<number>[1-9][0-9]*))?\}")


class NodeTemplate:
    """Renders nodes that differ by index."""

    def __init__(self, manifest: dict[str, Any] | None = None) -> None:
        self._manifest = manifest or {}
        name = self._metadata(self._manifest).get("name") or "fake"
        self._name = name if _INDEX.search(name) else f"{name}-{{index}}"
        self._check()

    @classmethod
    def read(cls, path: Path) -> NodeTemplate:
        """Read the only Node of a file."""
        found = [manifest.value for manifest in read_manifests(path)]
        if len(found) != 1 or not isinstance(found[0], dict) or found[0].get("kind", "Node") != "Node":
            raise ObjectError(f"{path} is not a node template; write exactly one Node manifest into it")
        return cls(found[0])

    def name(self, index: int) -> str:
        return _render_text(self._name, index)

    def node(self, index: int) -> dict[str, Any]:
        """Render a node, without conditions."""
        tree: dict[str, Any] = _render(copy.deepcopy(self._manifest), index)
        name, meta, status = self.name(index), self._metadata(tree), tree.get("status") or {}
        meta["name"] = name
        arch = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name}
        meta["labels"] = arch | (meta.get("labels") or {})
        capacity = status.get("capacity") or status.get("allocatable") or CAPACITY
        defaults = {
            "capacity": dict(capacity),
            "allocatable": dict(status.get("allocatable") or capacity),
            "addresses": [{"type": "InternalIP", "address": ADDRESS}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": CLOSED_PORT}},
            "nodeInfo": _SYSTEM | (status.get("nodeInfo") or {}),
        }
        status = {key: value for key, value in status.items() if key != "conditions"}
        return {**tree, "apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {**status, **defaults}}

    def _check(self) -> None:
        """Validate the first node: all nodes have the same faults."""
        first = self.node(0)
        node = convert(first, Node)
        for amounts in (node.status.capacity, node.status.allocatable):
            for amount in amounts.values():
                parse_quantity(amount)

    @staticmethod
    def _metadata(tree: dict[str, Any]) -> dict[str, Any]:
        meta = tree.get("metadata") or {}
        if not isinstance(meta, dict):
            raise ObjectError("the node template's metadata is not an object; correct it")
        return meta


def _render(value: Any, index: int) -> Any:
    if isinstance(value, str):
        return _render_text(value, index)
    if isinstance(value, list):
        return [_render(item, index) for item in value]
    if isinstance(value, dict):
        return {_render_text(key, index): _render(item, index) for key, item in value.items()}
    return value


def _render_text(text: str, index: int) -> str:
    def number(found: re.Match[str]) -> str:
        if found["operator"] is None:
            return str(index)
        divisor = int(found["number"])
        return str(index % divisor if found["operator"] == "%" else index // divisor)

    return _INDEX.sub(number, text) if "{" in text else text
