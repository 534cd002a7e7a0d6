"""Volcano's controllers: jobs, queues, pod groups, cron jobs, flows, hypernodes, and the end of finished jobs."""

from bayplan.controllers.volcano.manager import (
    BATCH_CONTROLLER_NAMES,
    BatchControllers,
    batch_controller_name,
    chosen_batch,
)

__all__ = ["BATCH_CONTROLLER_NAMES", "BatchControllers", "batch_controller_name", "chosen_batch"]
