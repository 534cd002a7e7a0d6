"""Simulated cluster in virtual time, driven by the batch engine.

Every tenant of a trace has a queue, all with the same weight. Pods of a gang start when its minimum is reached; other
pods are gangs of one. Sessions run as long as they bind or evict pods; then nothing changes before the next arrival or
departure. Only whole GPUs are allocated, because Volcano's tiers do not support a share of one.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.batch.apply_outcome import OutcomeApplier
from bayplan.batch.cluster_state import DEFAULT_SCHEDULER
from bayplan.batch.engine import BatchEngine
from bayplan.clock import ManualClock
from bayplan.errors import UsageError
from bayplan.objects.core import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodSpec,
)
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.volcano.constants import GROUP_NAME
from bayplan.objects.volcano.types import (
    DEFAULT_QUEUE,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    Queue,
    QueueSpec,
    QueueStatus,
)
from bayplan.plugins.gpu.gpu_requests import GPU_COUNT, GPU_MODEL
from bayplan.sim.traces.trace_files import TracePod
from bayplan.sim.virtual_time.pod_engine_simulation import PodCallback
from bayplan.sim.virtual_time.trace_objects import NAMESPACE, pod_template
from bayplan.snapshot import NodeColumns

_MAX_SESSIONS = 16
_PERIOD_S = 1.0
_PENDING = "Pending"
_OPEN = "Open"


class BatchEngineSimulation:
    """Implements `SimulatedCluster`. `on_placed` is called for each bound pod, `on_evicted` for each evicted pod."""

    def __init__(
        self, engine: BatchEngine, clock: ManualClock, *, on_placed: PodCallback, on_evicted: PodCallback
    ) -> None:
        self.engine = engine
        self.clock = clock
        self._cluster = OutcomeApplier(engine)
        self._on_placed = on_placed
        self._on_evicted = on_evicted
        self._waiting: set[str] = set()  # uids
        self._queues: set[str] = set()
        self._members: dict[str, int] = {}  # number of present pods by gang
        self._snapshot = engine.cache.snapshot()
        self._has_more_work = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def next_wakeup_s(self) -> float | None:
        """If sessions were still changing something, the next one runs after a period; else there is no wakeup."""
        return self.clock.monotonic_s() + _PERIOD_S if self._has_more_work and self._waiting else None

    def advance_to(self, at_s: float) -> None:
        self.clock.advance(max(0.0, at_s - self.clock.monotonic_s()))

    def nodes(self) -> NodeColumns:
        self.engine.cache.refresh(self._snapshot)
        return self._snapshot.nodes

    def make_pod(self, pod: TracePod, uid: str) -> Pod:
        if pod.gpu_request.shares:
            raise UsageError(
                f"pod {pod.name} requests {pod.gpu_request.milli} thousandths of a GPU, and the batch engine "
                "allocates whole GPUs only; use --engine pod"
            )
        template = pod_template(pod, DEFAULT_SCHEDULER)
        annotations = {**template.metadata.annotations, GROUP_NAME: pod.gang or uid}
        metadata = replace(template.metadata, name=uid, uid=uid, namespace=NAMESPACE, annotations=annotations)
        return replace(template, metadata=metadata, spec=_with_gpu_requests(template.spec, pod))

    def add_pod(self, pod_object: Pod, pod: TracePod) -> None:
        queue, group = pod.tenant or DEFAULT_QUEUE, pod_object.metadata.annotations[GROUP_NAME]
        if queue not in self._queues:
            self._queues.add(queue)
            spec, status = QueueSpec(weight=1, reclaimable=True), QueueStatus(state=_OPEN)
            self._cluster.add([Queue(metadata=ObjectMeta(name=queue, uid=f"queue-{queue}"), spec=spec, status=status)])
        if group not in self._members:
            metadata = ObjectMeta(
                name=group, namespace=NAMESPACE, uid=f"group-{group}", creation_timestamp=self.clock.now()
            )
            group_spec = PodGroupSpec(min_member=max(1, pod.gang_size), queue=queue)
            self._cluster.add([PodGroup(metadata=metadata, spec=group_spec, status=PodGroupStatus(phase=_PENDING))])
        self._members[group] = self._members.get(group, 0) + 1
        self._waiting.add(pod_object.uid)
        self._cluster.add([pod_object])

    def remove_pod(self, pod: Pod) -> None:
        """Remove a finished pod; the last pod of a gang removes its group as well."""
        self._cluster.remove([self._cluster.pods.get(pod.key, pod)])
        self._forget_member(pod)

    def _forget_member(self, pod: Pod) -> None:
        group = pod.metadata.annotations[GROUP_NAME]
        self._members[group] -= 1
        if not self._members[group]:
            del self._members[group]
            pod_group = self.engine.cache.catalog.table(PodGroup)[f"{NAMESPACE}/{group}"]
            self._cluster.remove([pod_group])

    def schedule(self) -> None:
        """Run sessions as long as they bind or evict pods, up to a limit: gangs may evict each other forever."""
        self._has_more_work = True
        for _ in range(_MAX_SESSIONS):
            if not self._waiting or not self._session():
                self._has_more_work = False
                return

    def _session(self) -> bool:
        outcome = self.engine.run_session()
        bound = [self._cluster.pods[key] for key in outcome.binds]
        evicted_pods = [self._cluster.pods[key] for key in outcome.evicts]
        self._cluster.apply(outcome)
        for pod in bound:
            self._waiting.discard(pod.uid)
            self._on_placed(self._cluster.pods[pod.key])
        for pod in evicted_pods:
            self._forget_member(pod)
            self._on_evicted(pod)
        return bool(bound or evicted_pods)


def _with_gpu_requests(spec: PodSpec, pod: TracePod) -> PodSpec:
    """The pod spec with GPUs as a resource and accepted models as node affinity."""
    if not pod.gpu_request.count:
        return spec
    (container,) = spec.containers
    requests = {**container.resources.requests, GPU_COUNT: pod.gpu_request.count}
    container = replace(container, resources=replace(container.resources, requests=requests))
    affinity = None
    if pod.gpu_request.accepted:
        models = NodeSelectorRequirement(key=GPU_MODEL, operator="In", values=tuple(sorted(pod.gpu_request.accepted)))
        required = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(models,)),))
        affinity = Affinity(node_affinity=NodeAffinity(required=required))
    return replace(spec, containers=(container,), affinity=affinity)
