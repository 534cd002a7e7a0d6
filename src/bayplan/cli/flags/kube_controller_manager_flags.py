"""Flags and controller names of kube-controller-manager that are accepted, as in kubeadm's manifests.

None of these flags has an effect in Bayplan, and a warning says so. Upstream documents their meaning; one line each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from bayplan.cli.flags.go_command import IGNORED_SECTION, Flag
from bayplan.codec.go_duration import GoDuration
from bayplan.codec.go_flags import go_bool, go_duration, go_int
from bayplan.controllers import CONTROLLER_NAMES

log = logging.getLogger(__name__)

_INSECURE_SERVING_NOTE = "Health and metrics are served on --listen-address, without authentication."
_NO_TLS_NOTE = "Bayplan serves nothing over TLS here."
_NO_SIGNING_NOTE = "Bayplan has no signing controller."
_NO_ADDRESSES_NOTE = "Bayplan assigns no node or service addresses."
_LEASE_NOTE = "Bayplan uses upstream's default."


def _ignored_flags(text: str, *names: str) -> list[Flag]:
    return [Flag(name, str, "", text, IGNORED_SECTION) for name in names]


def _ignored_bool_flags(text: str, *names: str) -> list[Flag]:
    return [Flag(name, go_bool, False, text, IGNORED_SECTION) for name in names]


_CONCURRENT = (
    *("cron-job", "daemonset", "deployment", "device-taint-eviction", "endpoint", "ephemeralvolume", "gc"),
    *("horizontal-pod-autoscaler", "job", "namespace", "rc", "replicaset", "resource-claim", "resource-quota"),
    *("service", "service-endpoint", "serviceaccount-token", "statefulset", "ttl-after-finished"),
    "validating-admission-policy-status",
)

KUBE_CONTROLLER_FLAGS = (
    *_ignored_flags(
        _INSECURE_SERVING_NOTE, "bind-address", "secure-port", "authentication-kubeconfig", "authorization-kubeconfig"
    ),
    *_ignored_flags(
        _INSECURE_SERVING_NOTE, "authorization-always-allow-paths", "client-ca-file", "requestheader-client-ca-file"
    ),
    *_ignored_flags(_INSECURE_SERVING_NOTE, "requestheader-allowed-names", "requestheader-extra-headers-prefix"),
    *_ignored_flags(_INSECURE_SERVING_NOTE, "requestheader-group-headers", "requestheader-username-headers"),
    *_ignored_flags(_NO_TLS_NOTE, "cert-dir", "tls-cipher-suites", "tls-min-version"),
    *_ignored_flags(
        _NO_SIGNING_NOTE, "cluster-signing-cert-file", "cluster-signing-key-file", "cluster-signing-duration"
    ),
    *_ignored_flags("Bayplan creates no service account tokens.", "service-account-private-key-file"),
    *_ignored_flags("Namespaces get the CA that the API server publishes.", "root-ca-file"),
    *_ignored_flags(_NO_ADDRESSES_NOTE, "cluster-cidr", "service-cluster-ip-range", "node-cidr-mask-size"),
    *_ignored_bool_flags(_NO_ADDRESSES_NOTE, "allocate-node-cidrs", "configure-cloud-routes"),
    *_ignored_flags("Bayplan has no cloud provider.", "cloud-provider", "cloud-config", "cluster-name"),
    *_ignored_flags("Bayplan has no FlexVolume plugins.", "flex-volume-plugin-dir"),
    *_ignored_flags("Terminated pods are kept.", "terminated-pod-gc-threshold"),
    *_ignored_bool_flags("All controllers use one user.", "use-service-account-credentials"),
    *_ignored_bool_flags("Bayplan has no Go profiler.", "profiling", "contention-profiling"),
    *_ignored_flags("The format is text.", "logging-format"),
    Flag("node-monitor-grace-period", go_duration, GoDuration.of_seconds(50), "Fixed at 50 s.", IGNORED_SECTION),
    Flag(
        "node-monitor-period",
        go_duration,
        GoDuration.of_seconds(5),
        "Nodes are checked when their grace period ends.",
        IGNORED_SECTION,
    ),
    Flag("node-startup-grace-period", go_duration, GoDuration.of_seconds(60), "Fixed at 60 s.", IGNORED_SECTION),
    Flag("leader-elect-lease-duration", go_duration, GoDuration.of_seconds(15), _LEASE_NOTE, IGNORED_SECTION),
    Flag("leader-elect-renew-deadline", go_duration, GoDuration.of_seconds(10), _LEASE_NOTE, IGNORED_SECTION),
    Flag("leader-elect-retry-period", go_duration, GoDuration.of_seconds(2), _LEASE_NOTE, IGNORED_SECTION),
    Flag("leader-elect-resource-lock", str, "leases", "The lock is a Lease.", IGNORED_SECTION),
    *(
        Flag(f"concurrent-{name}-syncs", go_int, None, "Bayplan has no worker threads.", IGNORED_SECTION)
        for name in _CONCURRENT
    ),
)

_LEGACY_NAMES = {
    "clusterrole-aggregation": "clusterrole-aggregation-controller",
    "cronjob": "cronjob-controller",
    "daemonset": "daemonset-controller",
    "deployment": "deployment-controller",
    "disruption": "disruption-controller",
    "endpointslice": "endpointslice-controller",
    "garbagecollector": "garbage-collector-controller",
    "job": "job-controller",
    "namespace": "namespace-controller",
    "nodelifecycle": "node-lifecycle-controller",
    "persistentvolume-binder": "persistentvolume-binder-controller",
    "podgc": "pod-garbage-collector-controller",
    "pv-protection": "persistentvolume-protection-controller",
    "pvc-protection": "persistentvolumeclaim-protection-controller",
    "replicaset": "replicaset-controller",
    "resource-claim-controller": "resourceclaim-controller",
    "resourcequota": "resourcequota-controller",
    "root-ca-cert-publisher": "root-ca-certificate-publisher-controller",
    "serviceaccount": "serviceaccount-controller",
    "statefulset": "statefulset-controller",
    "ttl-after-finished": "ttl-after-finished-controller",
}
"""kube-controller-manager's aliases."""

_VOLCANO_NAMES = frozenset({"cronjob", "job"})
"""Short names that Volcano's controllers have too. They mean Volcano's, unless names of Kubernetes' are listed."""

_UNSUPPORTED_CONTROLLERS = frozenset(
    [
        "attachdetach",
        "bootstrap-signer-controller",
        "bootstrapsigner",
        "certificatesigningrequest-approving-controller",
        "certificatesigningrequest-cleaner-controller",
        "certificatesigningrequest-signing-controller",
        "cloud-node-lifecycle",
        "cloud-node-lifecycle-controller",
        "csrapproving",
        "csrcleaner",
        "csrsigning",
        "device-taint-eviction-controller",
        "endpoint",
        "endpoints-controller",
        "endpointslice-mirroring-controller",
        "endpointslicemirroring",
        "ephemeral-volume",
        "ephemeral-volume-controller",
        "horizontal-pod-autoscaler-controller",
        "horizontalpodautoscaling",
        "kube-apiserver-serving-clustertrustbundle-publisher-controller",
        "legacy-service-account-token-cleaner",
        "legacy-serviceaccount-token-cleaner-controller",
        "node-ipam-controller",
        "node-route-controller",
        "nodeipam",
        "persistentvolume-attach-detach-controller",
        "persistentvolume-expander",
        "persistentvolume-expander-controller",
        "podcertificaterequest-cleaner-controller",
        "replicationcontroller",
        "replicationcontroller-controller",
        "route",
        "selinux-warning-controller",
        "service",
        "service-cidr-controller",
        "service-lb-controller",
        "serviceaccount-token",
        "serviceaccount-token-controller",
        "storage-version-gc",
        "storage-version-migrator-controller",
        "storageversion-garbage-collector-controller",
        "storageversion-migrator-controller",
        "token-cleaner-controller",
        "tokencleaner",
        "ttl",
        "ttl-controller",
        "validatingadmissionpolicy-status-controller",
        "volumeattributesclass-protection-controller",
    ]
)
"""Controllers of kube-controller-manager that Bayplan does not have."""


def expand_controller_names(patterns: Iterable[str]) -> list[str]:
    """The words of `--controllers` with current names for old ones, and without unsupported controllers."""
    words = [each.strip() for each in patterns if each.strip()]
    bare = {_without_sign(word) for word in words}
    among_kubernetes = not bare.isdisjoint(
        {*_LEGACY_NAMES, *_UNSUPPORTED_CONTROLLERS, *_kubernetes_controllers()} - _VOLCANO_NAMES
    )
    found = []
    for word in words:
        name = _without_sign(word)
        if name in _UNSUPPORTED_CONTROLLERS:
            if not word.startswith("-"):
                log.warning("--controllers: Bayplan has no %s; it is ignored", name)
        elif name in _LEGACY_NAMES and (among_kubernetes or name not in _VOLCANO_NAMES):
            found.append(f"{'-' if word.startswith('-') else ''}{_LEGACY_NAMES[name]}")
        else:
            found.append(word)
    return found


def _kubernetes_controllers() -> set[str]:
    return {name for name in CONTROLLER_NAMES if not name.startswith("volcano-")} - {
        "job-controller",
        "cronjob-controller",
    }


def _without_sign(word: str) -> str:
    return word.removeprefix("-").removeprefix("+")
