"""What an API server would have filled in before a scheduler sees the object.

Objects from files have not passed one: they lack uids, namespaces and priorities. Whoever reads files asks for these
to be filled in; objects from an API server are never touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec.structs import replace

from bayplan.errors import ObjectError
from bayplan.objects.core import DEFAULT_SCHEDULER_NAME, Pod
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.workloads import PriorityClass

T = TypeVar("T", bound=KubeObject)

DEFAULT_NAMESPACE = "default"
SYSTEM_PRIORITIES: Mapping[str, int] = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def admitted(objects: Iterable[KubeObject]) -> Iterator[KubeObject]:
    """The objects as an API server would have stored them."""
    named = [with_identity(item) for item in objects]
    classes = {item.name: item for item in named if isinstance(item, PriorityClass)}
    for item in named:
        yield with_priority(item, classes) if isinstance(item, Pod) else item


def with_identity(item: T) -> T:
    """The object with a namespace where its kind has one, and with a uid."""
    meta = item.metadata
    if not meta.name:
        raise ObjectError(f"a {kind_of(type(item)).name} has no metadata.name; give it one")
    namespace = meta.namespace or (DEFAULT_NAMESPACE if kind_of(type(item)).namespaced else "")
    uid = meta.uid or f"{kind_of(type(item)).plural}/{namespace}/{meta.name}"
    return replace(item, metadata=replace(meta, namespace=namespace, uid=uid))


def with_priority(pod: Pod, classes: Mapping[str, PriorityClass]) -> Pod:
    """The pod with the priority of its class, or of the class that is everybody's default."""
    spec = replace(pod.spec, scheduler_name=pod.spec.scheduler_name or DEFAULT_SCHEDULER_NAME)
    if spec.priority is not None:
        return replace(pod, spec=spec)
    name = spec.priority_class_name
    if name in SYSTEM_PRIORITIES:
        return replace(pod, spec=replace(spec, priority=SYSTEM_PRIORITIES[name]))
    if name and name not in classes:
        raise ObjectError(
            f'pod {pod.key} asks for priority class "{name}", which does not exist; add it or leave it out'
        )
    chosen = classes.get(name) or _default_class(classes.values())
    if chosen is None:
        return replace(pod, spec=replace(spec, priority=0))
    policy = spec.preemption_policy or chosen.preemption_policy
    return replace(pod, spec=replace(spec, priority=chosen.value, preemption_policy=policy))


def _default_class(classes: Iterable[PriorityClass]) -> PriorityClass | None:
    """Of several global defaults the lowest counts, as in the API server's admission."""
    return min((each for each in classes if each.global_default), key=lambda each: each.value, default=None)
