"""Volcano's controllers: jobs, queues, pod groups, cron jobs, flows, hypernodes, and the end of finished jobs."""

from bayplan.controllers.volcano.manager import (
    VOLCANO_CONTROLLER_NAMES,
    VolcanoControllers,
    enabled_volcano_controllers,
    volcano_controller_name,
)

__all__ = ["VOLCANO_CONTROLLER_NAMES", "VolcanoControllers", "enabled_volcano_controllers", "volcano_controller_name"]
