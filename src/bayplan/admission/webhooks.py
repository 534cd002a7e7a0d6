"""Admission webhooks of Volcano's kinds and of GPU sharing, for the webhook server and the embedded API server.

An `AdmissionWebhook` has a path, the requests it applies to, and a function. Volcano's defaults are `DEFAULT_WEBHOOKS`.
`GPU_WEBHOOKS`, for pods that share GPUs, are Bayplan's; they are disabled unless they are named. Cost: some ten
microseconds for each request; webhooks that need the queues read all of them.
"""

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
from bayplan.objects.volcano.constants import ALLOCATION_GATE, QUEUE_NAME_OF_PODS, SCHEDULER, Tree

log = logging.getLogger(__name__)

RESOURCE_GROUP = "volcano.sh/resource-group"


class AdmissionContext(Protocol):
    """Other objects that a webhook reads."""

    def queues(self) -> Mapping[str, Tree]: ...

    def namespace(self, name: str) -> Tree | None:
        """A namespace; None if it is unknown."""
        ...

    def template_errors(self, name: str, namespace: str, template: Tree) -> Iterable[str]:
        """Validation errors of a pod template, as from an API server."""
        ...


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """A resource group of Volcano's admission configuration: selects pods and sets where they run."""

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
        """Parses one entry of `resourceGroups` in Volcano's admission configuration, with decoded lists."""
        selector = tree.get("object") or {}
        values = tuple(str(each) for each in selector.get("value") or ())
        pairs = (value.partition(":") for value in values if ":" in value)
        return ResourceGroup(
            name=str(tree.get("resourceGroup") or ""),
            key=str(selector.get("key") or ""),
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
        annotations = metadata.get("annotations") or {}
        if any(annotations.get(key) == value for key, value in self.annotations.items()):
            return True
        return not self.key and bool(self.name) and annotations.get(RESOURCE_GROUP) == self.name


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Settings of the webhooks; the defaults are Volcano's."""

    schedulers: tuple[str, ...] = (SCHEDULER,)
    queue_rules: QueueValidationRules = field(default_factory=QueueValidationRules)
    resource_groups: tuple[ResourceGroup, ...] = ()
    allocation_gates: bool = False
    """Whether pods with the annotation get a scheduling gate until their queue has room. The batch engine must remove
    the gate."""
    sharing_schedulers: tuple[str, ...] = (SHARING_SCHEDULER,)
    """The schedulers whose pods may share GPUs."""
    random_suffix: Callable[[], str] = random_suffix
    """Generates the random part of a name."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
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
    path: str
    webhook: str
    group: str
    version: str
    plural: str
    operations: tuple[str, ...]
    mutate: Mutator | None = None
    validate: Validator | None = None
    registered_by: str = ""
    """Prefix of the name of the webhook configuration; by default the name of the service."""

    @property
    def mutating(self) -> bool:
        return self.mutate is not None

    @property
    def needs_context(self) -> bool:
        """Whether the webhook reads other objects. Webhooks of pods do not, so they work without queues."""
        return bool(self.group)

    def registration(self, service: str) -> str:
        """The name of the webhook configuration."""
        return f"{self.registered_by or service}{self.path.replace('/', '-')}"


def _mutate_pod(request: AdmissionRequest) -> Tree:
    pod = {**request.object, "spec": dict(request.object.get("spec") or {})}
    spec = pod["spec"]
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    gates = list(spec.get("schedulingGates") or ())
    wants_gate = request.settings.allocation_gates and annotations.get(ALLOCATION_GATE) == "true"
    if wants_gate and not any(gate.get("name") == ALLOCATION_GATE for gate in gates):
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
    namespace = request.context.namespace(metadata.get("namespace") or "")
    annotations = ((namespace or {}).get("metadata") or {}).get("annotations") or {}
    return with_pod_group_defaults(request.object, annotations.get(QUEUE_NAME_OF_PODS, ""))


def _validate_job(request: AdmissionRequest) -> str:
    if request.old is not None:
        return job_update_error(request.old, request.object)
    message = job_errors(request.object) + _template_errors(request)
    return (message + job_queue_error(request.object, request.context.queues())).strip()


def _template_errors(request: AdmissionRequest) -> str:
    """Validation errors of the pod templates of a job's tasks, as from an API server."""
    namespace, message = str((request.object.get("metadata") or {}).get("namespace") or "default"), ""
    for index, task in enumerate((request.object.get("spec") or {}).get("tasks") or ()):
        errors = list(
            request.context.template_errors(str(task.get("name") or ""), namespace, task.get("template") or {})
        )
        if errors:
            message += f" spec.task[{index}]." + "".join(f"{error}. " for error in errors)
    return message


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
"""Webhooks of pods that share GPUs; disabled unless they are named."""

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
"""The webhooks that Volcano enables without `--enabled-admission`."""


def webhooks_for(paths: Iterable[str]) -> tuple[AdmissionWebhook, ...]:
    """The webhooks with these paths, in the order in which an API server calls them. Raises KeyError."""
    wanted = set(paths)
    if unknown := wanted - {admission_webhook.path for admission_webhook in WEBHOOKS}:
        raise KeyError(", ".join(sorted(unknown)))
    return tuple(admission_webhook for admission_webhook in WEBHOOKS if admission_webhook.path in wanted)


def run_webhook(admission_webhook: AdmissionWebhook, request: AdmissionRequest) -> tuple[Tree, str]:
    """Run a webhook. Returns the object, changed by a mutating webhook, and why it is refused (empty if admitted)."""
    try:
        if admission_webhook.mutate is not None:
            return admission_webhook.mutate(request), ""
        assert admission_webhook.validate is not None
        return request.object, admission_webhook.validate(request)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # The schema refuses such objects too, but a cluster may have no schema for them.
        log.info("%s: %s has a field of the wrong type: %r", admission_webhook.path, request.name, error)
        return request.object, f"the object has a field of the wrong type ({error}); compare it with the schema"


def json_patch(old: Any, new: Any, path: str = "") -> Iterator[Tree]:
    """The operations of a JSON patch from one object to the other; lists are replaced as a whole."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield {"op": "replace", "path": path, "value": new}
        return
    for key in old.keys() - new.keys():
        yield {"op": "remove", "path": f"{path}/{_escape(key)}"}
    for key, value in new.items():
        if key not in old:
            yield {"op": "add", "path": f"{path}/{_escape(key)}", "value": value}
        else:
            yield from json_patch(old[key], value, f"{path}/{_escape(key)}")


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
