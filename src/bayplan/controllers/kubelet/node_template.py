"""What does the nth fake node look like? A Node manifest in which `{index}` stands for the number.

Asked once a node. Texts anywhere in the manifest may say `{index}`, `{index%3}` (three zones in turn) or `{index/40}`
(racks of forty); what the manifest leaves out is filled in as a kubelet would.
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
"""Where the node says that its kubelet listens. Nothing does: whoever asks for logs is refused at once."""

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
    """Makes nodes that differ by their number."""

    def __init__(self, manifest: dict[str, Any] | None = None) -> None:
        self._manifest = manifest or {}
        name = self._metadata(self._manifest).get("name") or "fake"
        self._name = name if _INDEX.search(name) else f"{name}-{{index}}"
        self._check()

    @classmethod
    def read(cls, path: Path) -> NodeTemplate:
        """The one Node of a file."""
        found = [manifest.value for manifest in read_manifests(path)]
        if len(found) != 1 or not isinstance(found[0], dict) or found[0].get("kind", "Node") != "Node":
            raise ObjectError(f"{path} is no node template; write one Node manifest into it")
        return cls(found[0])

    def name(self, index: int) -> str:
        return _numbered_text(self._name, index)

    def node(self, index: int) -> dict[str, Any]:
        """The Node object, without conditions."""
        tree: dict[str, Any] = _numbered(copy.deepcopy(self._manifest), index)
        name, meta, status = self.name(index), self._metadata(tree), tree.get("status") or {}
        meta["name"] = name
        arch = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name}
        meta["labels"] = arch | (meta.get("labels") or {})
        capacity = status.get("capacity") or status.get("allocatable") or CAPACITY
        filled = {
            "capacity": dict(capacity),
            "allocatable": dict(status.get("allocatable") or capacity),
            "addresses": [{"type": "InternalIP", "address": ADDRESS}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": CLOSED_PORT}},
            "nodeInfo": _SYSTEM | (status.get("nodeInfo") or {}),
        }
        status = {key: value for key, value in status.items() if key != "conditions"}
        return {**tree, "apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {**status, **filled}}

    def _check(self) -> None:
        """Whatever is wrong with a template is wrong with the first node."""
        first = self.node(0)
        node = convert(first, Node)
        for amounts in (node.status.capacity, node.status.allocatable):
            for amount in amounts.values():
                parse_quantity(amount)

    @staticmethod
    def _metadata(tree: dict[str, Any]) -> dict[str, Any]:
        meta = tree.get("metadata") or {}
        if not isinstance(meta, dict):
            raise ObjectError("the node template's metadata is no object; correct it")
        return meta


def _numbered(value: Any, index: int) -> Any:
    if isinstance(value, str):
        return _numbered_text(value, index)
    if isinstance(value, list):
        return [_numbered(item, index) for item in value]
    if isinstance(value, dict):
        return {_numbered_text(key, index): _numbered(item, index) for key, item in value.items()}
    return value


def _numbered_text(text: str, index: int) -> str:
    def number(found: re.Match[str]) -> str:
        if found["operator"] is None:
            return str(index)
        other = int(found["number"])
        return str(index % other if found["operator"] == "%" else index // other)

    return _INDEX.sub(number, text) if "{" in text else text
