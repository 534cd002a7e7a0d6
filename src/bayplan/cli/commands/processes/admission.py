"""`bayplan admission`: Volcano's webhooks over HTTPS, and their registration with an API server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click

from bayplan import __version__
from bayplan.admission.gpu_sharing import DEFAULT_SCHEDULER as SHARING
from bayplan.admission.queue_validation import MAX_DEPTH, QueueValidationRules
from bayplan.admission.webhooks import DEFAULT_WEBHOOKS, WEBHOOKS, AdmissionSettings, AdmissionWebhook, webhooks_for
from bayplan.app.webhook_manager import (
    DEFAULT_SERVICE_NAME,
    WebhookManagerOptions,
    ensure_certificate,
    parse_resource_groups,
    register_webhooks,
    update_ca_bundles,
    webhook_manager_process,
    webhook_manifests,
)
from bayplan.cli.connection import open_client
from bayplan.cli.engine_setup import read_text
from bayplan.cli.flags.connection_options import resolve_server, server_options
from bayplan.cli.flags.go_command import IGNORED_CHART_WORDS, GoGroup
from bayplan.cli.flags.vc_manager_flags import WEBHOOK_MANAGER_FLAGS, start_volcano_logs, warn_about_ignored_flags
from bayplan.cli.output.printers import yaml_text
from bayplan.cli.signals import wait_until_stopped
from bayplan.client import ConnectionConfig
from bayplan.config.volcano_feature_gates import is_queue_admission_enabled
from bayplan.errors import UsageError
from bayplan.server.http.serving_tls import TlsOptions

_ALL_WEBHOOK_PATHS = ",".join(door.path for door in WEBHOOKS)


def _parse_webhook_paths(text: str) -> tuple[AdmissionWebhook, ...]:
    try:
        return webhooks_for(each.strip() for each in text.split(",") if each.strip())
    except KeyError as fault:
        raise UsageError(
            f"--enabled-admission: unknown webhook {fault.args[0]}; use some of {_ALL_WEBHOOK_PATHS}"
        ) from None


_gpu_scheduler_option = click.option(
    "--gpu-scheduler-name",
    multiple=True,
    default=(SHARING,),
    show_default=True,
    help="Schedulers whose pods may share GPUs, for /gpus/mutate and /gpus/validate.",
)


@click.group(
    "admission",
    cls=GoGroup,
    flags=WEBHOOK_MANAGER_FLAGS,
    ignored=IGNORED_CHART_WORDS,
    options_section="Options",
    invoke_without_command=True,
)
@click.option("--listen-address", default="", help="Default: all addresses.")
@click.option("--port", type=click.IntRange(0, 65535), default=8443, show_default=True, help="0: a free port.")
@click.option("--tls-cert-file", default="", help="Default: a self-signed certificate in --cert-dir.")
@click.option("--tls-private-key-file", default="", help="The key of --tls-cert-file.")
@click.option("--cert-dir", type=click.Path(path_type=Path), default=Path("bayplan-admission"), show_default=True)
@click.option(
    "--enabled-admission", default=",".join(DEFAULT_WEBHOOKS), show_default=True, help="The webhooks to serve."
)
@click.option(
    "--scheduler-name",
    multiple=True,
    default=("volcano",),
    show_default=True,
    help="Schedulers whose pods are checked.",
)
@_gpu_scheduler_option
@click.option("--admission-conf", type=click.Path(path_type=Path), help="A file with resourceGroups.")
@click.option("--max-queue-depth", type=int, default=MAX_DEPTH, show_default=True, help="Maximum depth of queues.")
@click.option("--webhook-url", default="", help="Register the webhooks with this URL, such as https://10.0.0.5:8443.")
@click.option(
    "--webhook-service", default="", metavar="NAMESPACE/NAME", help="Register the webhooks with this service."
)
@click.option("--webhook-service-port", type=int, default=443, show_default=True, help="The port of the service.")
@click.option("--webhook-namespace", default="", help="Namespace of the service, for the self-signed certificate.")
@click.option("--webhook-service-name", default="", help="Name of the service, for the self-signed certificate.")
@click.option(
    "--ca-cert-file",
    type=click.Path(path_type=Path),
    help="CA of --tls-cert-file. It is written into existing configurations, such as those of Volcano's chart.",
)
@click.option("--kube-api-qps", "qps", type=float, default=50.0, show_default=True, help="Requests a second.")
@click.option("--kube-api-burst", "burst", type=int, default=100, show_default=True, help="Burst of requests.")
@server_options
@click.version_option(__version__, prog_name="bayplan")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    webhook_url: str,
    webhook_service: str,
    webhook_service_port: int,
    ca_cert_file: Path | None,
    kubeconfig: Path | None,
    context: str,
    master: str,
    **given: Any,
) -> None:
    """Serve Volcano's admission webhooks: defaulting and validation, with Volcano's paths and messages.

    The API server must be configured to call them. With --webhook-url or --webhook-service this command does it.
    Otherwise use `bayplan admission manifests`, or Volcano's chart, whose flags are all accepted. A cluster of `bayplan
    cluster up` has these webhooks built in: there the manifests are sufficient, and this command is not needed.
    --enabled-admission can also enable the webhooks for pods that share GPUs.

    \b
    Examples:
      bayplan admission --webhook-url https://127.0.0.1:8443
      bayplan admission --webhook-service volcano-system/volcano-admission-service
      bayplan admission --tls-cert-file tls.crt --tls-private-key-file tls.key
      bayplan admission --enabled-admission /gpus/mutate,/gpus/validate --webhook-url https://127.0.0.1:8443
      bayplan admission manifests --service volcano-system/volcano-admission-service --ca-file ca.crt
    """
    if ctx.invoked_subcommand is not None:
        return
    address = _WebhookAddress.from_flags(webhook_url, webhook_service, webhook_service_port)
    assert isinstance(ctx.command, GoGroup)
    flags = ctx.command.values(given)
    start_volcano_logs(ctx, flags)
    warn_about_ignored_flags(ctx, given)
    options = _manager_options(given, flags, address)
    target = resolve_server(kubeconfig, context, master)
    authority, update = ca_cert_file or Path(options.tls.cert_file), ca_cert_file is not None
    asyncio.run(wait_until_stopped(_serve(target, options, address, authority, update_existing=update)))
    click.echo("stopped")


def _manager_options(
    given: Mapping[str, Any], flags: Mapping[str, Any], address: _WebhookAddress
) -> WebhookManagerOptions:
    """`given`: click's options; `flags`: those of Volcano's webhook manager."""
    certificate, key = given["tls_cert_file"], given["tls_private_key_file"]
    if not certificate:
        host = (urlsplit(address.url).hostname if address.url else given["listen_address"]) or "localhost"
        service = (
            address.service or given["webhook_service_name"] or DEFAULT_SERVICE_NAME,
            address.namespace or given["webhook_namespace"] or "volcano-system",
        )
        names = [host, f"{'.'.join(service)}.svc", "localhost", "127.0.0.1"]
        certificate, key = (str(each) for each in ensure_certificate(given["cert_dir"], names))
    resource_groups = given["admission_conf"]
    settings = AdmissionSettings(
        schedulers=given["scheduler_name"],
        queue_rules=QueueValidationRules(
            max_depth=given["max_queue_depth"],
            check_allocated_pods=flags["enable-queue-allocated-pods-check"],
            protect_root=flags["enable-root-queue-protection"],
        ),
        resource_groups=parse_resource_groups(read_text(resource_groups)) if resource_groups is not None else (),
        allocation_gates=is_queue_admission_enabled(flags["feature-gates"]),
        sharing_schedulers=given["gpu_scheduler_name"],
    )
    return WebhookManagerOptions(
        address=given["listen_address"],
        port=given["port"],
        tls=TlsOptions(cert_file=certificate, key_file=key),
        paths=[door.path for door in _parse_webhook_paths(given["enabled_admission"])],
        settings=settings,
        health_address=flags["healthz-address"] if flags["enable-healthz"] else "",
        qps=given["qps"],
        burst=given["burst"],
    )


class _WebhookAddress(NamedTuple):
    """The address that the API server uses, if this command registers the webhooks."""

    url: str
    namespace: str
    service: str
    port: int

    @classmethod
    def from_flags(cls, url: str, service: str, port: int) -> _WebhookAddress:
        if url and service:
            raise UsageError("--webhook-url and --webhook-service exclude each other; give one of them")
        return cls(_parse_webhook_url(url, "--webhook-url"), *_parse_service(service, "--webhook-service"), port)

    def display_url(self, port: int) -> str:
        """The address for messages, with the port if the URL has none: it is known only now."""
        if self.service:
            return f"service {self.namespace}/{self.service}"
        parts = urlsplit(self.url)
        return self.url if parts.port is not None else parts._replace(netloc=f"{parts.netloc}:{port}").geturl()


def _parse_webhook_url(text: str, flag: str) -> str:
    """An https URL for the API server; empty for an empty text."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme == "https" and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        usable = False
    if text and not usable:
        raise UsageError(f"{flag}: {text!r} is invalid; give https://HOST:PORT")
    return text.rstrip("/")


def _parse_service(text: str, flag: str) -> tuple[str, str]:
    """Namespace and name of a service; empty for an empty text."""
    namespace, slash, name = text.partition("/")
    if text and not (slash and namespace and name):
        raise UsageError(f"{flag}: {text!r} is invalid; give NAMESPACE/NAME")
    return namespace, name


async def _serve(
    target: ConnectionConfig,
    options: WebhookManagerOptions,
    address: _WebhookAddress,
    authority: Path,
    *,
    update_existing: bool,
) -> None:
    """`update_existing`: write the CA into webhook configurations that another tool creates."""
    async with webhook_manager_process(target, options) as server:
        click.echo(f"webhooks are served on port {server.port}: {', '.join(options.paths)}")
        if address.url or address.service or update_existing:
            await _write_registrations(target, options, address, authority, server.port)
        await asyncio.Event().wait()


async def _write_registrations(
    target: ConnectionConfig, options: WebhookManagerOptions, address: _WebhookAddress, authority: Path, port: int
) -> None:
    """Register the webhooks if `address` has a URL or a service; else write the CA into the configurations of the
    chart."""
    async with open_client(target) as client:
        if not (address.url or address.service):
            await update_ca_bundles(client, options.webhooks(), read_text(authority).encode())
            return
        bodies = webhook_manifests(
            options.webhooks(),
            url="" if address.service else address.display_url(port),
            service=address.service,
            namespace=address.namespace,
            port=address.port,
            authority=read_text(authority).encode(),
            sharing=options.settings.sharing_schedulers,
        )
        await register_webhooks(client, bodies)
    click.echo(f"the API server now calls {address.display_url(port)}")


@command.command("manifests")
@click.option("--url", default="", help="URL of the webhooks, for an API server without access to services.")
@click.option("--service", default="", metavar="NAMESPACE/NAME", help="The service of the webhooks.")
@click.option("--service-port", type=int, default=443, show_default=True, help="The port of the service.")
@click.option("--ca-file", type=click.Path(path_type=Path), help="The CA of the webhooks' certificate.")
@click.option(
    "--enabled-admission", default=",".join(DEFAULT_WEBHOOKS), show_default=True, help="The webhooks to register."
)
@_gpu_scheduler_option
def manifests_command(
    url: str,
    service: str,
    service_port: int,
    ca_file: Path | None,
    enabled_admission: str,
    gpu_scheduler_name: tuple[str, ...],
) -> None:
    """Print the webhook configurations that make an API server call the webhooks.

    \b
    Examples:
      bayplan admission manifests --url https://10.0.0.5:8443 --ca-file webhooks.crt | kubectl apply -f -
      bayplan admission manifests --service volcano-system/volcano-admission-service --ca-file ca.crt
    """
    if bool(url) == bool(service):
        raise UsageError("give either --url https://HOST:PORT or --service NAMESPACE/NAME")
    url = _parse_webhook_url(url, "--url")
    namespace, name = _parse_service(service, "--service")
    authority = read_text(ca_file).encode() if ca_file is not None else b""
    bodies = webhook_manifests(
        _parse_webhook_paths(enabled_admission),
        url=url,
        service=name,
        namespace=namespace,
        port=service_port,
        authority=authority,
        sharing=gpu_scheduler_name,
    )
    with suppress(BrokenPipeError):
        click.echo("---\n".join(yaml_text(body) for body in bodies), nl=False)
