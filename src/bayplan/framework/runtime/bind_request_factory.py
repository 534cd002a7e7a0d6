"""Builds the BindRequest of a pod that is placed on a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.clock import Clock
from bayplan.framework.runtime.bind_failures import BindFailures
from bayplan.framework.runtime.bind_request_mutation import BindRequestMutation, RequestTracker
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest, new_request
from bayplan.objects.kai.gpu_sharing import RESERVATION_NAMESPACE


class BindRequestFactory:
    def __init__(self, clock: Clock, *, attempts: int | None = 3) -> None:
        self.mutation = BindRequestMutation(clock)
        self.failures = BindFailures(clock)
        self.attempts = attempts
        self.reservations = RESERVATION_NAMESPACE
        """The namespace of the reservation pods for shared GPUs."""
        self.tracker: RequestTracker | None = None

    def request(self, pod: Pod, node_name: str, annotations: Mapping[str, str], **spec: Any) -> BindRequest:
        return new_request(pod, node_name, annotations=annotations, backoff_limit=self.attempts, **spec)

    def observe_created(self, request: BindRequest, pod: Pod) -> None:
        """Record a request that the API server has accepted, before the watch shows it."""
        if self.tracker is not None:
            self.tracker.observe_created(request, pod)

    def gpu_groups_of(self, pod: Pod) -> tuple[str, ...]:
        request = self.tracker.request_of(pod) if self.tracker is not None else None
        return request.spec.selected_gpu_groups if request is not None else ()
