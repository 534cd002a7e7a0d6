"""Which requests for Volcano's kinds are let in, and as what? One answer for the webhooks and for the embedded cluster.

A `AdmissionWebhook` is a webhook: its path, what it is asked about, and what it decides. Those that Volcano opens
unless told otherwise are `DEFAULT_WEBHOOKS`; `GPU_WEBHOOKS`, for pods that share GPUs, are ours, and closed unless
somebody names them. A decision costs some ten microseconds, with many queues one look at each."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bayplan.admission.gpu_sharing import DEFAULT_SCHEDULER as SHARING_SCHEDULER
from bayplan.admission.gpu_sharing import add_config_map_references, gpu_sharing_error, random_suffix
from bayplan.admission.job_validation import job_errors, job_queue_error, job_update_error
from bayplan.admission.queue_validation import QueueValidationRules, queue_deletion_error, queue_error
from bayplan.admission.volcano_defaults import with_job_defaults, with_pod_group_defaults, with_queue_defaults
from bayplan.admission.volcano_kinds_validation import (
    cron_job_error,
    hyper_node_error,
    job_flow_error,
    pod_error,
    pod_group_error,
)
from bayplan.objects.volcano.constants import (
    ALLOCATION_GATE,
    QUEUE_NAME_OF_PODS,
    SCHEDULER,
    Tree,
)

log = logging.getLogger(__name__)

RESOURCE_GROUP = "volcano.sh/resource-group"


class AdmissionContext(Protocol):
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

    def matches(self, pod: Tree) -> bool:
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
    queue_rules: QueueValidationRules = field(default_factory=QueueValidationRules)
    resource_groups: tuple[ResourceGroup, ...] = ()
    allocation_gates: bool = False
    """Whether pods that ask for it are held by a gate until their queue has room. Somebody has to remove it then."""
    sharing_schedulers: tuple[str, ...] = (SHARING_SCHEDULER,)
    """Whose pods may share GPUs."""
    random_suffix: Callable[[], str] = random_suffix
    """The random part of a name."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """One request as a webhook is asked about it."""

    operation: str
    object: Tree
    old: Tree | None
    name: str
    context: AdmissionContext
    settings: AdmissionSettings


Mutator = Callable[[AdmissionRequest], Tree]
Validator = Callable[[AdmissionRequest], str]


@dataclass(frozen=True, slots=True)
class AdmissionWebhook:
    """One webhook."""

    path: str
    webhook: str
    group: str
    version: str
    plural: str
    operations: tuple[str, ...]
    mutate: Mutator | None = None
    validate: Validator | None = None
    registered_by: str = ""
    """The beginning of the registration's name; that of the service in front of us where it is missing."""

    @property
    def mutating(self) -> bool:
        return self.mutate is not None

    @property
    def needs_context(self) -> bool:
        """Whether it has to know more than the object: pods are judged by themselves, also where nobody has queues."""
        return bool(self.group)

    def registration(self, service: str) -> str:
        """The name of the object that makes an API server ask."""
        return f"{self.registered_by or service}{self.path.replace('/', '-')}"


def _mutate_pod(request: AdmissionRequest) -> Tree:
    pod = {**request.object, "spec": dict(request.object.get("spec") or {})}
    spec = pod["spec"]
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    gates = list(spec.get("schedulingGates") or ())
    asked = request.settings.allocation_gates and annotations.get(ALLOCATION_GATE) == "true"
    if asked and not any(gate.get("name") == ALLOCATION_GATE for gate in gates):
        spec["schedulingGates"] = [*gates, {"name": ALLOCATION_GATE}]
    group = next((each for each in request.settings.resource_groups if each.matches(pod)), None)
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


def _mutate_pod_group(request: AdmissionRequest) -> Tree:
    metadata = request.object.get("metadata") or {}
    space = request.context.namespace(metadata.get("namespace") or "")
    annotations = ((space or {}).get("metadata") or {}).get("annotations") or {}
    return with_pod_group_defaults(request.object, annotations.get(QUEUE_NAME_OF_PODS, ""))


def _validate_job(request: AdmissionRequest) -> str:
    if request.old is not None:
        return job_update_error(request.old, request.object)
    said = job_errors(request.object) + _template_errors(request)
    return (said + job_queue_error(request.object, request.context.queues())).strip()


def _template_errors(request: AdmissionRequest) -> str:
    """What is wrong with the pods of a job's tasks, in the words of whoever will be asked to make them."""
    namespace, said = str((request.object.get("metadata") or {}).get("namespace") or "default"), ""
    for index, task in enumerate((request.object.get("spec") or {}).get("tasks") or ()):
        faults = list(
            request.context.template_faults(str(task.get("name") or ""), namespace, task.get("template") or {})
        )
        if faults:
            said += f" spec.task[{index}]." + "".join(f"{fault}. " for fault in faults)
    return said


def _validate_queue(request: AdmissionRequest) -> str:
    rules, queues = request.settings.queue_rules, request.context.queues()
    if request.operation == "DELETE":
        return queue_deletion_error(request.name, queues, rules=rules)
    return queue_error(request.object, queues, old=request.old, rules=rules)


_SCHEDULING = ("scheduling.volcano.sh", "v1beta1")
_BATCH = ("batch.volcano.sh", "v1alpha1")
_WRITES = ("CREATE", "UPDATE")

GPU_WEBHOOKS: tuple[AdmissionWebhook, ...] = (
    AdmissionWebhook(
        "/gpus/mutate",
        "mutategpus.bayplan.dev",
        "",
        "v1",
        "pods",
        ("CREATE",),
        mutate=lambda request: add_config_map_references(
            request.object, request.settings.sharing_schedulers, request.settings.random_suffix
        ),
        registered_by="bayplan",
    ),
    AdmissionWebhook(
        "/gpus/validate",
        "validategpus.bayplan.dev",
        "",
        "v1",
        "pods",
        ("CREATE",),
        validate=lambda request: gpu_sharing_error(request.object, request.settings.sharing_schedulers),
        registered_by="bayplan",
    ),
)
"""For pods that share GPUs; off unless they are named."""

WEBHOOKS: tuple[AdmissionWebhook, ...] = (
    AdmissionWebhook(
        "/jobs/mutate",
        "mutatejob.volcano.sh",
        *_BATCH,
        "jobs",
        ("CREATE",),
        mutate=lambda request: with_job_defaults(request.object, scheduler=request.settings.schedulers[0]),
    ),
    AdmissionWebhook("/jobs/validate", "validatejob.volcano.sh", *_BATCH, "jobs", _WRITES, validate=_validate_job),
    AdmissionWebhook(
        "/podgroups/mutate",
        "mutatepodgroup.volcano.sh",
        *_SCHEDULING,
        "podgroups",
        ("CREATE",),
        mutate=_mutate_pod_group,
    ),
    AdmissionWebhook(
        "/podgroups/validate",
        "validatepodgroup.volcano.sh",
        *_SCHEDULING,
        "podgroups",
        ("CREATE",),
        validate=lambda request: pod_group_error(request.object, request.context.queues()),
    ),
    AdmissionWebhook("/pods/mutate", "mutatepod.volcano.sh", "", "v1", "pods", ("CREATE",), mutate=_mutate_pod),
    AdmissionWebhook(
        "/pods/validate",
        "validatepod.volcano.sh",
        "",
        "v1",
        "pods",
        ("CREATE",),
        validate=lambda request: pod_error(request.object, request.settings.schedulers),
    ),
    AdmissionWebhook(
        "/queues/mutate",
        "mutatequeue.volcano.sh",
        *_SCHEDULING,
        "queues",
        ("CREATE",),
        mutate=lambda request: with_queue_defaults(request.object),
    ),
    AdmissionWebhook(
        "/queues/validate",
        "validatequeue.volcano.sh",
        *_SCHEDULING,
        "queues",
        (*_WRITES, "DELETE"),
        validate=_validate_queue,
    ),
    AdmissionWebhook(
        "/jobflows/validate",
        "validatejobflow.volcano.sh",
        "flow.volcano.sh",
        "v1alpha1",
        "jobflows",
        _WRITES,
        validate=lambda request: job_flow_error(request.object),
    ),
    AdmissionWebhook(
        "/cronjobs/validate",
        "validatecronjob.volcano.sh",
        *_BATCH,
        "cronjobs",
        _WRITES,
        validate=lambda request: cron_job_error(request.object),
    ),
    AdmissionWebhook(
        "/hypernodes/validate",
        "validatehypernode.volcano.sh",
        "topology.volcano.sh",
        "v1alpha1",
        "hypernodes",
        _WRITES,
        validate=lambda request: hyper_node_error(request.object),
    ),
    *GPU_WEBHOOKS,
)

DEFAULT_WEBHOOKS = (
    "/jobs/mutate",
    "/jobs/validate",
    "/podgroups/mutate",
    "/pods/validate",
    "/pods/mutate",
    "/queues/mutate",
    "/queues/validate",
)
"""What Volcano opens unless `--enabled-admission` says otherwise."""


def webhooks_for(paths: Iterable[str]) -> tuple[AdmissionWebhook, ...]:
    """The doors with these paths, in the order in which an API server goes through them. Raises KeyError."""
    wanted = set(paths)
    if unknown := wanted - {door.path for door in WEBHOOKS}:
        raise KeyError(", ".join(sorted(unknown)))
    return tuple(door for door in WEBHOOKS if door.path in wanted)


def run_webhook(door: AdmissionWebhook, request: AdmissionRequest) -> tuple[Tree, str]:
    """The object as it goes on, and why it may not (empty when it may)."""
    try:
        if door.mutate is not None:
            return door.mutate(request), ""
        assert door.validate is not None
        return request.object, door.validate(request)
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
