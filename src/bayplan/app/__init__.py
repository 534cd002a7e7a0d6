"""Composition root: builds running engines from configuration, cluster and clock. It has no other logic."""

from bayplan.admission.job_validation import job_errors
from bayplan.admission.volcano_defaults import with_job_defaults
from bayplan.app.batch import build_batch_engine, usage_collector
from bayplan.app.configuration import (
    batch_configured,
    configured,
    filled_cache,
    known_actions,
    known_batch_plugins,
    known_plugins,
    plugin_source,
    read_objects,
)
from bayplan.app.controllers import fake_kubelet
from bayplan.app.scheduler import build_engine, scheduler_process
from bayplan.client import load_connection_config
from bayplan.memory import freeze_memory

__all__ = [
    "batch_configured",
    "build_batch_engine",
    "build_engine",
    "configured",
    "fake_kubelet",
    "filled_cache",
    "freeze_memory",
    "job_errors",
    "known_actions",
    "known_batch_plugins",
    "known_plugins",
    "load_connection_config",
    "plugin_source",
    "read_objects",
    "scheduler_process",
    "usage_collector",
    "with_job_defaults",
]
