"""kube-scheduler's flags: names, kinds, defaults. What each means, upstream documents; a line each here."""

from __future__ import annotations

from typing import Any

from bayplan.cli.flags.go_command import Flag, Reader
from bayplan.codec.go_duration import GoDuration
from bayplan.codec.go_flags import (
    go_bool,
    go_duration,
    go_float32,
    go_int,
    go_int32,
    go_ip,
    go_level,
    go_map,
    go_strings,
    go_vmodule,
)
from bayplan.config.serving_flags import ServingFlags

_MISC, _SERVING, _AUTHENTICATION, _AUTHORIZATION = "Misc", "Secure serving", "Authentication", "Authorization"
_DEPRECATED, _ELECTION, _GATES = "Deprecated: ignored with --config, save the last", "Leader election", "Feature gates"
_METRICS, _LOGS = "Metrics", "Logs"

_DEFAULTS = ServingFlags()


def _seconds(count: int) -> GoDuration:
    return GoDuration.of_seconds(count)


def _flag(section: str, name: str, read: Reader, default: Any, text: str, **more: Any) -> Flag:
    return Flag(name, read, default, text, section, **more)


def _serving_flag(section: str, name: str, read: Reader, text: str) -> Flag:
    """A flag that is handed on as it is; the value object has its default."""
    many = read in (go_strings, go_map)
    return Flag(name, read, getattr(_DEFAULTS, name.replace("-", "_")), text, section, repeatable=many)


KUBE_SCHEDULER_FLAGS = (
    _flag(_MISC, "config", str, "", "A KubeSchedulerConfiguration; the default one without."),
    _flag(_MISC, "master", str, "", "The API server's address, in place of the kubeconfig's."),
    _flag(_MISC, "write-config-to", str, "", "Write the configuration in force to this file, and end."),
    _serving_flag(_SERVING, "bind-address", go_ip, "The address to serve HTTPS on."),
    _serving_flag(_SERVING, "secure-port", go_int, "The port to serve HTTPS on; 0: none."),
    _serving_flag(_SERVING, "cert-dir", str, "Where a certificate of our own is kept; in memory without."),
    _serving_flag(_SERVING, "tls-cert-file", str, "The certificate to serve with, in PEM."),
    _serving_flag(_SERVING, "tls-private-key-file", str, "Its key."),
    _serving_flag(_SERVING, "tls-min-version", str, "VersionTLS12 or VersionTLS13."),
    _serving_flag(_SERVING, "tls-cipher-suites", go_strings, "The suites to offer, by Go's names."),
    _serving_flag(_SERVING, "tls-sni-cert-key", go_strings, "Further pairs for other host names; accepted, not used."),
    _flag(_SERVING, "tls-curve-preferences", go_strings, (), "Accepted, not used.", repeatable=True),
    _serving_flag(_SERVING, "permit-address-sharing", go_bool, "Bind with SO_REUSEADDR."),
    _serving_flag(_SERVING, "permit-port-sharing", go_bool, "Bind with SO_REUSEPORT."),
    _flag(_SERVING, "disable-http2-serving", go_bool, False, "Accepted; HTTP/2 is never served."),
    _flag(_SERVING, "http2-max-streams-per-connection", go_int, 0, "Accepted; HTTP/2 is never served."),
    _serving_flag(_AUTHENTICATION, "authentication-kubeconfig", str, "With whose rights tokens are reviewed."),
    _serving_flag(_AUTHENTICATION, "authentication-skip-lookup", go_bool, "Look up nothing in the cluster."),
    _serving_flag(_AUTHENTICATION, "authentication-token-webhook-cache-ttl", go_duration, "How long a review holds."),
    _serving_flag(
        _AUTHENTICATION, "authentication-tolerate-lookup-failure", go_bool, "Serve without what was not found."
    ),
    _serving_flag(_AUTHENTICATION, "client-ca-file", str, "Whose client certificates are believed."),
    _serving_flag(_AUTHENTICATION, "requestheader-allowed-names", go_strings, "Front proxies by common name."),
    _serving_flag(_AUTHENTICATION, "requestheader-client-ca-file", str, "Who signs certificates of front proxies."),
    _serving_flag(_AUTHENTICATION, "requestheader-extra-headers-prefix", go_strings, "Headers with more about a user."),
    _serving_flag(_AUTHENTICATION, "requestheader-group-headers", go_strings, "Headers with the groups of a user."),
    _serving_flag(_AUTHENTICATION, "requestheader-uid-headers", go_strings, "Headers with the uid of a user."),
    _serving_flag(_AUTHENTICATION, "requestheader-username-headers", go_strings, "Headers with the name of a user."),
    _serving_flag(_AUTHORIZATION, "authorization-always-allow-paths", go_strings, "Paths that are open to all."),
    _serving_flag(_AUTHORIZATION, "authorization-kubeconfig", str, "With whose rights access is reviewed."),
    _serving_flag(_AUTHORIZATION, "authorization-webhook-cache-authorized-ttl", go_duration, "How long a yes holds."),
    _serving_flag(_AUTHORIZATION, "authorization-webhook-cache-unauthorized-ttl", go_duration, "How long a no holds."),
    _flag(
        _DEPRECATED,
        "contention-profiling",
        go_bool,
        None,
        "Accepted; there is no Go to profile.",
        displayed_default="true",
    ),
    _flag(_DEPRECATED, "profiling", go_bool, None, "Accepted; there is no Go to profile.", displayed_default="true"),
    _flag(_DEPRECATED, "kubeconfig", str, None, "How to reach the API server."),
    _flag(
        _DEPRECATED,
        "kube-api-content-type",
        str,
        None,
        "Accepted; JSON is spoken.",
        displayed_default="application/vnd.kubernetes.protobuf",
    ),
    _flag(_DEPRECATED, "kube-api-qps", go_float32, None, "Requests a second.", displayed_default="50"),
    _flag(_DEPRECATED, "kube-api-burst", go_int32, None, "And at once.", displayed_default="100"),
    _flag(
        _DEPRECATED,
        "pod-max-in-unschedulable-pods-duration",
        go_duration,
        _seconds(300),
        "How long a pod is parked at most.",
    ),
    _flag(_ELECTION, "leader-elect", go_bool, None, "Only one of several processes decides.", displayed_default="true"),
    _flag(
        _ELECTION, "leader-elect-lease-duration", go_duration, None, "How long a lease holds.", displayed_default="15s"
    ),
    _flag(
        _ELECTION,
        "leader-elect-renew-deadline",
        go_duration,
        None,
        "How long to try to renew it.",
        displayed_default="10s",
    ),
    _flag(_ELECTION, "leader-elect-retry-period", go_duration, None, "How often to try.", displayed_default="2s"),
    _flag(_ELECTION, "leader-elect-resource-lock", str, None, "The kind of the lock.", displayed_default="leases"),
    _flag(_ELECTION, "leader-elect-resource-name", str, None, "The lease.", displayed_default="kube-scheduler"),
    _flag(_ELECTION, "leader-elect-resource-namespace", str, None, "Where it is.", displayed_default="kube-system"),
    _flag(_GATES, "feature-gates", go_strings, (), "Gate=true|false, with commas between.", repeatable=True, bare=True),
    _flag(_GATES, "emulated-version", go_strings, (), "kube=1.36.", repeatable=True),
    _flag(_GATES, "min-compatibility-version", go_strings, (), "kube=1.36.", repeatable=True),
    _serving_flag(_METRICS, "allow-metric-labels", go_map, "Values that labels may have."),
    _serving_flag(_METRICS, "allow-metric-labels-manifest", str, "The same in a file."),
    _serving_flag(_METRICS, "disabled-metrics", go_strings, "Metrics to leave out, by their full names."),
    _serving_flag(_METRICS, "show-hidden-metrics-for-version", str, "The previous minor version, or nothing."),
    _flag(_LOGS, "v", go_level, 0, "How much is logged.", short="v"),
    _flag(_LOGS, "vmodule", go_vmodule, "", "The same for single files: pattern=N, with commas between."),
    _flag(_LOGS, "logging-format", str, "text", "text or json."),
    _flag(_LOGS, "log-flush-frequency", go_duration, _seconds(5), "Accepted; every line is written at once."),
    _flag(_LOGS, "log-json-split-stream", go_bool, False, "The same as --log-text-split-stream, for JSON."),
    _flag(_LOGS, "log-json-info-buffer-size", str, "0", "Accepted; nothing is held back."),
    _flag(_LOGS, "log-text-split-stream", go_bool, False, "What is no error goes to the standard output."),
    _flag(_LOGS, "log-text-info-buffer-size", str, "0", "Accepted; nothing is held back."),
)

ELECTION_FIELDS = {
    "leader-elect": "leader_elect",
    "leader-elect-lease-duration": "lease_duration",
    "leader-elect-renew-deadline": "renew_deadline",
    "leader-elect-retry-period": "retry_period",
    "leader-elect-resource-lock": "resource_lock",
    "leader-elect-resource-name": "resource_name",
    "leader-elect-resource-namespace": "resource_namespace",
}
"""Flags that win over the configuration file, and the fields they stand for."""

CONNECTION_FIELDS = {
    "kubeconfig": "kubeconfig",
    "kube-api-content-type": "content_type",
    "kube-api-qps": "qps",
    "kube-api-burst": "burst",
}
DEBUGGING_FIELDS = {"profiling": "enable_profiling", "contention-profiling": "enable_contention_profiling"}
"""Flags that count without a configuration file only."""
