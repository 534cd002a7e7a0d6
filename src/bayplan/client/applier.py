"""Server-side apply of manifests: creates missing objects and changes the ones that differ.

Called once per manifest, by the command line and by programs. Without `force`, fields that another field manager owns
are not changed. Cost: one read and one patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from bayplan.client.client import APPLY_PATCH, Client
from bayplan.client.discovery.rest_mapper import KindMapping, RestMapper, discover_rest_mapper
from bayplan.client.resources import query
from bayplan.clock import LoopClock
from bayplan.errors import Conflict, NotFound, ObjectError

FIELD_MANAGER = "bayplan"
_DISCOVERY_WAIT_S = 10.0
_DISCOVERY_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True, repr=False)
class ApplyResult:
    kind: KindMapping
    namespace: str
    name: str
    outcome: str
    """`created`, `configured` or `unchanged`."""
    tree: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.kind.matches_name(self.name)} {self.outcome}"

    def __repr__(self) -> str:
        return f"<{self}>"


class Applier:
    """Applies manifests to one server, one after another."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str = "",
        enforce_namespace: bool = False,
        force: bool = False,
        dry_run: bool = False,
        manager: str = "",
    ) -> None:
        """`namespace`: for manifests without one; the default is the namespace of the client's context.

        `enforce_namespace`: refuse manifests with another namespace, as `kubectl --namespace` does."""
        self._client = client
        self._clock: LoopClock = client.clock
        self._namespace = namespace or client.target.namespace
        self._enforce_namespace = enforce_namespace
        self._force = force
        self._dry_run = dry_run
        self._manager = manager or FIELD_MANAGER
        self._rest_mapper: RestMapper | None = None
        self._applied_definitions = False

    async def apply(self, tree: Mapping[str, Any], place: str = "the manifest") -> ApplyResult:
        kind, namespace, name = await self.locate(tree, place)
        path = kind.resource.path(namespace, name)
        before = await self._get(path)
        options = query(
            {
                "fieldManager": self._manager,
                "force": True if self._force else None,
                "dryRun": "All" if self._dry_run else None,
            }
        )
        try:
            answer = await self._client.transport.request(
                "PATCH", path + options, msgspec.json.encode(tree), content_type=APPLY_PATCH
            )
        except Conflict as fault:
            message = " ".join(fault.details.split())
            message = f"{message}; another field manager owns these fields: remove them, or use --force-conflicts"
            raise Conflict(f"{place}: {message}", code=fault.code, reason=fault.reason, details=message) from None
        self._applied_definitions = self._applied_definitions or kind.resource.plural == "customresourcedefinitions"
        after: dict[str, Any] = msgspec.json.decode(answer.body)
        outcome = (
            "created"
            if before is None
            else "unchanged"
            if _without_managed_fields(before) == _without_managed_fields(after)
            else "configured"
        )
        return ApplyResult(kind, namespace, name, outcome, after)

    async def locate(self, tree: Mapping[str, Any], place: str = "the manifest") -> tuple[KindMapping, str, str]:
        """Return the kind, the namespace and the name of a manifest."""
        api_version, word = str(tree.get("apiVersion") or ""), str(tree.get("kind") or "")
        meta = tree.get("metadata")
        name = meta.get("name") if isinstance(meta, Mapping) else None
        if not api_version or not word:
            raise ObjectError(f"{place} has no apiVersion or no kind; add both")
        if not isinstance(meta, Mapping) or not isinstance(name, str) or not name:
            raise ObjectError(f"{place}: the {word} has no metadata.name; add one")
        kind = await self._kind(api_version, word, place)
        if not kind.resource.namespaced:
            return kind, "", name
        namespace = str(meta.get("namespace") or self._namespace)
        if self._enforce_namespace and namespace != self._namespace:
            raise ObjectError(
                f'{place}: {word} {name}: the namespace from the provided object "{namespace}" does not match the '
                f"namespace \"{self._namespace}\". You must pass '--namespace={namespace}' to perform this operation."
            )
        return kind, namespace, name

    async def _kind(self, api_version: str, word: str, place: str) -> KindMapping:
        """Find the kind of a manifest. A definition that was just applied may take a moment to be served."""
        deadline = self._clock.monotonic_s() + (_DISCOVERY_WAIT_S if self._applied_definitions else 0.0)
        while True:
            if self._rest_mapper is None:
                self._rest_mapper = await discover_rest_mapper(self._client.transport)
            kind = self._rest_mapper.kind_of_manifest(api_version, word)
            if kind is not None:
                return kind
            self._rest_mapper = None
            if self._clock.monotonic_s() >= deadline:
                raise ObjectError(
                    f'{place}: the server has no kind "{word}" in {api_version}; apply its definition first, '
                    "or correct apiVersion and kind"
                )
            await self._clock.sleep(_DISCOVERY_INTERVAL_S)

    async def _get(self, path: str) -> dict[str, Any] | None:
        try:
            answer = await self._client.transport.request("GET", path)
        except NotFound:
            return None
        tree: dict[str, Any] = msgspec.json.decode(answer.body)
        return tree


def _without_managed_fields(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Remove managedFields and resourceVersion. At the second apply of a manifest that sets no field, the server only
    records the owner of the fields that it defaulted."""
    server_fields = ("managedFields", "resourceVersion")
    return {**tree, "metadata": {key: value for key, value in tree["metadata"].items() if key not in server_fields}}
