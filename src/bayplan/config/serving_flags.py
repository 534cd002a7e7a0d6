"""Flags of the server for probes, metrics and the page, and of the process.

Created once at start. `validate` returns what kube-scheduler would refuse, with its messages. Files and certificates
are checked where they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from bayplan.codec.go_duration import GoDuration
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.feature_gates import FeatureGates

_TEN_SECONDS = GoDuration.of_seconds(10)
_FIVE_MINUTES = GoDuration.of_seconds(300)
_BLANK_CHECKED_FIELDS = (
    "requestheader_username_headers",
    "requestheader_group_headers",
    "requestheader_extra_headers_prefix",
    "requestheader_allowed_names",
    "requestheader_uid_headers",
)
_TLS_VERSIONS = ("", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13")
PREVIOUS_MINOR = "1.35"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFlags:
    """Flags of kube-scheduler by name, with its defaults."""

    bind_address: str = "0.0.0.0"
    secure_port: int = 10259
    cert_dir: str = ""
    tls_cert_file: str = ""
    tls_private_key_file: str = ""
    tls_min_version: str = ""
    tls_cipher_suites: tuple[str, ...] = ()
    tls_sni_cert_key: tuple[str, ...] = ()
    permit_address_sharing: bool = False
    permit_port_sharing: bool = False

    authentication_kubeconfig: str = ""
    authentication_skip_lookup: bool = False
    authentication_token_webhook_cache_ttl: GoDuration = _TEN_SECONDS
    authentication_tolerate_lookup_failure: bool = True
    client_ca_file: str = ""
    requestheader_allowed_names: tuple[str, ...] = ()
    requestheader_client_ca_file: str = ""
    requestheader_extra_headers_prefix: tuple[str, ...] = ("x-remote-extra-",)
    requestheader_group_headers: tuple[str, ...] = ("x-remote-group",)
    requestheader_uid_headers: tuple[str, ...] = ()
    requestheader_username_headers: tuple[str, ...] = ("x-remote-user",)

    authorization_always_allow_paths: tuple[str, ...] = ("/healthz", "/readyz", "/livez")
    authorization_kubeconfig: str = ""
    authorization_webhook_cache_authorized_ttl: GoDuration = _TEN_SECONDS
    authorization_webhook_cache_unauthorized_ttl: GoDuration = _TEN_SECONDS

    show_hidden_metrics_for_version: str = ""
    disabled_metrics: tuple[str, ...] = ()
    allow_metric_labels: tuple[tuple[str, str], ...] = ()
    allow_metric_labels_manifest: str = ""

    features: FeatureGates = field(default_factory=FeatureGates)
    flag_texts: Mapping[str, str] = field(default_factory=dict)
    """Every flag with its value as text, for `/flagz`."""

    @classmethod
    def from_flags(cls, values: Mapping[str, Any], *, features: FeatureGates, texts: Mapping[str, str]) -> ServingFlags:
        values_by_field = {name: values[flag] for name in _NAMES if (flag := name.replace("_", "-")) in values}
        return cls(**values_by_field, features=features, flag_texts=texts)

    def validate(self) -> list[str]:
        """The errors that kube-scheduler reports."""
        return [*self._bad_port(), *self._bad_headers(), *self._bad_tls(), *self._bad_metrics()]

    def _bad_port(self) -> Iterable[str]:
        if self.secure_port > 65535:
            yield (
                f"--secure-port {self.secure_port} must be between 1 and 65535, inclusive. "
                "It cannot be turned off with 0"
            )
        elif self.secure_port < 0:
            yield (
                f"--secure-port {self.secure_port} must be between 0 and 65535, inclusive. "
                "0 for turning off secure port"
            )

    def _bad_headers(self) -> Iterable[str]:
        for name in _BLANK_CHECKED_FIELDS:
            if any(not value.strip() for value in getattr(self, name)):
                yield f'empty value in "{name.replace("_", "-")}"'

    def _bad_tls(self) -> Iterable[str]:
        if self.tls_min_version not in _TLS_VERSIONS:
            yield f'unknown tls version "{self.tls_min_version}"'
        if bool(self.tls_cert_file) != bool(self.tls_private_key_file):
            yield "--tls-cert-file and --tls-private-key-file belong together; give both or none"

    def _bad_metrics(self) -> Iterable[str]:
        version = self.show_hidden_metrics_for_version
        if version not in ("", PREVIOUS_MINOR):
            yield (
                f'metrics.showHiddenMetricsForVersion: Invalid value: "{version}": must be omitted or have the value '
                f"'{PREVIOUS_MINOR}'; only the previous minor version is allowed"
            )


_NAMES = tuple(each.name for each in fields(ServingFlags) if each.name not in ("features", "flag_texts"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Options of a scheduler process from the command line, besides its configuration."""

    settings: BayplanSettings = field(default_factory=BayplanSettings)
    serving: ServingFlags = field(default_factory=ServingFlags)
    max_in_unschedulable_pods: GoDuration = _FIVE_MINUTES
    """The longest time that a pod stays in the unschedulable pods."""
