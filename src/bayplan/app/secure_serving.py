"""Metrics, health, configuration and flags of a scheduler process, and the HTTPS server that serves them.

The composition root starts it before the process connects to the cluster, so that probes are answered from the start.
Views read the process at each request and never wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import yaml

from bayplan import __version__
from bayplan.app.page_source import PageSource
from bayplan.app.process_lifecycle import SchedulerProcess
from bayplan.client import Client, ConnectionConfig, load_connection_config
from bayplan.client.http.transport import Observer as RequestObserver
from bayplan.clock import LoopClock
from bayplan.config.effective_configuration import effective_configuration
from bayplan.config.feature_gates import RELEASE
from bayplan.config.load import dump
from bayplan.config.model import Configuration
from bayplan.config.serving_flags import ServingFlags
from bayplan.explain.engine_dispatch import NOT_LEADING_MESSAGE, BinderStatusReader, Explainer, explain_pod
from bayplan.explain.live_pod_explainer import LivePodExplainer
from bayplan.objects.core import Pod
from bayplan.scheduler.live.run_loop import LiveScheduler
from bayplan.server import (
    AccessControl,
    Authenticator,
    Authorizer,
    Check,
    ClientAuthorityOptions,
    ClientAuthorityReloader,
    ComponentInfo,
    FrontProxy,
    NotLeader,
    SecureServingOptions,
    Server,
    ServerViews,
    TlsOptions,
    election_check,
    handlers_check,
    shutdown_check,
)
from bayplan.telemetry.access_metrics import AccessMetrics
from bayplan.telemetry.answers import Answer
from bayplan.telemetry.metrics import MetricsRegistry
from bayplan.telemetry.plugin_timings import PluginTimings
from bayplan.telemetry.process_metrics import (
    LeaderMetrics,
    ProcessMetrics,
    RequestMetrics,
    add_build_info,
    add_features,
)
from bayplan.telemetry.scheduler_metrics import SchedulerMetrics

log = logging.getLogger(__name__)

COMPONENT = "kube-scheduler"
_REVIEW_QPS, _REVIEW_BURST, _REVIEW_S = 200.0, 400, 10.0
_SYNCHRONOUS_OPERATIONS = ("Filter", "Score")  # these are synchronous, so none runs during a scrape


class ServableMonitor(Protocol):
    """The views and metrics that the server needs from a monitor."""

    access: AccessMetrics

    def observer(self, target: ConnectionConfig) -> RequestObserver: ...

    def views(self, set_verbosity: Callable[[int], None] | None = None) -> ServerViews: ...


class SchedulerMonitor:
    """The metrics and views of one process, before and while it runs."""

    def __init__(self, configuration: Configuration, flags: ServingFlags, clock: LoopClock) -> None:
        self._configuration = configuration
        self._flags = flags
        self._process: SchedulerProcess | None = None
        self._live: LiveScheduler | None = None
        self._explainers: tuple[Explainer, ...] = ()
        self._binder: BinderStatusReader | None = None
        self.registry = MetricsRegistry(disabled=flags.disabled_metrics)
        self.timings = PluginTimings()
        gates = [name for name, _, on in flags.features.all() if on]
        self.metrics = SchedulerMetrics(self.registry, self.timings, gates=gates)
        self._requests = RequestMetrics(self.registry)
        self.leader = LeaderMetrics(self.registry)
        self.access = AccessMetrics(self.registry, clock.monotonic_s)
        self.started_at = ProcessMetrics(self.registry, started_at=clock.now().timestamp()).started_at
        add_build_info(self.registry, version=__version__, emulated=RELEASE)
        add_features(self.registry, flags.features.all())
        self.registry.allow_labels(_allowed_labels(flags))
        self.registry.collect(self._gather)
        self.page_source = PageSource(clock, self._why)

    def observer(self, target: ConnectionConfig) -> RequestObserver:
        """Observer of a client's requests."""
        return self._requests.observer(target.url.netloc)

    def attach_engine(
        self, live: LiveScheduler, *more_explainers: Explainer, binder: BinderStatusReader | None = None
    ) -> None:
        """Set the pod engine. `more_explainers` explain pods of the other engine."""
        self._live = live
        self._explainers, self._binder = (LivePodExplainer(live), *more_explainers), binder
        self.page_source.attach_scheduler(live, self.metrics)

    def attach(self, process: SchedulerProcess) -> None:
        """Use this process from now on."""
        self._process = process
        self.page_source.attach_process(process)

    def views(self, set_verbosity: Callable[[int], None] | None = None) -> ServerViews:
        election = self._election_checks()
        return ServerViews(
            metrics=self.registry,
            healthz=election,
            readyz=[*election, shutdown_check(self._stopping), handlers_check(self._synced)],
            started_at=self.started_at,
            pods=self._pods,
            configuration=lambda: dump(effective_configuration(self._configuration)),
            flags=lambda: self._flags.flag_texts,
            about=ComponentInfo(
                component=COMPONENT,
                started=datetime.fromtimestamp(self.started_at, UTC),
                runtime=f"python{platform.python_version()}",
                version=RELEASE,
                emulated=self._flags.features.emulated_version,
            ),
            set_verbosity=set_verbosity if self._configuration.enable_profiling else None,
            why=self._why,
            page=self.page_source.viewers,
        )

    async def _why(self, namespace: str, name: str, now: bool) -> Answer | None:
        if self._process is None or not self._process.is_leading:
            raise NotLeader(NOT_LEADING_MESSAGE)
        return await explain_pod(self._explainers, namespace, name, now=now, binder=self._binder)

    def _election_checks(self) -> list[Check]:
        lease = self._configuration.leader_election
        return [election_check(lease.resource_name, self._overdue_s)] if lease.leader_elect else []

    def _overdue_s(self) -> float:
        election = self._process.election if self._process is not None else None
        return election.overdue_s() if election is not None else 0.0

    def _stopping(self) -> bool:
        return self._process is not None and self._process.stopping

    def _synced(self) -> bool:
        return self._process is not None and self._process.informers.synced

    def _pods(self) -> Sequence[Pod]:
        return self._process.pods() if self._process is not None else ()

    def _gather(self) -> None:
        """Update gauges at a scrape."""
        process = self._process
        lease = self._configuration.leader_election
        if lease.leader_elect:
            leads = process is not None and process.is_leading
            self.leader.set_leading(lease.resource_name, leads=leads)
        live = self._live
        if live is None:
            return
        self.metrics.pending(**live.queue.counts())
        cache = live.engine.cache
        self.metrics.cache_size(assumed_pods=cache.assumed_count, pods=cache.pod_count, nodes=cache.node_count)
        self.metrics.goroutine_gauge("binding").set(live.pods_in_binding)
        for operation in _SYNCHRONOUS_OPERATIONS:
            self.metrics.goroutine_gauge(operation).set(0)


def _allowed_labels(flags: ServingFlags) -> dict[str, list[str]]:
    """The allowed label values. The manifest file overrides the flag; an unreadable one is logged and ignored."""
    labels: dict[str, str] = dict(flags.allow_metric_labels)
    if flags.allow_metric_labels_manifest:
        try:
            read = yaml.safe_load(Path(flags.allow_metric_labels_manifest).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as fault:
            log.error("cannot read the file of --allow-metric-labels-manifest, which is ignored: %s", fault)
            read = None
        if isinstance(read, Mapping):
            labels |= {str(key): str(value) for key, value in read.items()}
    return {key: value.split(",") for key, value in labels.items()}


# Server.


@asynccontextmanager
async def serve_secure(
    monitor: ServableMonitor,
    target: ConnectionConfig,
    flags: ServingFlags,
    *,
    clock: LoopClock,
    chance: random.Random,
    set_verbosity: Callable[[int], None] | None = None,
) -> AsyncIterator[Server | None]:
    """The HTTPS server according to the flags; None if its port is 0. It serves probes before the process connects.

    TokenReviews and SubjectAccessReviews use the kubeconfigs that flags name, by default the scheduler's own. Their
    clients have rate limits of their own, so a scrape waits neither for bindings nor for a lease.
    """
    if not flags.secure_port:
        yield None
        return
    async with AsyncExitStack() as stack:

        async def reviewer(kubeconfig: str) -> Client:
            connection = load_connection_config(Path(kubeconfig), env=os.environ) if kubeconfig else target
            client = Client(
                connection,
                clock=clock,
                chance=chance,
                qps=_REVIEW_QPS,
                burst=_REVIEW_BURST,
                timeout_s=_REVIEW_S,
                observer=monitor.observer(connection),
            )
            return await stack.enter_async_context(client)

        tokens = await reviewer(flags.authentication_kubeconfig)
        same = flags.authorization_kubeconfig == flags.authentication_kubeconfig
        access = tokens if same else await reviewer(flags.authorization_kubeconfig)
        users = AccessControl(*_authenticator_and_authorizer(flags, tokens, access, clock), monitor.access)
        server = Server(monitor.views(set_verbosity), _secure_serving(flags), users, clock=clock)
        await server.start()
        stack.push_async_callback(server.close)
        reloader = ClientAuthorityReloader(_client_ca_options(flags), tokens, clock, server.trust)
        await reloader.refresh()
        reload_task = asyncio.create_task(reloader.run(), name="authorities of clients")
        stack.callback(reload_task.cancel)
        yield server


def _secure_serving(flags: ServingFlags) -> SecureServingOptions:
    tls = TlsOptions(
        cert_file=flags.tls_cert_file,
        key_file=flags.tls_private_key_file,
        cert_dir=flags.cert_dir,
        min_version=flags.tls_min_version,
        cipher_suites=flags.tls_cipher_suites,
    )
    return SecureServingOptions(
        address=flags.bind_address, port=flags.secure_port, tls=tls, share_port=flags.permit_port_sharing
    )


def _authenticator_and_authorizer(
    flags: ServingFlags, tokens: Client, access: Client, clock: LoopClock
) -> tuple[Authenticator, Authorizer]:
    authenticator = Authenticator(tokens, clock, cache_s=flags.authentication_token_webhook_cache_ttl.seconds)
    authorizer = Authorizer(
        access,
        clock,
        always_allowed=flags.authorization_always_allow_paths,
        allowed_cache_s=flags.authorization_webhook_cache_authorized_ttl.seconds,
        denied_cache_s=flags.authorization_webhook_cache_unauthorized_ttl.seconds,
    )
    return authenticator, authorizer


def _client_ca_options(flags: ServingFlags) -> ClientAuthorityOptions:
    front_proxy = FrontProxy(
        allowed_names=flags.requestheader_allowed_names,
        user_headers=flags.requestheader_username_headers,
        uid_headers=flags.requestheader_uid_headers,
        group_headers=flags.requestheader_group_headers,
        extra_prefixes=flags.requestheader_extra_headers_prefix,
    )
    return ClientAuthorityOptions(
        client_ca_file=flags.client_ca_file,
        front_proxy_ca_file=flags.requestheader_client_ca_file,
        front_proxy=front_proxy,
        skip_lookup=flags.authentication_skip_lookup,
        tolerate_lookup_failure=flags.authentication_tolerate_lookup_failure,
    )
