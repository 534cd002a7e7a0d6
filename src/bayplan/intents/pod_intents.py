"""Writes to the API server that belong to placing a pod, as values: decided by plugins, performed elsewhere.

Whoever performs them (`handle.writes`) knows the wire; whoever decides them does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest


@dataclass(frozen=True, slots=True)
class BindPod:
    """Bind a pod to a node. Performing it: POST `manifest` to the pod's `binding` subresource.

    The uid is a precondition: a namesake that was created meanwhile is not bound. `annotations` are the pod's from the
    moment on at which it is bound.
    """

    pod: Pod
    node_name: str
    annotations: Mapping[str, str] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        meta = self.pod.metadata
        return {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
                **({"annotations": dict(self.annotations)} if self.annotations else {}),
            },
            "target": {"kind": "Node", "name": self.node_name},
        }


@dataclass(frozen=True, slots=True)
class AnnotatePod:
    """Write annotations of a pod; None removes one. Performing it: merge `patch` into the pod, and again after a
    conflict.

    The uid is a precondition: another pod of the same name is left alone. So is the resourceVersion: a patch that the
    API server applies late must not replace what a later attempt has written.
    """

    pod: Pod
    annotations: Mapping[str, str | None]

    def patch(self, pod: Pod) -> dict[str, Any]:
        """The patch of this version of the pod."""
        meta = {"uid": self.pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
        return {"metadata": {**meta, "annotations": dict(self.annotations)}}

    def is_done(self, pod: Pod) -> bool:
        return all(pod.metadata.annotations.get(key) == value for key, value in self.annotations.items())


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete this very pod. Performing it: DELETE with its uid; returns whether the pod was still there."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class CreateBindRequest:
    """Have a pod bound by the binder. Performing it: POST the request; returns it as the API server then has it.

    One of that name that is there already is this one (same pod, same node, alive), in the way of it (raises), or a
    leftover of an earlier pod or of a binding that was given up: then it is deleted and the request made after all.
    """

    pod: Pod
    request: BindRequest


@dataclass(frozen=True, slots=True)
class DeleteBindRequest:
    """Delete this very request. Performing it: DELETE with its uid, and with its version where `only_if_unchanged`, so
    that one that the binder has touched meanwhile stays. `on_deleted` is told what is there afterwards: nothing, or
    what stayed. A watch that selects may never tell of either, and whoever decided has to go on, or to decide anew.

    The request is not deleted while an earlier create of it may still take effect, because that create would bring it
    back. `postponed` then gets the end of that time, on the monotonic clock; `on_deleted` is not called."""

    request: BindRequest
    only_if_unchanged: bool = False
    on_deleted: Callable[[BindRequest | None], None] | None = None
    postponed: Callable[[float], None] | None = None
