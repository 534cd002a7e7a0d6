"""Volcano's controllers: jobs, queues, pod groups, cron jobs, job flows, hypernodes, and garbage collection of jobs."""

from bayplan.controllers.volcano.manager import (
    VOLCANO_CONTROLLER_NAMES,
    VolcanoControllers,
    enabled_volcano_controllers,
    volcano_controller_name,
)

__all__ = ["VOLCANO_CONTROLLER_NAMES", "VolcanoControllers", "enabled_volcano_controllers", "volcano_controller_name"]
