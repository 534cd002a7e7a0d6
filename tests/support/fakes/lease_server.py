"""A fake server for the Leases of leader election."""

from __future__ import annotations

from typing import Any

from support.fakes.http_server import Reply, Request, ServerAnswer, status

PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


class LeaseServer:
    """One Lease of an API server, with optimistic concurrency; requests can be made to fail."""

    def __init__(self, name: str = "kube-scheduler") -> None:
        self.name = name
        self.lease: dict[str, Any] | None = None
        self.version = 100
        self.fails: ServerAnswer | None = None
        self.writes: list[str] = []
        self.asked: list[str] = []
        self.renewals = 0

    def __call__(self, request: Request) -> ServerAnswer:
        self.asked.append(request.method)
        if self.fails is not None:
            return self.fails
        if request.method == "POST":
            assert request.path == PATH
            return self._store(request.json) if self.lease is None else status(409, "AlreadyExists")
        assert request.path == f"{PATH}/{self.name}"
        if self.lease is None:
            return status(404, "NotFound")
        if request.method == "GET":
            return Reply(200, self.lease)
        if request.json["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            return status(409, "Conflict", "modified")
        return self._store(request.json)

    def _store(self, lease: dict[str, Any]) -> Reply:
        self.version += 1
        self.lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": str(self.version)}}
        self.writes.append(lease["spec"]["holderIdentity"])
        return Reply(200, self.lease)

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec

    def steal(self, who: str) -> None:
        """Another candidate takes or renews the lease, whether it has expired or not."""
        before = self.lease or lease_held_by(who, name=self.name)
        self.renewals += 1
        spec = {**before["spec"], "holderIdentity": who, "renewTime": f"{self.renewals} by {who}"}
        self._store({**before, "spec": spec})


def lease_held_by(by: str, renewed: str = "x", name: str = "kube-scheduler") -> dict[str, Any]:
    spec = {
        "holderIdentity": by,
        "leaseDurationSeconds": 15,
        "acquireTime": "then",
        "renewTime": renewed,
        "leaseTransitions": 4,
    }
    return {"metadata": {"name": name, "namespace": "kube-system", "resourceVersion": "7"}, "spec": spec}
