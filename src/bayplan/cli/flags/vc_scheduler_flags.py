"""vc-scheduler's flags: names, kinds, defaults. What each means, upstream documents; a line each here."""

from __future__ import annotations

from typing import Any

from bayplan.batch.live.options import LOCK_NAMESPACE
from bayplan.cli.flags.go_command import IGNORED_SECTION, Flag, Reader
from bayplan.codec.go_duration import GoDuration
from bayplan.codec.go_flags import (
    go_bool,
    go_duration,
    go_float32,
    go_int,
    go_int32,
    go_level,
    go_strings,
    go_vmodule,
)
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
        "Pods with this schedulerName are ours; may come several times.",
        repeatable=True,
        bare=True,
    ),
    _flag(_SCHEDULING, "scheduler-conf", str, "", "A volcano-scheduler.conf, read again when it changes."),
    _flag(
        _SCHEDULING,
        "disable-default-scheduler-config",
        go_bool,
        False,
        "Refuse to start without a file that is good.",
    ),
    _flag(_SCHEDULING, "schedule-period", go_duration, _seconds(1), "The pause between two sessions."),
    _flag(_SCHEDULING, "default-queue", str, "default", "The queue of groups that name none."),
    _flag(
        _SCHEDULING,
        "feature-gates",
        parse_volcano_gates,
        (),
        "Gate=true|false of Volcano. SchedulingGatesQueueAdmission=true removes the gate from pods whose queue has "
        "room for them.",
        repeatable=True,
        bare=True,
    ),
    _flag(_NODES, "node-selector", go_strings, (), "label:value of nodes to work on; any of several.", repeatable=True),
    _flag(_NODES, "percentage-nodes-to-find", go_int32, 0, "Of how many nodes a search is content; 0: all."),
    _flag(_NODES, "minimum-feasible-nodes", go_int32, 100, "But of so many at least."),
    _flag(_NODES, "minimum-percentage-nodes-to-find", go_int32, 5, "Accepted; it bounds what 0 chooses upstream."),
    _flag(
        _NODES,
        "ignored-provisioners",
        go_strings,
        (),
        "Provisioners whose volumes nodes need not offer, besides rancher.io/local-path, hostpath.csi.k8s.io and "
        "bayplan.dev/hostpath.",
        repeatable=True,
    ),
    _flag(
        _NODES, "scheduler-sharding-mode", str, "none", "none; hard: only nodes of our NodeShard; soft: those first."
    ),
    _flag(_NODES, "scheduler-sharding-name", str, "volcano", "Our NodeShard."),
    _flag(_CLUSTER, "master", str, "", "The API server's address, in place of the kubeconfig's."),
    _flag(_CLUSTER, "kubeconfig", str, "", "How to reach the API server."),
    _flag(_CLUSTER, "kube-api-qps", go_float32, 2000.0, "Requests a second.", displayed_default="2000"),
    _flag(_CLUSTER, "kube-api-burst", go_int, 2000, "And at once."),
    _flag(_SERVING, "enable-metrics", go_bool, False, "Serve /metrics on --listen-address."),
    _flag(_SERVING, "enable-pprof", go_bool, False, "Serve /debug/pprof/ there, too."),
    _flag(_SERVING, "listen-address", str, ":8080", "The address for both."),
    _flag(_SERVING, "enable-healthz", go_bool, False, "Serve /healthz, /livez and /readyz on --healthz-address."),
    _flag(_SERVING, "healthz-address", str, ":11251", "The address for these."),
    _flag(
        _SERVING,
        "cache-dumper",
        go_bool,
        True,
        "Write what is known to a file on SIGUSR1; SIGUSR2 tells the log anyway.",
    ),
    _flag(_SERVING, "cache-dump-dir", str, "/tmp", "Where SIGUSR1 writes its file."),
    _flag(_ELECTION, "leader-elect", go_bool, True, "Only one of several processes decides."),
    _flag(_ELECTION, "leader-elect-lease-duration", go_duration, _seconds(15), "How long a lease holds."),
    _flag(_ELECTION, "leader-elect-renew-deadline", go_duration, _seconds(10), "How long to try to renew it."),
    _flag(_ELECTION, "leader-elect-retry-period", go_duration, _seconds(2), "How often to try."),
    _flag(_ELECTION, "leader-elect-resource-lock", str, "leases", "The kind of the lock."),
    _flag(_ELECTION, "leader-elect-resource-name", str, "", "The lease.", displayed_default="the scheduler's name"),
    _flag(_ELECTION, "leader-elect-resource-namespace", str, LOCK_NAMESPACE, "Where it is."),
    _flag(_ELECTION, "lock-object-namespace", str, "", "The same, by its old name."),
    _flag(_LOGS, "v", go_level, 0, "How much is logged: 3 decisions, 4 objects, 5 steps.", short="v"),
    _flag(_LOGS, "vmodule", go_vmodule, "", "The same for single files: pattern=N, with commas between."),
    _flag(_LOGS, "logtostderr", go_bool, True, "Accepted; it always does."),
    _flag(_LOGS, "log-flush-frequency", go_duration, _seconds(5), "Accepted; every line is written at once."),
    _flag(IGNORED_SECTION, "resync-period", go_duration, _seconds(0), "What is watched needs no second look."),
    _flag(IGNORED_SECTION, "resource-sync-timeout", go_duration, _seconds(60), "Nobody decides on half a picture."),
    _flag(IGNORED_SECTION, "node-worker-threads", go_int, 20, "There are no threads."),
    _flag(IGNORED_SECTION, "gate-removal-worker-num", go_int, 5, "There are no threads."),
    _flag(IGNORED_SECTION, "priority-class", go_bool, True, "PriorityClasses always count."),
    _flag(IGNORED_SECTION, "csi-storage", go_bool, False, "Storage capacity is read where the server has it."),
    _flag(
        IGNORED_SECTION,
        "ca-cert-file",
        str,
        "",
        "--healthz-address and --listen-address are without TLS.",
    ),
    _flag(IGNORED_SECTION, "tls-cert-file", str, "", "Likewise; of --secure-port it is the certificate."),
    _flag(IGNORED_SECTION, "tls-private-key-file", str, "", "Likewise; and its key."),
)

VC_ELECTION_FIELDS = {
    "leader-elect": "leader_elect",
    "leader-elect-lease-duration": "lease_duration",
    "leader-elect-renew-deadline": "renew_deadline",
    "leader-elect-retry-period": "retry_period",
    "leader-elect-resource-lock": "resource_lock",
    "leader-elect-resource-namespace": "resource_namespace",
}
