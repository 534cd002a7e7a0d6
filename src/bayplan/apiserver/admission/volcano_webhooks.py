"""Volcano's webhooks and Bayplan's GPU sharing webhooks, run in the process of the API server.

They run if a webhook configuration names them: that of `bayplan admission manifests`, of Volcano's installation, or of
the embedded cluster if its scheduler shares GPUs. They need no webhook server. Other webhooks are stored and not
called. Called for every write; without a configuration that costs two lookups.
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
from bayplan.codec.field_errors import FieldErrorList

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
_WEBHOOKS = {hook.webhook: hook for hook in WEBHOOKS}
_VALIDATED_RESOURCES = {(hook.group, hook.plural) for hook in WEBHOOKS}
_SETTINGS = AdmissionSettings()


class _StoreAdmissionContext:
    def __init__(self, lookup: ObjectLookup) -> None:
        self._lookup = lookup

    def queues(self) -> Mapping[str, Tree]:
        return {each["metadata"]["name"]: each for each in self._lookup.list(_QUEUES)}

    def namespace(self, name: str) -> Tree | None:
        return self._lookup.get(built_in("Namespace"), "", name)

    def template_errors(self, name: str, namespace: str, template: Tree) -> list[str]:
        return template_errors(name, namespace, template)


def template_errors(name: str, namespace: str, template: Tree) -> list[str]:
    """Validation errors of a task's template, checked as a PodTemplate of that name after defaulting."""
    item: Tree = {"metadata": {"name": name, "namespace": namespace}, "template": copy.deepcopy(template)}
    errors = FieldErrorList()
    try:
        fill_template(item["template"])
        check_pod_template(errors, item)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # the schema is incomplete
        return [f"template: cannot be read: {type(error).__name__}: {error}"]
    return [str(each) for each in errors]


def mutate(resource: ServedResource, item: Tree, lookup: ObjectLookup) -> None:
    """Run the registered mutating webhooks on a new object, in place."""
    for hook, settings in _registered_webhooks(resource, "CREATE", lookup, mutating=True):
        changed, _ = run_webhook(hook, _request("CREATE", item, None, lookup, settings))
        if changed is not item:
            item.clear()
            item.update(changed)


def validate(
    resource: ServedResource, item: Tree | None, old: Tree | None, operation: str, lookup: ObjectLookup
) -> None:
    """Run the registered validating webhooks. Refuses with kube-apiserver's message."""
    for hook, settings in _registered_webhooks(resource, operation, lookup, mutating=False):
        _, error = run_webhook(hook, _request(operation, item or {}, old, lookup, settings))
        if error:
            raise StatusError(400, "", f'admission webhook "{hook.webhook}" denied the request: {error.strip()}')


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
            hook = _WEBHOOKS.get(webhook.get("name", ""))
            if hook is None or hook.mutating is not mutating or operation not in hook.operations:
                continue
            if (hook.group, hook.plural) == (resource.group, resource.plural):
                yield hook, _settings(hook, configuration)


def _settings(hook: AdmissionWebhook, registration: Tree) -> AdmissionSettings:
    """The default settings, with the scheduler names of the webhook configuration for GPU sharing."""
    if hook not in GPU_WEBHOOKS:
        return _SETTINGS
    return AdmissionSettings(sharing_schedulers=registered_schedulers(registration))
