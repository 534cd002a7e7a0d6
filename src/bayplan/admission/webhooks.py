"""Which requests for Volcano's kinds are let in, and as what? One answer for the webhooks and for the embedded cluster.

A `Door` is a webhook: its path, what it is asked about, and what it decides. Those that Volcano opens unless told
otherwise are `USUAL_DOORS`; `GPU_DOORS`, for pods that share GPUs, are ours, and closed unless somebody names them. A
decision costs some ten microseconds, with many queues one look at each.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bayplan.admission.gpu_sharing import SCHEDULER as SHARING_SCHEDULER
from bayplan.admission.gpu_sharing import random_letters, sharing_fault, with_references
from bayplan.admission.job_validation import job_faults, job_queue_fault, job_update_fault
from bayplan.admission.queue_validation import QueueRules, queue_deletion_fault, queue_fault
from bayplan.admission.volcano_defaults import with_job_defaults, with_pod_group_defaults, with_queue_defaults
from bayplan.admission.volcano_kinds_validation import (
    cron_job_fault,
    hyper_node_fault,
    job_flow_fault,
    pod_fault,
    pod_group_fault,
)
from bayplan.objects.volcano.constants import (
    ALLOCATION_GATE,
    QUEUE_NAME_OF_PODS,
    SCHEDULER,
    Tree,
)

log = logging.getLogger(__name__)

RESOURCE_GROUP = "volcano.sh/resource-group"


class Surroundings(Protocol):
    """What a decision may depend on besides the object."""

    def queues(self) -> Mapping[str, Tree]:
        """All queues by name."""
        ...

    def namespace(self, name: str) -> Tree | None:
        """A namespace, if it is known."""
        ...

    def template_faults(self, name: str, namespace: str, template: Tree) -> Iterable[str]:
        """What an API server would refuse a pod template for."""
        ...


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Pods of some namespaces, or with some annotations, that belong on some nodes."""

    name: str = ""
    key: str = ""
    values: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""
    tolerations: tuple[Tree, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    affinity: Tree | None = None

    @staticmethod
    def parse(tree: Tree) -> ResourceGroup:
        """One entry of `resourceGroups` in Volcano's admission configuration, with lists read already."""
        about = tree.get("object") or {}
        values = tuple(str(each) for each in about.get("value") or ())
        pairs = (value.partition(":") for value in values if ":" in value)
        return ResourceGroup(
            name=str(tree.get("resourceGroup") or ""),
            key=str(about.get("key") or ""),
            values=values,
            annotations={key.strip(): value.strip().strip("\"'") for key, _, value in pairs},
            scheduler=str(tree.get("schedulerName") or ""),
            tolerations=tuple(tree.get("tolerations") or ()),
            labels=dict(tree.get("labels") or {}),
            affinity=json.loads(tree["affinity"]) if tree.get("affinity") else None,
        )

    def has(self, pod: Tree) -> bool:
        metadata = pod.get("metadata") or {}
        if self.key == "namespace":
            return metadata.get("namespace") in self.values
        if self.key not in ("", "annotation"):
            return False
        said = metadata.get("annotations") or {}
        if any(said.get(key) == value for key, value in self.annotations.items()):
            return True
        return not self.key and bool(self.name) and said.get(RESOURCE_GROUP) == self.name


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """What a cluster has chosen; the defaults are Volcano's."""

    schedulers: tuple[str, ...] = (SCHEDULER,)
    queue_rules: QueueRules = field(default_factory=QueueRules)
    resource_groups: tuple[ResourceGroup, ...] = ()
    gates: bool = False
    """Whether pods that ask for it are held by a gate until their queue has room. Somebody has to remove it then."""
    sharing_schedulers: tuple[str, ...] = (SHARING_SCHEDULER,)
    """Whose pods may share GPUs."""
    draw: Callable[[], str] = random_letters
    """The random part of a name."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as a webhook is asked about it."""

    operation: str
    object: Tree
    old: Tree | None
    name: str
    around: Surroundings
    settings: AdmissionSettings


Mutate = Callable[[Request], Tree]
Judge = Callable[[Request], str]


@dataclass(frozen=True, slots=True)
class Door:
    """One webhook."""

    path: str
    webhook: str
    group: str
    version: str
    plural: str
    operations: tuple[str, ...]
    mutate: Mutate | None = None
    judge: Judge | None = None
    registered_by: str = ""
    """The beginning of the registration's name; that of the service in front of us where it is missing."""

    @property
    def mutating(self) -> bool:
        return self.mutate is not None

    @property
    def looks_around(self) -> bool:
        """Whether it has to know more than the object: pods are judged by themselves, also where nobody has queues."""
        return bool(self.group)

    def registration(self, service: str) -> str:
        """The name of the object that makes an API server ask."""
        return f"{self.registered_by or service}{self.path.replace('/', '-')}"


def _mutate_pod(request: Request) -> Tree:
    pod = {**request.object, "spec": dict(request.object.get("spec") or {})}
    spec = pod["spec"]
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    gates = list(spec.get("schedulingGates") or ())
    asked = request.settings.gates and annotations.get(ALLOCATION_GATE) == "true"
    if asked and not any(gate.get("name") == ALLOCATION_GATE for gate in gates):
        spec["schedulingGates"] = [*gates, {"name": ALLOCATION_GATE}]
    group = next((each for each in request.settings.resource_groups if each.has(pod)), None)
    if group is None:
        return pod
    if group.labels:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **group.labels}
    if group.affinity is not None and not spec.get("affinity"):
        spec["affinity"] = group.affinity
    if group.tolerations:
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *group.tolerations]
    if group.scheduler:
        spec["schedulerName"] = group.scheduler
    return pod


def _mutate_pod_group(request: Request) -> Tree:
    metadata = request.object.get("metadata") or {}
    space = request.around.namespace(metadata.get("namespace") or "")
    annotations = ((space or {}).get("metadata") or {}).get("annotations") or {}
    return with_pod_group_defaults(request.object, annotations.get(QUEUE_NAME_OF_PODS, ""))


def _judge_job(request: Request) -> str:
    if request.old is not None:
        return job_update_fault(request.old, request.object)
    said = job_faults(request.object) + _template_faults(request)
    return (said + job_queue_fault(request.object, request.around.queues())).strip()


def _template_faults(request: Request) -> str:
    """What is wrong with the pods of a job's tasks, in the words of whoever will be asked to make them."""
    namespace, said = str((request.object.get("metadata") or {}).get("namespace") or "default"), ""
    for index, task in enumerate((request.object.get("spec") or {}).get("tasks") or ()):
        faults = list(
            request.around.template_faults(str(task.get("name") or ""), namespace, task.get("template") or {})
        )
        if faults:
            said += f" spec.task[{index}]." + "".join(f"{fault}. " for fault in faults)
    return said


def _judge_queue(request: Request) -> str:
    rules, queues = request.settings.queue_rules, request.around.queues()
    if request.operation == "DELETE":
        return queue_deletion_fault(request.name, queues, rules=rules)
    return queue_fault(request.object, queues, old=request.old, rules=rules)


_SCHEDULING = ("scheduling.volcano.sh", "v1beta1")
_BATCH = ("batch.volcano.sh", "v1alpha1")
_WRITES = ("CREATE", "UPDATE")

GPU_DOORS: tuple[Door, ...] = (
    Door(
        "/gpus/mutate",
        "mutategpus.bayplan.dev",
        "",
        "v1",
        "pods",
        ("CREATE",),
        mutate=lambda request: with_references(
            request.object, request.settings.sharing_schedulers, request.settings.draw
        ),
        registered_by="bayplan",
    ),
    Door(
        "/gpus/validate",
        "validategpus.bayplan.dev",
        "",
        "v1",
        "pods",
        ("CREATE",),
        judge=lambda request: sharing_fault(request.object, request.settings.sharing_schedulers),
        registered_by="bayplan",
    ),
)
"""For pods that share GPUs; off unless they are named."""

DOORS: tuple[Door, ...] = (
    Door(
        "/jobs/mutate",
        "mutatejob.volcano.sh",
        *_BATCH,
        "jobs",
        ("CREATE",),
        mutate=lambda request: with_job_defaults(request.object, scheduler=request.settings.schedulers[0]),
    ),
    Door("/jobs/validate", "validatejob.volcano.sh", *_BATCH, "jobs", _WRITES, judge=_judge_job),
    Door(
        "/podgroups/mutate",
        "mutatepodgroup.volcano.sh",
        *_SCHEDULING,
        "podgroups",
        ("CREATE",),
        mutate=_mutate_pod_group,
    ),
    Door(
        "/podgroups/validate",
        "validatepodgroup.volcano.sh",
        *_SCHEDULING,
        "podgroups",
        ("CREATE",),
        judge=lambda request: pod_group_fault(request.object, request.around.queues()),
    ),
    Door("/pods/mutate", "mutatepod.volcano.sh", "", "v1", "pods", ("CREATE",), mutate=_mutate_pod),
    Door(
        "/pods/validate",
        "validatepod.volcano.sh",
        "",
        "v1",
        "pods",
        ("CREATE",),
        judge=lambda request: pod_fault(request.object, request.settings.schedulers),
    ),
    Door(
        "/queues/mutate",
        "mutatequeue.volcano.sh",
        *_SCHEDULING,
        "queues",
        ("CREATE",),
        mutate=lambda request: with_queue_defaults(request.object),
    ),
    Door(
        "/queues/validate",
        "validatequeue.volcano.sh",
        *_SCHEDULING,
        "queues",
        (*_WRITES, "DELETE"),
        judge=_judge_queue,
    ),
    Door(
        "/jobflows/validate",
        "validatejobflow.volcano.sh",
        "flow.volcano.sh",
        "v1alpha1",
        "jobflows",
        _WRITES,
        judge=lambda request: job_flow_fault(request.object),
    ),
    Door(
        "/cronjobs/validate",
        "validatecronjob.volcano.sh",
        *_BATCH,
        "cronjobs",
        _WRITES,
        judge=lambda request: cron_job_fault(request.object),
    ),
    Door(
        "/hypernodes/validate",
        "validatehypernode.volcano.sh",
        "topology.volcano.sh",
        "v1alpha1",
        "hypernodes",
        _WRITES,
        judge=lambda request: hyper_node_fault(request.object),
    ),
    *GPU_DOORS,
)

USUAL_DOORS = (
    "/jobs/mutate",
    "/jobs/validate",
    "/podgroups/mutate",
    "/pods/validate",
    "/pods/mutate",
    "/queues/mutate",
    "/queues/validate",
)
"""What Volcano opens unless `--enabled-admission` says otherwise."""


def doors_for(paths: Iterable[str]) -> tuple[Door, ...]:
    """The doors with these paths, in the order in which an API server goes through them. Raises KeyError."""
    wanted = set(paths)
    if unknown := wanted - {door.path for door in DOORS}:
        raise KeyError(", ".join(sorted(unknown)))
    return tuple(door for door in DOORS if door.path in wanted)


def passed(door: Door, request: Request) -> tuple[Tree, str]:
    """The object as it goes on, and why it may not (empty when it may)."""
    try:
        if door.mutate is not None:
            return door.mutate(request), ""
        assert door.judge is not None
        return request.object, door.judge(request)
    except (AttributeError, KeyError, TypeError, ValueError) as fault:
        # The schema refuses such objects too, but a webhook may be asked where there is none.
        log.info("%s: %s cannot be read: %r", door.path, request.name, fault)
        return request.object, f"the object has a field of the wrong type ({fault}); compare it with the schema"


def json_patch(old: Any, new: Any, path: str = "") -> Iterator[Tree]:
    """The operations of a JSON patch that make one of the other; lists are replaced as a whole."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield {"op": "replace", "path": path, "value": new}
        return
    for key in old.keys() - new.keys():
        yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
    for key, value in new.items():
        if key not in old:
            yield {"op": "add", "path": f"{path}/{_escaped(key)}", "value": value}
        else:
            yield from json_patch(old[key], value, f"{path}/{_escaped(key)}")


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
