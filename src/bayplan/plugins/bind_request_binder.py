"""How does a placement become true? By a BindRequest that the binder carries out.

Asked at Bind, in place of DefaultBinder, and before that about nodes: where the binder has lately given this very pod
up it is not tried again for a while, so that one bad node never starves anybody. Cost: one request a pod.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from bayplan.errors import ApiError, BayplanError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import Rejection, row_local
from bayplan.framework.api.status import (
    SKIP,
    Status,
    error,
    unresolvable,
)
from bayplan.framework.runtime.bind_request_mutation import EXCLUDED_NODE_REASON, REQUEST_FIELDS
from bayplan.intents.pod_intents import CreateBindRequest
from bayplan.objects.core import Pod
from bayplan.snapshot import NodeTable


class BindRequestBinder:
    """Has pods bound by the binder."""

    name = "BindRequestBinder"
    looks_at_pods = False
    depends_on = row_local  # of pods that have not failed it says nothing at all, and all others are asked about alone
    binds_every_pod = True
    filters_where_it_binds = True  # or a binding that is always refused would be asked for again and again
    signs_anew = True  # a binding that is given up makes a pod like no other, and nothing of the pod has changed
    cured_by = (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)

    def __init__(self, handle: Handle) -> None:
        self._writes = handle.writes
        self._requests = handle.bind_requests

    @classmethod
    def factory(cls, args: object, handle: Handle) -> BindRequestBinder:  # noqa: ARG003
        return cls(handle)

    def signature(self, pod: Pod) -> Hashable | None:
        """A pod that has failed before is like no other."""
        return None if pod.metadata.uid in self._requests.factory.failures.records else ()

    def pre_filter(self, cycle: Cycle) -> Status | None:
        failures = self._requests.factory.failures
        if cycle.pod.uid not in failures.records:
            return SKIP
        why = failures.backoff_message(cycle.pod.uid)
        return unresolvable(why) if why else None

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        excluded = self._requests.factory.failures.excluded_nodes(cycle.pod.uid)
        if excluded:
            mask = np.fromiter((name in excluded for name in nodes.names), dtype=np.bool_, count=len(nodes))
            yield Rejection(mask, EXCLUDED_NODE_REASON, resolvable=False)

    async def bind(self, cycle: Cycle, node_name: str) -> Status | None:
        desk, pod, fields = self._requests.factory, cycle.pod, cycle.find(REQUEST_FIELDS) or {}
        try:
            annotations = self._requests.annotations(cycle, node_name)
            request = desk.request(pod, node_name, annotations, **fields)
            desk.observe_created(await self._writes.perform(CreateBindRequest(pod, request)), pod)
        except ApiError as fault:
            return error(fault.details)
        except BayplanError as fault:
            return error(str(fault))
        return None
