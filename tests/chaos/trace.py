"""Trace of a run: one line for each object version and each write of a process, to follow an object by `grep`."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from chaos.objects import is_deleted, key, node_of, reserved_for, spec, status, uid
from chaos.proxy.requests import ApiRequest
from chaos.proxy.server import WriteLine
from chaos.record import Change


class Trace:
    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")

    def on_change(self, change: Change) -> None:
        tree = change.tree
        fields = {
            "node": node_of(tree) if change.kind == "Pod" else spec(tree).get("selectedNode"),
            "phase": status(tree).get("phase"),
            "nominated": status(tree).get("nominatedNodeName"),
            "reserved": len(reserved_for(tree)) if change.kind == "ResourceClaim" else None,
            "deleted": is_deleted(tree) or None,
        }
        found = " ".join(f"{name}={value}" for name, value in fields.items() if value)
        meta = tree["metadata"]
        head = f"{change.at_s:10.3f} {change.kind} {key(tree)} {uid(tree)[:8]} v{meta.get('resourceVersion')}"
        self._file.write(f"{head} {change.type} {found}\n")

    def on_write(self, request: ApiRequest, line: WriteLine) -> None:  # noqa: ARG002
        fault = f" [{line.fault}]" if line.fault else ""
        self._file.write(f"{line.at_s:10.3f} {line.slot}: {line.method} {line.path} -> {line.code}{fault}\n")

    def close(self) -> None:
        self._file.close()
