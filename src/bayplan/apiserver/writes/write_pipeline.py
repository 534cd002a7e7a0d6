"""Write pipeline: the steps of an object between decoding and storing, in upstream's order.

Defaulting comes first. The managed fields of the writer are tracked before admission adds fields, so that no manager
owns those. Then come admission, the strategy of the kind, and validation. Cost: the sum of its steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.apiserver import api_errors
from bayplan.apiserver.admission import plugins, volcano_webhooks
from bayplan.apiserver.defaulting.kind_defaults import set_defaults
from bayplan.apiserver.requests import WriteRequest
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.resources.lookup import ObjectLookup
from bayplan.apiserver.schema.body_decoding import converter, custom_type, managed_type
from bayplan.apiserver.schema.managed_fields.server_side_apply import track
from bayplan.apiserver.storage.crd_registry import CRD_RESOURCE
from bayplan.apiserver.validation import csr_rules
from bayplan.apiserver.validation.kind_validators import validate_create, validate_update
from bayplan.apiserver.warnings import warnings_for
from bayplan.apiserver.writes.metadata import timestamp
from bayplan.apiserver.writes.strategies import prepare_create, prepare_update
from bayplan.clock import Clock
from bayplan.codec.field_errors import FieldError

_CSR_RESOURCE = ("certificates.k8s.io", "certificatesigningrequests")


def _validate_crd(tree: Tree, old: Tree | None = None) -> Sequence[FieldError]:
    from bayplan.apiserver.schema.crd import definitions  # imports CEL; other starts do not load it

    return definitions.validate_crd(tree, old)


class WritePipeline:
    def __init__(self, lookup: ObjectLookup, clock: Clock) -> None:
        self._lookup = lookup
        self._clock = clock

    def prepare_create(self, write: WriteRequest, tree: Tree) -> None:
        resource = write.resource
        self._set_defaults(write, tree)
        self._track_managed_fields(write, tree, None)
        plugins.admit(resource, tree, None, "create", self._lookup, write.subresource)
        if not write.subresource:
            volcano_webhooks.mutate(resource, tree, self._lookup)
        prepare_create(resource, tree, lookup=self._lookup)
        if resource.storage == _CSR_RESOURCE:
            csr_rules.prepare_create(tree, write.user.info())
        errors: list[FieldError] = [*validate_create(resource, tree)]
        if resource.custom:
            errors += custom_type(resource).faults(tree)
        elif resource.storage == CRD_RESOURCE:
            errors += _validate_crd(tree)
        self._raise_invalid(write, tree, errors)
        if resource.custom:
            custom_type(resource).default(tree)  # again: the status of the request was removed
        if not write.subresource:
            volcano_webhooks.validate(resource, tree, None, "CREATE", self._lookup)
        write.warnings.extend(warnings_for(resource, tree))
        write.warnings.extend(plugins.validate(resource, tree, None, "create", self._lookup, write.subresource))
        if resource.storage == CRD_RESOURCE:
            self._accept_crd_names(write, tree, None)

    def prepare_update(self, write: WriteRequest, tree: Tree, old: Tree) -> None:
        resource, part = write.resource, write.subresource
        self._set_defaults(write, tree)
        self._track_managed_fields(write, tree, old)
        plugins.admit(resource, tree, old, "update", self._lookup, part)
        if resource.storage == _CSR_RESOURCE:
            csr_rules.prepare_update(tree, old, part, timestamp(self._clock.now()))
        else:
            prepare_update(resource, tree, old, part, lookup=self._lookup)
        errors: list[FieldError] = [*validate_update(resource, tree, old, part)]
        if resource.custom:
            errors += custom_type(resource).faults(tree, old, subresource=part)
        elif resource.storage == CRD_RESOURCE and not part:
            errors += _validate_crd(tree, old)
        self._raise_invalid(write, tree, errors)
        if not part:
            volcano_webhooks.validate(resource, tree, old, "UPDATE", self._lookup)
        if part in ("", "scale"):
            write.warnings.extend(warnings_for(resource, tree, old))
        write.warnings.extend(plugins.validate(resource, tree, old, "update", self._lookup, part))
        if resource.storage == CRD_RESOURCE and not part:
            self._accept_crd_names(write, tree, old)

    def check_delete(self, write: WriteRequest, tree: Tree) -> None:
        plugins.admit(write.resource, None, tree, "delete", self._lookup, write.subresource)
        volcano_webhooks.validate(write.resource, None, tree, "DELETE", self._lookup)

    def _set_defaults(self, write: WriteRequest, tree: Tree) -> None:
        if write.resource.storage == CRD_RESOURCE:
            from bayplan.apiserver.schema.crd import definitions

            definitions.set_crd_defaults(tree)
        elif not write.resource.custom:  # decoding has set the defaults of its schema
            set_defaults(write.resource, tree)

    def _track_managed_fields(self, write: WriteRequest, tree: Tree, old: Tree | None) -> None:
        if write.fields_tracked:
            return
        resource, before, after = write.resource, old, tree
        convert = converter(resource)
        if convert is not None and write.request_version is not None:
            resource = write.request_version
            before = convert(old, resource.api_version)[0] if old is not None else None
            after = convert(tree, resource.api_version)[0]
        fields = track(
            before,
            after,
            manager=write.manager,
            api_version=resource.api_version,
            type=managed_type(resource),
            now=timestamp(self._clock.now()),
            subresource=write.subresource,
            convert=convert,
        )
        if fields:
            tree["metadata"]["managedFields"] = fields
        else:
            tree["metadata"].pop("managedFields", None)

    def _accept_crd_names(self, write: WriteRequest, tree: Tree, old: Tree | None) -> None:
        """Accept a definition with its first write, unless its names are taken."""
        from bayplan.apiserver.schema.crd import definitions

        tree["status"] = definitions.initial_status(tree, old)
        before = dict(tree)
        name = tree["metadata"]["name"]
        other_definitions = [each for each in self._lookup.list(write.resource) if each["metadata"]["name"] != name]
        tree["status"] = definitions.accept_names(tree, other_definitions, timestamp(self._clock.now()))
        write.warnings.extend(definitions.crd_warnings(tree, old))
        tree["metadata"]["managedFields"] = track(
            before,
            tree,
            manager="kube-apiserver",
            api_version=write.resource.api_version,
            type=managed_type(write.resource),
            now=timestamp(self._clock.now()),
            subresource="status",
        )

    @staticmethod
    def _raise_invalid(write: WriteRequest, tree: Tree, errors: Sequence[FieldError]) -> None:
        if errors:
            raise api_errors.invalid(
                write.resource.kind, write.resource.group, tree["metadata"].get("name", ""), errors
            )
