"""vc-scheduler's flags: names, types and defaults. Upstream documents their meaning; one line each here."""

from __future__ import annotations

from typing import Any

from bayplan.batch.live.options import LOCK_NAMESPACE
from bayplan.cli.flags.go_command import IGNORED_SECTION, Flag, Reader
from bayplan.codec.go_duration import GoDuration
from bayplan.codec.go_flags import go_bool, go_duration, go_float32, go_int, go_int32, go_level, go_strings, go_vmodule
from bayplan.config.volcano_feature_gates import parse_volcano_gates

_SCHEDULING, _NODES, _CLUSTER = "Scheduling", "Nodes", "The API server"
_SERVING, _ELECTION, _LOGS = "Serving", "Leader election", "Logs"


def _seconds(count: int) -> GoDuration:
    return GoDuration.of_seconds(count)


def _flag(section: str, name: str, read: Reader, default: Any, text: str, **more: Any) -> Flag:
    return Flag(name, read, default, text, section, **more)


VC_SCHEDULER_FLAGS = (
    _flag(
        _SCHEDULING,
        "scheduler-name",
        go_strings,
        ("volcano",),
        "The schedulerName of pods of this scheduler; may be given several times.",
        repeatable=True,
        bare=True,
    ),
    _flag(_SCHEDULING, "scheduler-conf", str, "", "A volcano-scheduler.conf; it is read again when it changes."),
    _flag(_SCHEDULING, "disable-default-scheduler-config", go_bool, False, "Refuse to start without a valid file."),
    _flag(_SCHEDULING, "schedule-period", go_duration, _seconds(1), "Pause between two sessions."),
    _flag(_SCHEDULING, "default-queue", str, "default", "The queue of pod groups without one."),
    _flag(
        _SCHEDULING,
        "feature-gates",
        parse_volcano_gates,
        (),
        "Gate=true|false of Volcano. SchedulingGatesQueueAdmission=true removes the gate from pods that their queue "
        "admits.",
        repeatable=True,
        bare=True,
    ),
    _flag(_NODES, "node-selector", go_strings, (), "label:value of nodes to use; any of several.", repeatable=True),
    _flag(_NODES, "percentage-nodes-to-find", go_int32, 0, "Percentage of nodes after which a search ends; 0: all."),
    _flag(_NODES, "minimum-feasible-nodes", go_int32, 100, "Minimum number of nodes of a search."),
    _flag(
        _NODES, "minimum-percentage-nodes-to-find", go_int32, 5, "Accepted; upstream's bound for the adaptive value 0."
    ),
    _flag(
        _NODES,
        "ignored-provisioners",
        go_strings,
        (),
        "Provisioners whose volumes do not restrict nodes, besides rancher.io/local-path, hostpath.csi.k8s.io and "
        "bayplan.dev/hostpath.",
        repeatable=True,
    ),
    _flag(
        _NODES, "scheduler-sharding-mode", str, "none", "none; hard: only nodes of the NodeShard; soft: those first."
    ),
    _flag(_NODES, "scheduler-sharding-name", str, "volcano", "The NodeShard of this scheduler."),
    _flag(_CLUSTER, "master", str, "", "The API server's address, in place of the kubeconfig's."),
    _flag(_CLUSTER, "kubeconfig", str, "", "The kubeconfig of the API server."),
    _flag(_CLUSTER, "kube-api-qps", go_float32, 2000.0, "Requests a second.", displayed_default="2000"),
    _flag(_CLUSTER, "kube-api-burst", go_int, 2000, "Burst of requests."),
    _flag(_SERVING, "enable-metrics", go_bool, False, "Serve /metrics on --listen-address."),
    _flag(_SERVING, "enable-pprof", go_bool, False, "Serve /debug/pprof/ on --listen-address."),
    _flag(_SERVING, "listen-address", str, ":8080", "The address of metrics and profiles."),
    _flag(_SERVING, "enable-healthz", go_bool, False, "Serve /healthz, /livez and /readyz on --healthz-address."),
    _flag(_SERVING, "healthz-address", str, ":11251", "The address of --enable-healthz."),
    _flag(
        _SERVING,
        "cache-dumper",
        go_bool,
        True,
        "Write the state to a file on SIGUSR1. SIGUSR2 always writes it to the log.",
    ),
    _flag(_SERVING, "cache-dump-dir", str, "/tmp", "The folder of the file of SIGUSR1."),
    _flag(_ELECTION, "leader-elect", go_bool, True, "Only one of several processes schedules."),
    _flag(_ELECTION, "leader-elect-lease-duration", go_duration, _seconds(15), "The lease duration."),
    _flag(_ELECTION, "leader-elect-renew-deadline", go_duration, _seconds(10), "The time limit of a renewal."),
    _flag(_ELECTION, "leader-elect-retry-period", go_duration, _seconds(2), "Time between attempts."),
    _flag(_ELECTION, "leader-elect-resource-lock", str, "leases", "The resource type of the lock."),
    _flag(
        _ELECTION,
        "leader-elect-resource-name",
        str,
        "",
        "The name of the lease.",
        displayed_default="the scheduler's name",
    ),
    _flag(_ELECTION, "leader-elect-resource-namespace", str, LOCK_NAMESPACE, "The namespace of the lease."),
    _flag(_ELECTION, "lock-object-namespace", str, "", "Old name of --leader-elect-resource-namespace."),
    _flag(_LOGS, "v", go_level, 0, "Log verbosity: 3 decisions, 4 objects, 5 steps.", short="v"),
    _flag(_LOGS, "vmodule", go_vmodule, "", "Log verbosity of single files: pattern=N, separated by commas."),
    _flag(_LOGS, "logtostderr", go_bool, True, "Accepted; logs always go to the standard error."),
    _flag(_LOGS, "log-flush-frequency", go_duration, _seconds(5), "Accepted; every line is written at once."),
    _flag(IGNORED_SECTION, "resync-period", go_duration, _seconds(0), "Informers do not resync."),
    _flag(
        IGNORED_SECTION, "resource-sync-timeout", go_duration, _seconds(60), "Scheduling starts only after the sync."
    ),
    _flag(IGNORED_SECTION, "node-worker-threads", go_int, 20, "Bayplan has no worker threads."),
    _flag(IGNORED_SECTION, "gate-removal-worker-num", go_int, 5, "Bayplan has no worker threads."),
    _flag(IGNORED_SECTION, "priority-class", go_bool, True, "PriorityClasses are always used."),
    _flag(IGNORED_SECTION, "csi-storage", go_bool, False, "Storage capacity is always used if the API server has it."),
    _flag(IGNORED_SECTION, "ca-cert-file", str, "", "--healthz-address and --listen-address have no TLS."),
    _flag(IGNORED_SECTION, "tls-cert-file", str, "", "Used for --secure-port only."),
    _flag(IGNORED_SECTION, "tls-private-key-file", str, "", "Used for --secure-port only."),
)

VC_ELECTION_FIELDS = {
    "leader-elect": "leader_elect",
    "leader-elect-lease-duration": "lease_duration",
    "leader-elect-renew-deadline": "renew_deadline",
    "leader-elect-retry-period": "retry_period",
    "leader-elect-resource-lock": "resource_lock",
    "leader-elect-resource-namespace": "resource_namespace",
}
