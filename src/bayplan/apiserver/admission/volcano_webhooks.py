"""Are Volcano's webhooks registered here, and what do they say? They are known by name and asked in this process.

So are ours, for pods that share GPUs. Who registers them (`bayplan admission manifests`, Volcano's own installation, or
the cluster itself where its scheduler shares out GPUs) has them at work at once, without a server that could be away;
other webhooks are stored and not called. Asked for every write; without a registration that is a look at two empty
places.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

from bayplan.admission.gpu_sharing import registered_schedulers
from bayplan.admission.webhooks import (
    GPU_WEBHOOKS,
    WEBHOOKS,
    AdmissionRequest,
    AdmissionSettings,
    AdmissionWebhook,
    run_webhook,
)
from bayplan.apiserver.api_errors import StatusError
from bayplan.apiserver.defaulting.pods import fill_template
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.resources.lookup import ObjectLookup, built_in
from bayplan.apiserver.validation.core_kinds import check_pod_template
from bayplan.apiserver.validation.field_errors import FieldErrorList

_QUEUES = ServedResource(
    group="scheduling.volcano.sh",
    version="v1beta1",
    kind="Queue",
    plural="queues",
    singular="queue",
    namespaced=False,
    storage_group="scheduling.volcano.sh",
    storage_plural="queues",
)
_WEBHOOKS = {door.webhook: door for door in WEBHOOKS}
_VALIDATED_RESOURCES = {(door.group, door.plural) for door in WEBHOOKS}
_SETTINGS = AdmissionSettings()


class _StoreAdmissionContext:
    """The cluster as the doors see it."""

    def __init__(self, lookup: ObjectLookup) -> None:
        self._lookup = lookup

    def queues(self) -> Mapping[str, Tree]:
        return {each["metadata"]["name"]: each for each in self._lookup.list(_QUEUES)}

    def namespace(self, name: str) -> Tree | None:
        return self._lookup.get(built_in("Namespace"), "", name)

    def template_faults(self, name: str, namespace: str, template: Tree) -> list[str]:
        return template_faults(name, namespace, template)


def template_faults(name: str, namespace: str, template: Tree) -> list[str]:
    """What is wrong with the template of a task, if it were a PodTemplate of its name: its defaults filled in first."""
    item: Tree = {"metadata": {"name": name, "namespace": namespace}, "template": copy.deepcopy(template)}
    found = FieldErrorList()
    try:
        fill_template(item["template"])
        check_pod_template(found, item)
    except (AttributeError, KeyError, TypeError, ValueError) as fault:  # of a shape that its schema should not let in
        return [f"template: cannot be read: {type(fault).__name__}: {fault}"]
    return [str(each) for each in found]


def mutate(resource: ServedResource, item: Tree, lookup: ObjectLookup) -> None:
    """Let the webhooks that are registered change a new object, in place."""
    for door, settings in _registered_webhooks(resource, "CREATE", lookup, mutating=True):
        changed, _ = run_webhook(door, _request("CREATE", item, None, lookup, settings))
        if changed is not item:
            item.clear()
            item.update(changed)


def validate(
    resource: ServedResource, item: Tree | None, old: Tree | None, operation: str, lookup: ObjectLookup
) -> None:
    """Refuse what a registered webhook refuses, in the words of an API server."""
    for door, settings in _registered_webhooks(resource, operation, lookup, mutating=False):
        _, fault = run_webhook(door, _request(operation, item or {}, old, lookup, settings))
        if fault:
            raise StatusError(400, "", f'admission webhook "{door.webhook}" denied the request: {fault.strip()}')


def _request(
    operation: str, item: Tree, old: Tree | None, lookup: ObjectLookup, settings: AdmissionSettings
) -> AdmissionRequest:
    name = str(((item or old or {}).get("metadata") or {}).get("name") or "")
    return AdmissionRequest(operation, item, old, name, _StoreAdmissionContext(lookup), settings)


def _registered_webhooks(
    resource: ServedResource, operation: str, lookup: ObjectLookup, *, mutating: bool
) -> Iterator[tuple[AdmissionWebhook, AdmissionSettings]]:
    if (resource.group, resource.plural) not in _VALIDATED_RESOURCES:
        return
    kind = "MutatingWebhookConfiguration" if mutating else "ValidatingWebhookConfiguration"
    for configuration in lookup.list(built_in(kind, "admissionregistration.k8s.io")):
        for webhook in configuration.get("webhooks") or ():
            door = _WEBHOOKS.get(webhook.get("name", ""))
            if door is None or door.mutating is not mutating or operation not in door.operations:
                continue
            if (door.group, door.plural) == (resource.group, resource.plural):
                yield door, _settings(door, configuration)


def _settings(door: AdmissionWebhook, registration: Tree) -> AdmissionSettings:
    """The usual ones, and of whose pods a registration speaks."""
    if door not in GPU_WEBHOOKS:
        return _SETTINGS
    return AdmissionSettings(sharing_schedulers=registered_schedulers(registration))
