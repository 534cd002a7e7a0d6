"""State of framework plugins that reserved resources for a task, and the steps before its binding.

Created where a plugin reserves (`predicates`, for volumes and devices); run by the process with an API server. Most
tasks need neither and have none.
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
    """Framework plugins that reserved something for a pod, and the cycle state that holds it."""

    plugins: Sequence[Any]
    cycle: Cycle

    async def run_pre_bind(self, node_name: str) -> Status:
        """Run PreBind of all plugins: it writes what must exist before the binding. Errors become a Status."""
        for plugin in self.plugins:
            pre_bind = getattr(plugin, "pre_bind", None)
            if pre_bind is None:
                continue
            try:
                status = to_status(await pre_bind(self.cycle, node_name), plugin.name, PRE_BIND)
            except Exception as fault:  # the plugin or the API server failed: the pod is not bound
                status = error(f"{plugin.name}: {type(fault).__name__}: {fault}")
            if not status.ok:
                return status
        return SUCCESS

    @property
    def request_fields(self) -> Mapping[str, Any]:
        """Fields for the BindRequest of the pod, if it has one."""
        return self.cycle.find(REQUEST_FIELDS) or {}

    def unreserve(self, node_name: str) -> None:
        """Unreserve in reverse order."""
        for plugin in reversed(self.plugins):
            try:
                plugin.unreserve(self.cycle, node_name)
            except Exception:  # the other plugins still unreserve
                log.exception("%s cannot unreserve pod %s", plugin.name, self.cycle.pod.key)
