"""Flags that Volcano's webhook manager and controller manager share, or that only its manifests give.

Those of each that mean something of its own stand with its verb. What each means, upstream documents; a line each here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import click

from bayplan.cli.flags.go_command import IGNORED_SECTION, Flag, GoCommand
from bayplan.clock import SystemClock
from bayplan.codec.go_duration import GoDuration
from bayplan.codec.go_flags import (
    go_bool,
    go_duration,
    go_int,
    go_level,
    go_strings,
    go_vmodule,
)
from bayplan.config.volcano_feature_gates import ignored_gate_messages, parse_volcano_gates
from bayplan.telemetry.logs import LogOptions, start_logs

log = logging.getLogger(__name__)

_SERVING, _LOGS = "Serving", "Logs"

_HEALTH_FLAGS = (
    Flag("enable-healthz", go_bool, False, "Serve /healthz on --healthz-address.", _SERVING),
    Flag("healthz-address", str, ":11251", "The address for it.", _SERVING),
)
_LOG_FLAGS = (
    Flag("v", go_level, None, "How much is logged.", _LOGS, short="v", displayed_default="warnings"),
    Flag("vmodule", go_vmodule, "", "The same for single files: pattern=N, with commas between.", _LOGS),
    Flag("logtostderr", go_bool, True, "Accepted; it always does.", _LOGS),
    Flag("log-flush-frequency", go_duration, GoDuration.of_seconds(5), "Accepted; lines are written at once.", _LOGS),
)

WEBHOOK_MANAGER_FLAGS = (
    Flag(
        "feature-gates",
        parse_volcano_gates,
        (),
        "Gate=true|false of Volcano. SchedulingGatesQueueAdmission=true holds pods that ask for it by a gate until "
        "their queue has room, which a scheduler with the same flag removes.",
        "Webhooks",
        repeatable=True,
        bare=True,
    ),
    Flag("enable-queue-allocated-pods-check", go_bool, False, "Keep queues that have pods.", "Webhooks"),
    Flag("enable-root-queue-protection", go_bool, True, "Keep what the queue root has.", "Webhooks"),
    *_HEALTH_FLAGS,
    *_LOG_FLAGS,
    Flag(
        "graceful-shutdown-time",
        go_duration,
        GoDuration.of_seconds(30),
        "What is asked is answered first.",
        IGNORED_SECTION,
    ),
)
CONTROLLER_MANAGER_FLAGS = (
    Flag("leader-elect", go_bool, False, "Work only while holding a lease, so that several can stand by.", "Election"),
    Flag("lock-object-namespace", str, "", "--leader-elect-resource-namespace by its old name.", "Election"),
    Flag("enable-metrics", go_bool, False, "Serve /metrics on --listen-address, or on :8081.", _SERVING),
    *_HEALTH_FLAGS,
    *_LOG_FLAGS,
    Flag("inherit-owner-annotations", go_bool, True, "PodGroups get annotations of who owns the pods.", "PodGroups"),
    Flag("worker-threads", go_int, 3, "There are no threads.", IGNORED_SECTION),
    Flag("worker-threads-for-cronjob", go_int, 3, "There are no threads.", IGNORED_SECTION),
    Flag("worker-threads-for-podgroup", go_int, 5, "There are no threads.", IGNORED_SECTION),
    Flag("worker-threads-for-queue", go_int, 5, "There are no threads.", IGNORED_SECTION),
    Flag("worker-threads-for-gc", go_int, 1, "There are no threads.", IGNORED_SECTION),
    Flag("max-requeue-num", go_int, 15, "Nothing is given up.", IGNORED_SECTION),
    Flag("ca-cert-file", str, "", "Health and metrics are served without TLS.", IGNORED_SECTION),
    Flag("tls-cert-file", str, "", "Likewise.", IGNORED_SECTION),
    Flag("tls-private-key-file", str, "", "Likewise.", IGNORED_SECTION),
    Flag("sharding-configmap", str, "", "There is no sharding controller.", IGNORED_SECTION),
    Flag("sharding-configmap-namespace", str, "", "Likewise.", IGNORED_SECTION),
    Flag("scheduler-configs", go_strings, (), "Likewise.", IGNORED_SECTION, repeatable=True),
    Flag("shard-sync-period", go_duration, GoDuration.of_seconds(60), "Likewise.", IGNORED_SECTION),
    Flag("enable-node-event-trigger", go_bool, True, "Likewise.", IGNORED_SECTION),
    Flag(
        "feature-gates",
        parse_volcano_gates,
        (),
        "Gate=true|false; none turns anything here.",
        IGNORED_SECTION,
        repeatable=True,
    ),
)


def start_volcano_logs(context: click.Context, flags: Mapping[str, Any]) -> None:
    """Warnings, or with -v what the batch engine logs at that level, in klog's lines."""
    if flags["v"] is None and not flags["vmodule"]:
        logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
        return
    logs = start_logs(LogOptions(verbosity=flags["v"] or 0, vmodule=flags["vmodule"]), SystemClock())
    context.call_on_close(logs.close)


def warn_about_ignored_flags(context: click.Context, given: dict[str, Any]) -> None:
    """Say what was given and turns nothing, so that nobody believes it does."""
    assert isinstance(context.command, GoCommand)
    idle = context.command.ignored_flags(given)
    for name in idle:
        if name != "feature-gates":
            log.warning("--%s has no effect here", name)
    gates = context.command.values(given)["feature-gates"]
    for sentence in ignored_gate_messages(gates, none="feature-gates" in idle):
        log.warning("%s", sentence)
