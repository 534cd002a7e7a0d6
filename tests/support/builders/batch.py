"""Pod groups, queues and open sessions for tests of the batch engine's plugins.

`with open_session(Overcommit, pods=[...], objects=[make_group("job")]) as session:` gives a session in which the plugin
has registered its functions; the test then calls them through the session, as actions do.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from bayplan.batch.config.scheduler_conf import BatchConfiguration, PluginOption
from bayplan.batch.engine import BatchEngine
from bayplan.batch.model.tasks import GROUP_NAME, Task
from bayplan.batch.registry import ActionSet, BatchPluginSet
from bayplan.batch.session.session import Session
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Node, Pod, PodSchedulingGate, PodSpec, PodStatus
from bayplan.objects.meta import Condition, KubeObject, ObjectMeta, ResourceList
from bayplan.objects.volcano.types import PodGroup, PodGroupSpec, PodGroupStatus, Queue, QueueSpec, QueueStatus
from bayplan.testing.builders import make_container

NOW = datetime(2024, 6, 1, 12, 0, tzinfo=UTC)
CREATED = datetime(2024, 1, 1, tzinfo=UTC)


def make_queue(name: str = "q", **spec: Any) -> Queue:
    return Queue(metadata=ObjectMeta(name=name), spec=QueueSpec(weight=1, **spec), status=QueueStatus(state="Open"))


def make_group(
    name: str = "job",
    *,
    namespace: str = "default",
    phase: str = "Pending",
    created: datetime = CREATED,
    annotations: Mapping[str, str] | None = None,
    min_resources: ResourceList | None = None,
    **spec: Any,
) -> PodGroup:
    meta = ObjectMeta(
        name=name,
        namespace=namespace,
        uid=f"pg-{name}",
        creation_timestamp=created,
        annotations=dict(annotations or {}),
    )
    return PodGroup(
        metadata=meta,
        spec=PodGroupSpec(**{"queue": "q", "min_member": 1, "min_resources": min_resources, **spec}),
        status=PodGroupStatus(phase=phase),
    )


def make_member(
    name: str,
    group: str = "job",
    *,
    node: str = "",
    requests: ResourceList | None = None,
    namespace: str = "default",
    phase: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    conditions: Sequence[Condition] = (),
    gates: Sequence[str] = (),
) -> Pod:
    """A pod of a group: running if it has a node, else pending."""
    meta = ObjectMeta(
        name=name,
        namespace=namespace,
        uid=f"pod-{name}",
        labels=dict(labels or {}),
        annotations={GROUP_NAME: group, **(annotations or {})} if group else dict(annotations or {}),
    )
    spec = PodSpec(
        scheduler_name="volcano",
        node_name=node,
        containers=(make_container(requests={"cpu": "1"} if requests is None else requests),),
        scheduling_gates=tuple(PodSchedulingGate(name=each) for each in gates),
    )
    status = PodStatus(phase=phase or ("Running" if node else "Pending"), conditions=tuple(conditions))
    return Pod(metadata=meta, spec=spec, status=status)


def make_engine(
    *plugins: type[Any],
    arguments: Mapping[str, Any] | None = None,
    nodes: Iterable[Node] = (),
    pods: Iterable[Pod] = (),
    objects: Iterable[KubeObject] = (),
    now: datetime = NOW,
) -> BatchEngine:
    """An engine with these plugins in one tier, all flags on; `arguments` are passed to each."""
    cache = Cache()
    for node in nodes:
        cache.add_node(node)
    for item in (make_queue(), *objects):
        cache.upsert(item)
    tier = tuple(PluginOption(each.name, arguments=arguments or {}).with_default_flags() for each in plugins)
    engine = BatchEngine(
        cache,
        BatchConfiguration(tiers=(tier,)),
        plugins=BatchPluginSet(plugins),
        actions=ActionSet(),
        framework_plugins=Registry.of(),
        clock=ManualClock(now),
        chance=random.Random(0),
    )
    for pod in pods:
        if pod.spec.node_name:
            cache.add_pod(pod)
        engine.handle_update(pod)
    return engine


@contextmanager
def open_session(*plugins: type[Any], **world: Any) -> Iterator[Session]:
    """An open session of `make_engine`; an exception of a plugin in OnSessionOpen fails the test."""
    with make_engine(*plugins, **world).session() as session:
        broken = [fault for fault in session.faults if "on_session_open" in fault]
        assert not broken, broken
        yield session


def tasks_of(session: Session, *names: str) -> list[Task]:
    """Tasks by the names of their pods."""
    found = {task.name: task for job in session.jobs.values() for task in job.tasks.values()}
    return [found[name] for name in names]


def task_names(tasks: Iterable[Task]) -> list[str]:
    return [task.name for task in tasks]


def pod_group_messages(session: Session) -> list[str]:
    """Messages of the pod group conditions, as `group: text`."""
    return [f"{group.partition('/')[2]}: {text}" for group, _, _, text in session.events]
