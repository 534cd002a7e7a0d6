"""Binds a pod to its node with a Binding that the API server accepts.

Called at Bind, in the binding cycle. Cost: one request.
"""

from __future__ import annotations

from bayplan.errors import ApiError, BayplanError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin_traits import PluginTraits
from bayplan.framework.api.status import Status, error
from bayplan.intents.pod_intents import BindPod


class DefaultBinder:
    """Binds pods through the API server."""

    name = "DefaultBinder"
    traits = PluginTraits(binds_every_pod=True)

    def __init__(self, handle: Handle) -> None:
        self._writes = handle.writes

    @classmethod
    def factory(cls, args: object, handle: Handle) -> DefaultBinder:  # noqa: ARG003
        return cls(handle)

    async def bind(self, cycle: Cycle, node_name: str) -> Status | None:
        try:
            await self._writes.perform(BindPod(cycle.pod, node_name))
        except ApiError as fault:
            return error(fault.details)  # the text of the API server, which users search for
        except BayplanError as fault:
            return error(str(fault))
        return None
