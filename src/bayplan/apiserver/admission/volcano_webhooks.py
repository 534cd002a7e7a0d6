"""Are Volcano's webhooks registered here, and what do they say? They are known by name and asked in this process.

So are ours, for pods that share GPUs. Who registers them (`bayplan admission manifests`, Volcano's own installation, or
the cluster itself where its scheduler shares out GPUs) has them at work at once, without a server that could be away;
other webhooks are stored and not called. Asked for every write; without a registration that is a look at two empty
places.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

from bayplan.admission.gpu_sharing import schedulers_told
from bayplan.admission.webhooks import (
    DOORS,
    GPU_DOORS,
    AdmissionSettings,
    Door,
    Request,
    passed,
)
from bayplan.apiserver.api_errors import Refusal
from bayplan.apiserver.defaulting.pods import fill_template
from bayplan.apiserver.resources.kinds import Resource, Tree
from bayplan.apiserver.resources.lookup import Lookup, built_in
from bayplan.apiserver.validation.core_kinds import check_pod_template
from bayplan.apiserver.validation.field_errors import Faults

_QUEUES = Resource(
    group="scheduling.volcano.sh",
    version="v1beta1",
    kind="Queue",
    plural="queues",
    singular="queue",
    namespaced=False,
    storage_group="scheduling.volcano.sh",
    storage_plural="queues",
)
_DOORS = {door.webhook: door for door in DOORS}
_JUDGED = {(door.group, door.plural) for door in DOORS}
_SETTINGS = AdmissionSettings()


class _Around:
    """The cluster as the doors see it."""

    def __init__(self, lookup: Lookup) -> None:
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
    found = Faults()
    try:
        fill_template(item["template"])
        check_pod_template(found, item)
    except (AttributeError, KeyError, TypeError, ValueError) as fault:  # of a shape that its schema should not let in
        return [f"template: cannot be read: {type(fault).__name__}: {fault}"]
    return [str(each) for each in found]


def mutate(resource: Resource, item: Tree, lookup: Lookup) -> None:
    """Let the webhooks that are registered change a new object, in place."""
    for door, settings in _open_doors(resource, "CREATE", lookup, mutating=True):
        changed, _ = passed(door, _request("CREATE", item, None, lookup, settings))
        if changed is not item:
            item.clear()
            item.update(changed)


def judge(resource: Resource, item: Tree | None, old: Tree | None, operation: str, lookup: Lookup) -> None:
    """Refuse what a registered webhook refuses, in the words of an API server."""
    for door, settings in _open_doors(resource, operation, lookup, mutating=False):
        _, fault = passed(door, _request(operation, item or {}, old, lookup, settings))
        if fault:
            raise Refusal(400, "", f'admission webhook "{door.webhook}" denied the request: {fault.strip()}')


def _request(operation: str, item: Tree, old: Tree | None, lookup: Lookup, settings: AdmissionSettings) -> Request:
    name = str(((item or old or {}).get("metadata") or {}).get("name") or "")
    return Request(operation, item, old, name, _Around(lookup), settings)


def _open_doors(
    resource: Resource, operation: str, lookup: Lookup, *, mutating: bool
) -> Iterator[tuple[Door, AdmissionSettings]]:
    if (resource.group, resource.plural) not in _JUDGED:
        return
    kind = "MutatingWebhookConfiguration" if mutating else "ValidatingWebhookConfiguration"
    for configuration in lookup.list(built_in(kind, "admissionregistration.k8s.io")):
        for webhook in configuration.get("webhooks") or ():
            door = _DOORS.get(webhook.get("name", ""))
            if door is None or door.mutating is not mutating or operation not in door.operations:
                continue
            if (door.group, door.plural) == (resource.group, resource.plural):
                yield door, _settings(door, configuration)


def _settings(door: Door, registration: Tree) -> AdmissionSettings:
    """The usual ones, and of whose pods a registration speaks."""
    if door not in GPU_DOORS:
        return _SETTINGS
    return AdmissionSettings(sharing_schedulers=schedulers_told(registration))
