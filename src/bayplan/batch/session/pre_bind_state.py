"""What was reserved for a task of a session, and what is left to do before it can be bound.

Made where a plugin reserves (`predicates`, for volumes and devices); carried out by whoever has an API server. Nothing
for tasks that need neither, which are most.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import PRE_BIND
from bayplan.framework.api.status import SUCCESS, Status, error
from bayplan.framework.runtime.bind_request_mutation import REQUEST_FIELDS
from bayplan.framework.runtime.plugin_call import to_status

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreBindState:
    """Plugins of the framework that have reserved something for a pod, and the state in which they keep it."""

    plugins: Sequence[Any]
    cycle: Cycle

    async def run_pre_bind(self, node_name: str) -> Status:
        """Have everything written that must be there first; what goes wrong is an answer."""
        for plugin in self.plugins:
            pre_bind = getattr(plugin, "pre_bind", None)
            if pre_bind is None:
                continue
            try:
                status = to_status(await pre_bind(self.cycle, node_name), plugin.name, PRE_BIND)
            except Exception as fault:  # a plugin or the API server: either way the pod is not bound
                status = error(f"{plugin.name}: {type(fault).__name__}: {fault}")
            if not status.ok:
                return status
        return SUCCESS

    @property
    def request_fields(self) -> Mapping[str, Any]:
        """What the BindRequest of the pod says of it, where there is one."""
        return self.cycle.find(REQUEST_FIELDS) or {}

    def unreserve(self, node_name: str) -> None:
        """Give back what was reserved, newest first."""
        for plugin in reversed(self.plugins):
            try:
                plugin.unreserve(self.cycle, node_name)
            except Exception:  # the others still give theirs back
                log.exception("%s cannot give back what it reserved for pod %s", plugin.name, self.cycle.pod.key)
