"""kube-scheduler's flags: names, types and defaults. Upstream documents their meaning; one line each here."""

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
_DEPRECATED, _ELECTION, _GATES = (
    "Deprecated: ignored with --config, except the last",
    "Leader election",
    "Feature gates",
)
_METRICS, _LOGS = "Metrics", "Logs"

_DEFAULTS = ServingFlags()


def _seconds(count: int) -> GoDuration:
    return GoDuration.of_seconds(count)


def _flag(section: str, name: str, read: Reader, default: Any, text: str, **more: Any) -> Flag:
    return Flag(name, read, default, text, section, **more)


def _serving_flag(section: str, name: str, read: Reader, text: str) -> Flag:
    """A flag that is passed on unchanged; its default is that of the value object."""
    many = read in (go_strings, go_map)
    return Flag(name, read, getattr(_DEFAULTS, name.replace("-", "_")), text, section, repeatable=many)


KUBE_SCHEDULER_FLAGS = (
    _flag(_MISC, "config", str, "", "A KubeSchedulerConfiguration. Default: the built-in one."),
    _flag(_MISC, "master", str, "", "The API server's address, in place of the kubeconfig's."),
    _flag(_MISC, "write-config-to", str, "", "Write the effective configuration to this file, and exit."),
    _serving_flag(_SERVING, "bind-address", go_ip, "The address to serve HTTPS on."),
    _serving_flag(_SERVING, "secure-port", go_int, "The port to serve HTTPS on; 0: none."),
    _serving_flag(_SERVING, "cert-dir", str, "The folder of the self-signed certificate. Default: memory."),
    _serving_flag(_SERVING, "tls-cert-file", str, "The serving certificate, in PEM."),
    _serving_flag(_SERVING, "tls-private-key-file", str, "The key of the serving certificate."),
    _serving_flag(_SERVING, "tls-min-version", str, "VersionTLS12 or VersionTLS13."),
    _serving_flag(_SERVING, "tls-cipher-suites", go_strings, "The cipher suites, by Go's names."),
    _serving_flag(_SERVING, "tls-sni-cert-key", go_strings, "Certificates for other host names; accepted, not used."),
    _flag(_SERVING, "tls-curve-preferences", go_strings, (), "Accepted, not used.", repeatable=True),
    _serving_flag(_SERVING, "permit-address-sharing", go_bool, "Bind with SO_REUSEADDR."),
    _serving_flag(_SERVING, "permit-port-sharing", go_bool, "Bind with SO_REUSEPORT."),
    _flag(_SERVING, "disable-http2-serving", go_bool, False, "Accepted; HTTP/2 is never served."),
    _flag(_SERVING, "http2-max-streams-per-connection", go_int, 0, "Accepted; HTTP/2 is never served."),
    _serving_flag(_AUTHENTICATION, "authentication-kubeconfig", str, "The kubeconfig for TokenReviews."),
    _serving_flag(_AUTHENTICATION, "authentication-skip-lookup", go_bool, "Do not read client CAs from the cluster."),
    _serving_flag(
        _AUTHENTICATION, "authentication-token-webhook-cache-ttl", go_duration, "Cache time of TokenReviews."
    ),
    _serving_flag(
        _AUTHENTICATION,
        "authentication-tolerate-lookup-failure",
        go_bool,
        "Serve without the client CAs of the cluster.",
    ),
    _serving_flag(_AUTHENTICATION, "client-ca-file", str, "The CA of client certificates."),
    _serving_flag(_AUTHENTICATION, "requestheader-allowed-names", go_strings, "Front proxies by common name."),
    _serving_flag(_AUTHENTICATION, "requestheader-client-ca-file", str, "The CA of front proxy certificates."),
    _serving_flag(_AUTHENTICATION, "requestheader-extra-headers-prefix", go_strings, "Headers with more about a user."),
    _serving_flag(_AUTHENTICATION, "requestheader-group-headers", go_strings, "Headers with the groups of a user."),
    _serving_flag(_AUTHENTICATION, "requestheader-uid-headers", go_strings, "Headers with the uid of a user."),
    _serving_flag(_AUTHENTICATION, "requestheader-username-headers", go_strings, "Headers with the name of a user."),
    _serving_flag(_AUTHORIZATION, "authorization-always-allow-paths", go_strings, "Paths without authorization."),
    _serving_flag(_AUTHORIZATION, "authorization-kubeconfig", str, "The kubeconfig for SubjectAccessReviews."),
    _serving_flag(
        _AUTHORIZATION, "authorization-webhook-cache-authorized-ttl", go_duration, "Cache time of allowed requests."
    ),
    _serving_flag(
        _AUTHORIZATION, "authorization-webhook-cache-unauthorized-ttl", go_duration, "Cache time of denied requests."
    ),
    _flag(
        _DEPRECATED,
        "contention-profiling",
        go_bool,
        None,
        "Accepted; Bayplan has no Go profiler.",
        displayed_default="true",
    ),
    _flag(_DEPRECATED, "profiling", go_bool, None, "Accepted; Bayplan has no Go profiler.", displayed_default="true"),
    _flag(_DEPRECATED, "kubeconfig", str, None, "The kubeconfig of the API server."),
    _flag(
        _DEPRECATED,
        "kube-api-content-type",
        str,
        None,
        "Accepted; the format is JSON.",
        displayed_default="application/vnd.kubernetes.protobuf",
    ),
    _flag(_DEPRECATED, "kube-api-qps", go_float32, None, "Requests a second.", displayed_default="50"),
    _flag(_DEPRECATED, "kube-api-burst", go_int32, None, "Burst of requests.", displayed_default="100"),
    _flag(
        _DEPRECATED,
        "pod-max-in-unschedulable-pods-duration",
        go_duration,
        _seconds(300),
        "Maximum time of a pod in unschedulablePods.",
    ),
    _flag(
        _ELECTION, "leader-elect", go_bool, None, "Only one of several processes schedules.", displayed_default="true"
    ),
    _flag(_ELECTION, "leader-elect-lease-duration", go_duration, None, "The lease duration.", displayed_default="15s"),
    _flag(
        _ELECTION,
        "leader-elect-renew-deadline",
        go_duration,
        None,
        "The time limit of a renewal.",
        displayed_default="10s",
    ),
    _flag(_ELECTION, "leader-elect-retry-period", go_duration, None, "Time between attempts.", displayed_default="2s"),
    _flag(
        _ELECTION, "leader-elect-resource-lock", str, None, "The resource type of the lock.", displayed_default="leases"
    ),
    _flag(
        _ELECTION, "leader-elect-resource-name", str, None, "The name of the lease.", displayed_default="kube-scheduler"
    ),
    _flag(_ELECTION, "leader-elect-resource-namespace", str, None, "Its namespace.", displayed_default="kube-system"),
    _flag(_GATES, "feature-gates", go_strings, (), "Gate=true|false, separated by commas.", repeatable=True, bare=True),
    _flag(_GATES, "emulated-version", go_strings, (), "kube=1.36.", repeatable=True),
    _flag(_GATES, "min-compatibility-version", go_strings, (), "kube=1.36.", repeatable=True),
    _serving_flag(_METRICS, "allow-metric-labels", go_map, "Allowed values of metric labels."),
    _serving_flag(_METRICS, "allow-metric-labels-manifest", str, "A file with allowed values of metric labels."),
    _serving_flag(_METRICS, "disabled-metrics", go_strings, "Metrics to disable, by their full names."),
    _serving_flag(_METRICS, "show-hidden-metrics-for-version", str, "The previous minor version, or empty."),
    _flag(_LOGS, "v", go_level, 0, "Log verbosity.", short="v"),
    _flag(_LOGS, "vmodule", go_vmodule, "", "Log verbosity of single files: pattern=N, separated by commas."),
    _flag(_LOGS, "logging-format", str, "text", "text or json."),
    _flag(_LOGS, "log-flush-frequency", go_duration, _seconds(5), "Accepted; every line is written at once."),
    _flag(_LOGS, "log-json-split-stream", go_bool, False, "The same as --log-text-split-stream, for JSON."),
    _flag(_LOGS, "log-json-info-buffer-size", str, "0", "Accepted; log lines are not buffered."),
    _flag(_LOGS, "log-text-split-stream", go_bool, False, "Write lines below error level to the standard output."),
    _flag(_LOGS, "log-text-info-buffer-size", str, "0", "Accepted; log lines are not buffered."),
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
"""Flags that override the configuration file, and their fields."""

CONNECTION_FIELDS = {
    "kubeconfig": "kubeconfig",
    "kube-api-content-type": "content_type",
    "kube-api-qps": "qps",
    "kube-api-burst": "burst",
}
DEBUGGING_FIELDS = {"profiling": "enable_profiling", "contention-profiling": "enable_contention_profiling"}
"""Flags that count only without a configuration file."""
