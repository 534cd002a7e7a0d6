"""Through which hands does an object go between reading and storing, and in which order?

The order is upstream's: defaults belong to reading; the writer's fields are tracked before admission adds its own, so
that nobody owns those; then the kind's own preparation, and validation of the result. Cost: the sum of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.apiserver import api_errors
from bayplan.apiserver.admission import plugins, volcano_webhooks
from bayplan.apiserver.defaulting.kind_defaults import fill
from bayplan.apiserver.requests import Writing
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.resources.lookup import Lookup
from bayplan.apiserver.schema.body_decoding import converter, custom_type, managed_type
from bayplan.apiserver.schema.managed_fields.server_side_apply import track
from bayplan.apiserver.storage.crd_registry import DEFINITIONS
from bayplan.apiserver.validation import csr_rules
from bayplan.apiserver.validation.kind_validators import on_create, on_update
from bayplan.apiserver.warnings import warnings_for
from bayplan.apiserver.writes.metadata import timestamp
from bayplan.apiserver.writes.strategies import prepare_create, prepare_update
from bayplan.clock import Clock

_REQUESTS = ("certificates.k8s.io", "certificatesigningrequests")


def _faults_of_definition(tree: Tree, old: Tree | None = None) -> Sequence[api_errors.Fault]:
    from bayplan.apiserver.schema.crd import (
        definitions,  # with it comes a language for rules: a plain start can spare it
    )

    return definitions.faults(tree, old)


class Rulebook:
    """The rules of one cluster, on the objects that it has."""

    def __init__(self, lookup: Lookup, clock: Clock) -> None:
        self._lookup = lookup
        self._clock = clock

    def created(self, write: Writing, tree: Tree) -> None:
        """Make a new object ready to be stored, or refuse it."""
        resource = write.resource
        self._fill(write, tree)
        self._track(write, tree, None)
        plugins.admit(resource, tree, None, "create", self._lookup, write.subresource)
        if not write.subresource:
            volcano_webhooks.mutate(resource, tree, self._lookup)
        prepare_create(resource, tree, lookup=self._lookup)
        if resource.storage == _REQUESTS:
            csr_rules.begin_request(tree, write.user.info())
        faults: list[api_errors.Fault] = [*on_create(resource, tree)]
        if resource.custom:
            faults += custom_type(resource).faults(tree)
        elif resource.storage == DEFINITIONS:
            faults += _faults_of_definition(tree)
        self._refuse(write, tree, faults)
        if resource.custom:
            custom_type(resource).default(tree)  # once more: the status that its maker gave it was taken away
        if not write.subresource:
            volcano_webhooks.judge(resource, tree, None, "CREATE", self._lookup)
        write.warnings.extend(warnings_for(resource, tree))
        write.warnings.extend(plugins.check(resource, tree, None, "create", self._lookup, write.subresource))
        if resource.storage == DEFINITIONS:
            self._establish(write, tree, None)

    def updated(self, write: Writing, tree: Tree, old: Tree) -> None:
        """The same for a new state of an object that is there."""
        resource, part = write.resource, write.subresource
        self._fill(write, tree)
        self._track(write, tree, old)
        plugins.admit(resource, tree, old, "update", self._lookup, part)
        if resource.storage == _REQUESTS:
            csr_rules.change_request(tree, old, part, timestamp(self._clock.now()))
        else:
            prepare_update(resource, tree, old, part, lookup=self._lookup)
        faults: list[api_errors.Fault] = [*on_update(resource, tree, old, part)]
        if resource.custom:
            faults += custom_type(resource).faults(tree, old, subresource=part)
        elif resource.storage == DEFINITIONS and not part:
            faults += _faults_of_definition(tree, old)
        self._refuse(write, tree, faults)
        if not part:
            volcano_webhooks.judge(resource, tree, old, "UPDATE", self._lookup)
        if part in ("", "scale"):
            write.warnings.extend(warnings_for(resource, tree, old))
        write.warnings.extend(plugins.check(resource, tree, old, "update", self._lookup, part))
        if resource.storage == DEFINITIONS and not part:
            self._establish(write, tree, old)

    def deleted(self, write: Writing, tree: Tree) -> None:
        """Refuse the deletion of what may not go."""
        plugins.admit(write.resource, None, tree, "delete", self._lookup, write.subresource)
        volcano_webhooks.judge(write.resource, None, tree, "DELETE", self._lookup)

    def _fill(self, write: Writing, tree: Tree) -> None:
        if write.resource.storage == DEFINITIONS:
            from bayplan.apiserver.schema.crd import definitions

            definitions.prepare(tree)
        elif not write.resource.custom:  # those have the defaults of their schema from being read
            fill(write.resource, tree)

    def _track(self, write: Writing, tree: Tree, old: Tree | None) -> None:
        """Note down who manages what from now on."""
        if write.tracked:
            return
        resource, before, after = write.resource, old, tree
        convert = converter(resource)
        if convert is not None and write.sent_as is not None:
            resource = write.sent_as
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

    def _establish(self, write: Writing, tree: Tree, old: Tree | None) -> None:
        """A definition is in force as soon as it is stored, unless its names are taken."""
        from bayplan.apiserver.schema.crd import definitions

        tree["status"] = definitions.initial_status(tree, old)
        before = dict(tree)
        name = tree["metadata"]["name"]
        others = [each for each in self._lookup.list(write.resource) if each["metadata"]["name"] != name]
        tree["status"] = definitions.accepted(tree, others, timestamp(self._clock.now()))
        write.warnings.extend(definitions.warnings(tree, old))
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
    def _refuse(write: Writing, tree: Tree, faults: Sequence[api_errors.Fault]) -> None:
        if faults:
            raise api_errors.invalid(
                write.resource.kind, write.resource.group, tree["metadata"].get("name", ""), faults
            )
