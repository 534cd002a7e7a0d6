"""Connection to the API server: address, authorities to trust and credentials.

Each command calls this once at start, before it opens a `Client`. The result is a value, `ConnectionConfig`. Secrets in
it are wrapped. Credential files are named, not read, so that the client can read them again when they rotate. Cost: a
few file reads.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

from bayplan.client.auth.kubeconfig import (
    ExecConfig,
    Kubeconfig,
    KubeconfigCluster,
    KubeconfigUser,
    kubeconfig_paths,
    load_merged,
    read_kubeconfig,
)
from bayplan.client.auth.secret import NO_SECRET, Secret
from bayplan.errors import KubeconfigError

log = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NOT_IN_AN_ADDRESS = re.compile(r"[\s\"<>\\^`{|}]")
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"
_INTERACTIVE = ("", "Never", "IfAvailable", "Always")


class InProcessEndpoint(Protocol):
    """API server in this process."""

    def connect(self, client: asyncio.Protocol) -> None:
        """Connect the server to a client's protocol: call `connection_made` and answer what the protocol writes."""
        ...

    async def request(self, method: str, path: str, lines: bytes, body: bytes) -> tuple[int, bytes, bytes]:
        """Handle one request without a connection. Returns status, header lines (each after a line break) and body."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """Connection of one user to one API server. The counterpart of client-go's `rest.Config`."""

    server: str
    """`https://host:port`, with a path when the API is below one."""
    ca_file: str = ""
    ca_data: bytes = b""
    verify: bool = True
    server_name: str = ""
    """Name to expect in the server's certificate instead of the host's."""
    proxy: str = ""
    cert_file: str = ""
    cert_data: bytes = b""
    key_file: str = ""
    key_data: Secret = NO_SECRET
    token: Secret = NO_SECRET
    token_file: str = ""
    username: str = ""
    password: Secret = NO_SECRET
    exec: ExecConfig | None = None
    exec_config: Any = None
    """Configuration that the kubeconfig passes to the exec plugin with the cluster."""
    impersonate: tuple[tuple[str, str], ...] = ()
    """Impersonation headers: the server then acts for another user."""
    namespace: str = "default"
    origin: str = field(default="", compare=False)
    """File and entry that this was read from, for error messages."""
    in_process: InProcessEndpoint | None = None
    """API server in this process, which is called without a socket; `server` is then only its name."""

    @property
    def url(self) -> SplitResult:
        return urlsplit(self.server)

    @property
    def secure(self) -> bool:
        return self.url.scheme == "https"

    def authority(self) -> bytes:
        """PEM of the authorities to trust; empty for the authorities of the system."""
        return self.ca_data or (_content(self.ca_file, "the certificate authority") if self.ca_file else b"")


def load_connection_config(
    kubeconfig: Path | None = None,
    *,
    env: Mapping[str, str],
    context: str = "",
    server: str = "",
    service_account: Path = SERVICE_ACCOUNT,
) -> ConnectionConfig:
    """Find the API server: in the given file, else in the files of `KUBECONFIG` or `~/.kube/config`, else from the
    pod's service account. `server` (`--master`) replaces the address.

    As in client-go's clientcmd, a server without TLS gets no credentials, and its exec plugin is not run."""
    config = read_kubeconfig(kubeconfig) if kubeconfig is not None else load_merged(kubeconfig_paths(env))
    if not config.empty or kubeconfig is not None:
        target = config_from_context(config, context=context, path=kubeconfig)
    elif (pod_config := in_cluster_config(env, service_account)) is not None:
        target = pod_config
    elif server:
        target = ConnectionConfig(server=server, origin="--master")
    else:
        raise KubeconfigError(
            "no API server is configured: no kubeconfig was given, KUBECONFIG and ~/.kube/config hold none, and this "
            "process does not run in a pod; name a kubeconfig"
        )
    return _drop_exposed_credentials(_normalize_server_url(replace(target, server=server) if server else target))


def in_cluster_config(env: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> ConnectionConfig | None:
    """Connection of the pod's service account, or None outside of a pod."""
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT")
    token, authority, namespace = folder / "token", folder / "ca.crt", folder / "namespace"
    if not host or not port or not token.exists():
        return None
    address = f"[{host}]" if ":" in host else host
    return ConnectionConfig(
        server=f"https://{address}:{port}",
        token_file=str(token),
        ca_file=str(authority) if authority.exists() else "",
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "default",
        origin=str(folder),
    )


def config_from_context(config: Kubeconfig, *, context: str = "", path: Path | None = None) -> ConnectionConfig:
    where = f"the kubeconfig {path}" if path else "the kubeconfig"
    name = context or config.current_context
    if not name:
        if not config.contexts:
            raise KubeconfigError(f"{where} has no current-context and no contexts; is it a kubeconfig?")
        raise KubeconfigError(f"{where} has no current-context; set one of: {_names(config.contexts)}")
    if name not in config.contexts:
        raise KubeconfigError(f"{where} has no context {name!r}; it has: {_names(config.contexts)}")
    chosen = config.contexts[name]
    source = config.origin("contexts", name)
    if chosen.cluster not in config.clusters:
        raise KubeconfigError(
            f"{source}: there is no cluster {chosen.cluster!r}; name one of: {_names(config.clusters)}"
        )
    if chosen.user and chosen.user not in config.users:
        raise KubeconfigError(f"{source}: there is no user {chosen.user!r}; name one of: {_names(config.users)}")
    target = _cluster(config.clusters[chosen.cluster], config.origin("clusters", chosen.cluster))
    target = replace(target, namespace=chosen.namespace or "default")
    if not chosen.user:
        return target
    return _user(target, config.users[chosen.user], config.origin("users", chosen.user))


def _cluster(cluster: KubeconfigCluster, source: str) -> ConnectionConfig:
    if not cluster.server:
        raise KubeconfigError(f"{source} has no server; write its address, such as https://10.0.0.1:6443")
    if cluster.insecure_skip_tls_verify and (cluster.certificate_authority or cluster.certificate_authority_data):
        raise KubeconfigError(f"{source} has insecure-skip-tls-verify and a certificate authority; keep one of them")
    _check_readable(cluster.certificate_authority, f"{source}.certificate-authority")
    extensions = {each.get("name"): each.get("extension") for each in cluster.extensions}
    return ConnectionConfig(
        server=cluster.server,
        ca_file="" if cluster.certificate_authority_data else cluster.certificate_authority,
        ca_data=_bytes(cluster.certificate_authority_data, f"{source}.certificate-authority-data"),
        verify=not cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        proxy=cluster.proxy_url,
        exec_config=extensions.get(_EXEC_EXTENSION),
        origin=source,
    )


def _user(target: ConnectionConfig, user: KubeconfigUser, source: str) -> ConnectionConfig:
    if user.auth_provider is not None and not (user.token or user.exec):
        raise KubeconfigError(f"{source}.auth-provider is no longer used by Kubernetes; write an exec plugin instead")
    has_cert = bool(user.client_certificate or user.client_certificate_data)
    if has_cert and not (user.client_key or user.client_key_data):
        raise KubeconfigError(f"{source} has a client certificate without client-key or client-key-data; add its key")
    _check_readable(user.client_certificate, f"{source}.client-certificate")
    _check_readable(user.client_key, f"{source}.client-key")
    _check_readable("" if user.token else user.token_file, f"{source}.tokenFile")
    key_data = _bytes(user.client_key_data.reveal(), f"{source}.client-key-data").decode("latin-1")
    return replace(
        target,
        cert_file="" if user.client_certificate_data else user.client_certificate,
        cert_data=_bytes(user.client_certificate_data, f"{source}.client-certificate-data"),
        key_file="" if user.client_key_data else user.client_key,
        key_data=Secret(key_data),
        token=user.token,
        token_file=user.token_file,
        username=user.username,
        password=user.password,
        exec=_exec(user.exec, source),
        impersonate=_impersonation(user, source),
    )


def _exec(program: ExecConfig | None, source: str) -> ExecConfig | None:
    if program is None:
        return None
    if not program.command:
        raise KubeconfigError(f"{source}.exec has no command; write the program to run")
    if program.api_version not in EXEC_VERSIONS:
        raise KubeconfigError(
            f"{source}.exec.apiVersion is {program.api_version!r}; write {' or '.join(EXEC_VERSIONS)}"
        )
    if program.interactive_mode not in _INTERACTIVE:
        raise KubeconfigError(f"{source}.exec.interactiveMode must be one of {', '.join(_INTERACTIVE[1:])}")
    if program.interactive_mode == "Always":
        raise KubeconfigError(
            f"{source}.exec.interactiveMode is Always, but no user can answer a prompt here; write IfAvailable"
        )
    return program


def _impersonation(user: KubeconfigUser, source: str) -> tuple[tuple[str, str], ...]:
    if not user.as_user:
        if user.as_uid or user.as_groups or user.as_user_extra:
            raise KubeconfigError(f"{source} has as-uid, as-groups or as-user-extra without as; add the user to act as")
        return ()
    headers = [("Impersonate-User", user.as_user)]
    headers += [("Impersonate-Uid", user.as_uid)] if user.as_uid else []
    headers += [("Impersonate-Group", group) for group in user.as_groups]
    for key, values in user.as_user_extra.items():
        headers += [(f"Impersonate-Extra-{_header_name(key)}", value) for value in values]
    if any("\r" in value or "\n" in value for _, value in headers):
        raise KubeconfigError(f"{source} has a line break in a value of its impersonation; remove it")
    return tuple(headers)


def _header_name(key: str) -> str:
    """Quote a key for a header name: characters that HTTP tokens do not allow are percent-encoded."""
    allowed = "!#$&'*+-.^_`|~"
    return "".join(
        c if c.isascii() and (c.isalnum() or c in allowed) else "".join(f"%{b:02X}" for b in c.encode()) for c in key
    )


def _drop_exposed_credentials(target: ConnectionConfig) -> ConnectionConfig:
    """Drop the credentials that would cross the network unencrypted. Impersonation headers are not secret and stay."""
    has_credentials = any((target.token, target.token_file, target.username, target.password, target.exec))
    if target.secure or not (has_credentials or target.cert_file or target.cert_data):
        return target
    log.warning(
        "%s: credentials are not sent to %s: the connection is not encrypted; use https", target.origin, target.server
    )
    return replace(
        target,
        cert_file="",
        cert_data=b"",
        key_file="",
        key_data=NO_SECRET,
        token=NO_SECRET,
        token_file="",
        username="",
        password=NO_SECRET,
        exec=None,
    )


def _normalize_server_url(target: ConnectionConfig) -> ConnectionConfig:
    """Normalize the server's address. As upstream, a bare host:port means https when the cluster has TLS settings,
    else http."""
    has_tls = bool(target.ca_file or target.ca_data or not target.verify)
    scheme = "https" if has_tls else "http"
    server = target.server if "://" in target.server else f"{scheme}://{target.server}"
    try:
        url = urlsplit(server)
        port = url.port
    except ValueError:
        url, port = None, None
    known = url is not None and url.scheme in ("http", "https") and bool(url.hostname)
    if url is None or not known or _NOT_IN_AN_ADDRESS.search(url.netloc):
        raise KubeconfigError(f"{target.origin}: the server is not an address; write one such as https://10.0.0.1:6443")
    host = f"[{url.hostname}]" if ":" in str(url.hostname) else url.hostname
    plain = f"{url.scheme}://{host}:{port or (443 if url.scheme == 'https' else 80)}{url.path.rstrip('/')}"
    return replace(target, server=plain)


def _check_readable(path: str, source: str) -> None:
    if path:
        _content(path, source)


def _content(path: str, source: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as fault:
        raise KubeconfigError(f"{source}: cannot read {path}: {fault.strerror}; name a file that can be read") from None


def _bytes(text: str, source: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise KubeconfigError(f"{source} is not base64; encode the file's content without changing it") from None


def _names(entries: Mapping[str, object]) -> str:
    return ", ".join(sorted(entries)) or "nothing"
