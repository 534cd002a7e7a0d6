"""Lock of an election: one `coordination.k8s.io/v1` Lease, written with its resourceVersion.

Used by `LeaderElector` only. Fields and texts are client-go's: Bayplan and kube-scheduler can compete for one lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from bayplan.client.client import Client
from bayplan.client.resources import LEASES


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionRecord:
    """client-go's LeaderElectionRecord: the holder, its times and the number of transitions."""

    holder: str = ""
    duration_s: int = 0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0


class LeaseLock:
    """One Lease object and its last known version."""

    def __init__(
        self, client: Client, *, namespace: str, name: str, annotations: Mapping[str, str] | None = None
    ) -> None:
        """`annotations`: annotations of the holder, written with every record that makes this process the holder."""
        self._client = client
        self._own_annotations = dict(annotations or {})
        self._namespace = namespace
        self._name = name
        self._tree: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"{self._namespace}/{self._name}"

    @property
    def meta(self) -> dict[str, Any]:
        """Metadata of the Lease as last seen, for events about it."""
        meta: dict[str, Any] = self._tree.get("metadata", {})
        return meta

    async def get(self) -> LeaderElectionRecord:
        self._tree = await self._client.get_raw(LEASES, self._namespace, self._name)
        return _record(self._tree.get("spec") or {})

    async def create(self, record: LeaderElectionRecord) -> None:
        tree = {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"namespace": self._namespace, "name": self._name, **self._annotations({}, record)},
            "spec": _spec(record),
        }
        self._tree = msgspec.json.decode(await self._client.create(LEASES, tree, namespace=self._namespace))

    async def update(self, record: LeaderElectionRecord) -> None:
        """Write the record over the last known version. Raises `Conflict` when another process was faster."""
        meta = {**self.meta, **self._annotations(self.meta, record)}
        self._tree = await self._client.update(LEASES, {**self._tree, "metadata": meta, "spec": _spec(record)})

    def _annotations(self, meta: Mapping[str, Any], record: LeaderElectionRecord) -> dict[str, Any]:
        """Annotations with the holder's own ones; nothing when the record has no holder."""
        if not self._own_annotations or not record.holder:
            return {}
        return {"annotations": {**(meta.get("annotations") or {}), **self._own_annotations}}


def _record(spec: dict[str, Any]) -> LeaderElectionRecord:
    return LeaderElectionRecord(
        holder=spec.get("holderIdentity") or "",
        duration_s=spec.get("leaseDurationSeconds") or 0,
        acquired=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        transitions=spec.get("leaseTransitions") or 0,
    )


def _spec(record: LeaderElectionRecord) -> dict[str, Any]:
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.duration_s,
        "acquireTime": record.acquired or None,
        "renewTime": record.renewed or None,
        "leaseTransitions": record.transitions,
    }
