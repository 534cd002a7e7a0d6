"""Writes to the API server that belong to placing a pod, as values: decided by plugins, performed elsewhere.

Whoever performs them (`handle.writes`) knows the wire; whoever decides them does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.objects.core import Pod


@dataclass(frozen=True, slots=True)
class BindPod:
    """Bind a pod to a node. Performing it: POST `manifest` to the pod's `binding` subresource.

    The uid is a precondition: a namesake that was created meanwhile is not bound.
    """

    pod: Pod
    node_name: str

    def manifest(self) -> dict[str, Any]:
        meta = self.pod.metadata
        return {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid},
            "target": {"kind": "Node", "name": self.node_name},
        }


@dataclass(frozen=True, slots=True)
class AnnotatePod:
    """Write annotations of a pod. Performing it: merge `patch` into the pod.

    The uid is a precondition: a namesake that was created meanwhile is left alone.
    """

    pod: Pod
    annotations: Mapping[str, str]

    def patch(self) -> dict[str, Any]:
        return {"metadata": {"uid": self.pod.metadata.uid, "annotations": dict(self.annotations)}}
