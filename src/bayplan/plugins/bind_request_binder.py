"""Creates a BindRequest that the binder executes, instead of binding the pod.

Used at Bind in place of DefaultBinder. It also filters nodes: after a failed binding the pod is kept off that node for
a while, so one bad node does not starve a pod. Cost: one request for each pod.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from bayplan.errors import ApiError, BayplanError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.framework.api.status import SKIP, Status, error, unresolvable
from bayplan.framework.runtime.bind_request_mutation import EXCLUDED_NODE_REASON, REQUEST_FIELDS
from bayplan.intents.pod_intents import CreateBindRequest
from bayplan.objects.core import Pod
from bayplan.snapshot import NodeTable


class BindRequestBinder:
    """Binds pods through the binder."""

    name = "BindRequestBinder"
    traits = PluginTraits(
        depends_on=row_local,  # it rejects nothing for pods without failures, and pods with failures share no answers
        looks_at_pods=False,
        binds_every_pod=True,
        filters_before_binding=True,  # otherwise a binding that is always refused would be requested repeatedly
        signature_may_change=True,  # a failed binding changes the signature of a pod that has not changed
    )
    events_to_register = (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)

    def __init__(self, handle: Handle) -> None:
        self._writes = handle.writes
        self._requests = handle.bind_requests

    @classmethod
    def factory(cls, args: object, handle: Handle) -> BindRequestBinder:  # noqa: ARG003
        return cls(handle)

    def signature(self, pod: Pod) -> Hashable | None:
        """A pod with a failed binding shares no answers."""
        return None if pod.metadata.uid in self._requests.factory.failures.records else ()

    def pre_filter(self, cycle: Cycle) -> Status | None:
        failures = self._requests.factory.failures
        if cycle.pod.uid not in failures.records:
            return SKIP
        message = failures.backoff_message(cycle.pod.uid)
        return unresolvable(message) if message else None

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        excluded = self._requests.factory.failures.excluded_nodes(cycle.pod.uid)
        if excluded:
            mask = np.fromiter((name in excluded for name in nodes.names), dtype=np.bool_, count=len(nodes))
            yield Rejection(mask, EXCLUDED_NODE_REASON, resolvable=False)

    async def bind(self, cycle: Cycle, node_name: str) -> Status | None:
        factory, pod, fields = self._requests.factory, cycle.pod, cycle.find(REQUEST_FIELDS) or {}
        try:
            annotations = self._requests.annotations(cycle, node_name)
            request = factory.request(pod, node_name, annotations, **fields)
            factory.observe_created(await self._writes.perform(CreateBindRequest(pod, request)), pod)
        except ApiError as fault:
            return error(fault.details)
        except BayplanError as fault:
            return error(str(fault))
        return None
