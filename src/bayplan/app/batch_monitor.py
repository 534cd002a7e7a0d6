"""Health, metrics and views of a batch engine, for the servers of its process.

`why` and the page need authorization, so they are served only on the port with TLS, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable

from bayplan import __version__
from bayplan.app.page_source import PageSource
from bayplan.app.process_lifecycle import SchedulerProcess
from bayplan.batch.live.run_loop import BatchRunLoop
from bayplan.client import ConnectionConfig
from bayplan.client.http.transport import Observer
from bayplan.clock import LoopClock
from bayplan.config.feature_gates import RELEASE
from bayplan.config.model import LeaderElection
from bayplan.explain.batch_explainer import BatchExplainer
from bayplan.explain.engine_dispatch import NOT_LEADING_MESSAGE, BinderStatusReader, Explainer, explain_pod
from bayplan.server import NotLeader, ServerViews, election_check, handlers_check, shutdown_check
from bayplan.telemetry.access_metrics import AccessMetrics
from bayplan.telemetry.answers import Answer
from bayplan.telemetry.batch_metrics import BatchMetrics
from bayplan.telemetry.metrics import MetricsRegistry
from bayplan.telemetry.process_metrics import LeaderMetrics, ProcessMetrics, RequestMetrics, add_build_info


class BatchMonitor:
    def __init__(self, clock: LoopClock, *, registry: MetricsRegistry | None = None) -> None:
        self.registry = registry or MetricsRegistry()
        self.metrics = BatchMetrics(self.registry, clock.now)
        self._requests = RequestMetrics(self.registry)
        self._leader = LeaderMetrics(self.registry)
        self.started_at = ProcessMetrics(self.registry, started_at=clock.now().timestamp()).started_at
        add_build_info(self.registry, version=__version__, emulated=RELEASE)
        self.access = AccessMetrics(self.registry, clock.monotonic_s)
        self.registry.collect(self._gather)
        self._process: SchedulerProcess | None = None
        self._lease: LeaderElection | None = None
        self._explainers: tuple[Explainer, ...] = ()
        self._binder: BinderStatusReader | None = None
        self.page_source = PageSource(clock, self._why)

    def observer(self, target: ConnectionConfig) -> Observer:
        return self._requests.observer(target.url.netloc)

    def attach_engine(
        self, live: BatchRunLoop, lease: LeaderElection, binder: BinderStatusReader | None = None
    ) -> None:
        self._lease, self._explainers, self._binder = lease, (BatchExplainer(live),), binder
        self.page_source.attach_batch(live, self.metrics)

    def attach(self, process: SchedulerProcess) -> None:
        """Use this process from now on."""
        self._process = process
        self.page_source.attach_process(process)

    async def _why(self, namespace: str, name: str, now: bool) -> Answer | None:
        if self._process is None or not self._process.is_leading:
            raise NotLeader(NOT_LEADING_MESSAGE)
        return await explain_pod(self._explainers, namespace, name, now=now, binder=self._binder)

    def views(self, set_verbosity: Callable[[int], None] | None = None) -> ServerViews:
        return ServerViews(
            metrics=self.registry,
            healthz=[election_check("volcano", self._overdue_s)],
            readyz=[shutdown_check(self._stopping), handlers_check(self._synced)],
            started_at=self.started_at,
            set_verbosity=set_verbosity,
            why=self._why,
            page=self.page_source.viewers,
        )

    def _overdue_s(self) -> float:
        election = self._process.election if self._process is not None else None
        return election.overdue_s() if election is not None else 0.0

    def _stopping(self) -> bool:
        return self._process is not None and self._process.stopping

    def _synced(self) -> bool:
        return self._process is not None and self._process.informers.synced

    def _gather(self) -> None:
        if self._lease is not None and self._lease.leader_elect and self._process is not None:
            self._leader.set_leading(self._lease.resource_name, leads=self._process.is_leading)
