"""Flags that Volcano's webhook manager and controller manager share, or that only their manifests contain.

Flags with an own effect are defined with the command. Upstream documents their meaning; one line each here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import click

from bayplan.cli.flags.go_command import IGNORED_SECTION, Flag, GoCommand
from bayplan.clock import SystemClock
from bayplan.codec.go_duration import GoDuration
from bayplan.codec.go_flags import go_bool, go_duration, go_int, go_level, go_strings, go_vmodule
from bayplan.config.volcano_feature_gates import ignored_gate_messages, parse_volcano_gates
from bayplan.telemetry.logs import LogOptions, start_logs

log = logging.getLogger(__name__)

_SERVING, _LOGS = "Serving", "Logs"

_HEALTH_FLAGS = (
    Flag("enable-healthz", go_bool, False, "Serve /healthz on --healthz-address.", _SERVING),
    Flag("healthz-address", str, ":11251", "The address of --enable-healthz.", _SERVING),
)
_LOG_FLAGS = (
    Flag("v", go_level, None, "Log verbosity.", _LOGS, short="v", displayed_default="warnings"),
    Flag("vmodule", go_vmodule, "", "Log verbosity of single files: pattern=N, separated by commas.", _LOGS),
    Flag("logtostderr", go_bool, True, "Accepted; logs always go to the standard error.", _LOGS),
    Flag("log-flush-frequency", go_duration, GoDuration.of_seconds(5), "Accepted; lines are written at once.", _LOGS),
)

WEBHOOK_MANAGER_FLAGS = (
    Flag(
        "feature-gates",
        parse_volcano_gates,
        (),
        "Gate=true|false of Volcano. With SchedulingGatesQueueAdmission=true, pods that opt in are gated until their "
        "queue admits them; a scheduler with the same flag removes the gate.",
        "Webhooks",
        repeatable=True,
        bare=True,
    ),
    Flag("enable-queue-allocated-pods-check", go_bool, False, "Refuse to delete queues with pods.", "Webhooks"),
    Flag("enable-root-queue-protection", go_bool, True, "Refuse changes of the root queue.", "Webhooks"),
    *_HEALTH_FLAGS,
    *_LOG_FLAGS,
    Flag(
        "graceful-shutdown-time",
        go_duration,
        GoDuration.of_seconds(30),
        "Requests in progress are finished first.",
        IGNORED_SECTION,
    ),
)
CONTROLLER_MANAGER_FLAGS = (
    Flag("leader-elect", go_bool, False, "Work only while holding a lease, for standby replicas.", "Election"),
    Flag("lock-object-namespace", str, "", "Old name of --leader-elect-resource-namespace.", "Election"),
    Flag("enable-metrics", go_bool, False, "Serve /metrics on --listen-address, or on :8081.", _SERVING),
    *_HEALTH_FLAGS,
    *_LOG_FLAGS,
    Flag("inherit-owner-annotations", go_bool, True, "PodGroups inherit annotations of the pods' owners.", "PodGroups"),
    Flag("worker-threads", go_int, 3, "Bayplan has no worker threads.", IGNORED_SECTION),
    Flag("worker-threads-for-cronjob", go_int, 3, "Bayplan has no worker threads.", IGNORED_SECTION),
    Flag("worker-threads-for-podgroup", go_int, 5, "Bayplan has no worker threads.", IGNORED_SECTION),
    Flag("worker-threads-for-queue", go_int, 5, "Bayplan has no worker threads.", IGNORED_SECTION),
    Flag("worker-threads-for-gc", go_int, 1, "Bayplan has no worker threads.", IGNORED_SECTION),
    Flag("max-requeue-num", go_int, 15, "Retries are unlimited.", IGNORED_SECTION),
    Flag("ca-cert-file", str, "", "Health and metrics are served without TLS.", IGNORED_SECTION),
    Flag("tls-cert-file", str, "", "Health and metrics are served without TLS.", IGNORED_SECTION),
    Flag("tls-private-key-file", str, "", "Health and metrics are served without TLS.", IGNORED_SECTION),
    Flag("sharding-configmap", str, "", "Bayplan has no sharding controller.", IGNORED_SECTION),
    Flag("sharding-configmap-namespace", str, "", "Bayplan has no sharding controller.", IGNORED_SECTION),
    Flag("scheduler-configs", go_strings, (), "Bayplan has no sharding controller.", IGNORED_SECTION, repeatable=True),
    Flag(
        "shard-sync-period",
        go_duration,
        GoDuration.of_seconds(60),
        "Bayplan has no sharding controller.",
        IGNORED_SECTION,
    ),
    Flag("enable-node-event-trigger", go_bool, True, "Bayplan has no sharding controller.", IGNORED_SECTION),
    Flag(
        "feature-gates",
        parse_volcano_gates,
        (),
        "Gate=true|false; no gate has an effect in Bayplan.",
        IGNORED_SECTION,
        repeatable=True,
    ),
)


def start_volcano_logs(context: click.Context, flags: Mapping[str, Any]) -> None:
    """Log warnings, or with -v everything up to that level, in klog's format."""
    if flags["v"] is None and not flags["vmodule"]:
        logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
        return
    logs = start_logs(LogOptions(verbosity=flags["v"] or 0, vmodule=flags["vmodule"]), SystemClock())
    context.call_on_close(logs.close)


def warn_about_ignored_flags(context: click.Context, given: dict[str, Any]) -> None:
    assert isinstance(context.command, GoCommand)
    unused = context.command.ignored_flags(given)
    for name in unused:
        if name != "feature-gates":
            log.warning("--%s has no effect in Bayplan", name)
    gates = context.command.values(given)["feature-gates"]
    for sentence in ignored_gate_messages(gates, none="feature-gates" in unused):
        log.warning("%s", sentence)
