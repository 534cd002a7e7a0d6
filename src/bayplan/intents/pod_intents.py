"""Intents to write pods and bind requests to the API server.

Plugins and engines create intents; `handle.writes` performs them. Only the performer knows the HTTP requests.
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

    The uid is a precondition, so a new pod of the same name is not bound. `annotations` are set on the pod by the same
    write.
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
    """Write annotations of a pod; None removes one.

    Performing it: merge `patch` into the pod, and again after a conflict. The uid is a precondition, so a new pod of
    the same name is not changed. So is the resourceVersion: a patch that the API server applies late must not replace
    the write of a later attempt.
    """

    pod: Pod
    annotations: Mapping[str, str | None]

    def patch(self, pod: Pod) -> dict[str, Any]:
        meta = {"uid": self.pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
        return {"metadata": {**meta, "annotations": dict(self.annotations)}}

    def is_done(self, pod: Pod) -> bool:
        return all(pod.metadata.annotations.get(key) == value for key, value in self.annotations.items())


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod. Performing it: DELETE with its uid as precondition; returns whether the pod still existed."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class CreateBindRequest:
    """Let the binder bind a pod. Performing it: POST the request; returns it as the API server stores it.

    A request of that name may exist already. It can be the same request (same pod, same node, not failed). It can be in
    conflict, which raises an error. It can be left over from an earlier pod or from an abandoned binding; then it is
    deleted and the new one is created.
    """

    pod: Pod
    request: BindRequest


@dataclass(frozen=True, slots=True)
class DeleteBindRequest:
    """Delete a bind request. Performing it: DELETE with its uid as precondition.

    With `only_if_unchanged` the version is a precondition, too: a request that the binder has changed meanwhile stays.
    `on_deleted` gets the request that exists afterwards: None, or the one that stayed. It is needed because a filtered
    watch may report neither, and the caller has to continue.

    The request is not deleted while an earlier create of it may still take effect, because that create would restore
    it. `postponed` then gets the end of that time, on the monotonic clock; `on_deleted` is not called.
    """

    request: BindRequest
    only_if_unchanged: bool = False
    on_deleted: Callable[[BindRequest | None], None] | None = None
    postponed: Callable[[float], None] | None = None
