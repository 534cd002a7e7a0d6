"""Creates the initial state on an API server and removes it again, with as many concurrent requests as the server
takes.

Used before and after each contender, never during a measurement. Nodes, volumes and classes are created once. Pods and
their device claims are created again for every contender, because placing changes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from bayplan.client import Client
from bayplan.client.client import MERGE_PATCH
from bayplan.errors import AlreadyExists, NotFound, TimedOut
from bayplan.objects.resource import ResourceClaim
from benchmarks.live.initial_state import InitialState
from benchmarks.perf.templates import Raw

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 48
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
_NOW = b'{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0}'
_MADE_BY_SERVER = ("default", "kube-system", "kube-public", "kube-node-lease")


class ClusterSetup:
    """Creates one initial state on one API server."""

    def __init__(self, client: Client, initial: InitialState) -> None:
        self._client = client
        self._initial = initial

    # objects that stay

    async def put_up(self) -> None:
        """Create everything except pods and their claims."""
        trees = self._initial.trees
        spaces = {tree["metadata"].get("namespace", "") for tree in (*trees, *self._initial.pods)}
        existing = {tree["metadata"]["name"] for tree in trees if tree["kind"] == "Namespace"}
        missing = [_namespace(name) for name in sorted(spaces - existing - {"", *_MADE_BY_SERVER})]
        await self.create_all([tree for tree in trees if tree["kind"] == "Namespace"] + missing)
        await self.create_all([tree for tree in trees if tree["kind"] != "Namespace"])

    # objects that are created for each contender

    async def fill(self) -> dict[str, str]:
        """Create the pods, those of earlier operations on their nodes, and their claims. Returns the uid by pod."""
        pods = self._initial.pods
        made = await self.create_all(pods)
        uids = {f"{each.namespace}/{each.name}": each.uid for each in made}
        await _many(self._claim, [(key, uids[key]) for key in self._initial.claims])
        return uids

    async def clear(self) -> None:
        """Delete the pods, the claims, and everything that appeared while a contender ran."""
        for space in sorted({tree["metadata"]["namespace"] for tree in self._initial.pods} | self._churned()):
            await self._clear_pods(space)
            if self._initial.claims:
                await self._clear_claims(space)
        nodes = {tree["metadata"]["name"] for tree in self._initial.trees if tree["kind"] == "Node"}
        for name in await self._names("/api/v1/nodes"):
            if name not in nodes:
                await self._ask("DELETE", f"/api/v1/nodes/{name}", _NOW)

    # single objects

    async def create_all(self, trees: Sequence[Raw]) -> list[Made]:
        return await _many(self.create, trees)

    async def create(self, tree: Raw) -> Made:
        answer = await self._client.transport.request("POST", path_of(tree), msgspec.json.encode(tree))
        return msgspec.json.decode(answer.body, type=_Object).metadata

    async def delete(self, tree: Raw) -> None:
        await self._ask("DELETE", f"{path_of(tree)}/{tree['metadata']['name']}", _NOW)

    async def delete_pod(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        await self._ask("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")

    async def _claim(self, owner: tuple[str, str]) -> None:
        """Create the claims of a pod, as a controller does, and write their names into the pod's status."""
        key, uid = owner
        namespace, _, name = key.partition("/")
        for claim in self._initial.claims[key]:
            path = _CLAIMS.format(namespace)
            try:
                await self._client.transport.request("POST", path, msgspec.json.encode(_owned(claim, name, uid)))
            except AlreadyExists:  # two pods share one claim
                continue
            if claim.status.allocation is not None:
                status = {"status": msgspec.to_builtins(claim.status)}
                await self._ask("PATCH", f"{path}/{claim.name}/status", msgspec.json.encode(status))
        statuses = [{"name": own, "resourceClaimName": its} for own, its in self._initial.claim_names[key].items()]
        status = {"status": {"resourceClaimStatuses": statuses}}
        await self._ask("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", msgspec.json.encode(status))

    async def _clear_pods(self, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods"
        while await self._names(path, limit=1):
            with suppress(TimedOut):  # for thousands of pods; the request is repeated for the rest
                await self._ask("DELETE", path, _NOW)
            await _many(lambda name: self._unhold(f"{path}/{name}"), await self._names(path))

    async def _clear_claims(self, namespace: str) -> None:
        path = _CLAIMS.format(namespace)
        names = await self._names(path)
        await self._ask("DELETE", path, _NOW)
        await _many(lambda name: self._unhold(f"{path}/{name}"), names)

    async def _unhold(self, path: str) -> None:
        await self._ask("PATCH", path, b'{"metadata":{"finalizers":null}}')

    def _churned(self) -> set[str]:
        return {each.namespace for each in self._initial.beside if hasattr(each, "namespace")}

    async def _names(self, path: str, *, limit: int = 0) -> list[str]:
        answer = await self._client.transport.request("GET", path + (f"?limit={limit}" if limit else ""))
        return [each.metadata.name for each in msgspec.json.decode(answer.body, type=_Objects).items]

    async def _ask(self, method: str, path: str, body: bytes = b"") -> None:
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        try:
            await self._client.transport.request(method, path, body, content_type=kind)
        except NotFound:
            return


class Made(msgspec.Struct):
    name: str
    uid: str = ""
    namespace: str = ""


class _Object(msgspec.Struct):
    metadata: Made


class _Objects(msgspec.Struct):
    items: list[_Object] = []


def path_of(tree: Mapping[str, Any]) -> str:
    """The path of the collection of this kind."""
    version, kind = tree["apiVersion"], tree["kind"].lower()
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    namespace = tree["metadata"].get("namespace")
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"{base}{inside}/{kind}{'es' if kind.endswith('s') else 's'}"


def _namespace(name: str) -> Raw:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _owned(claim: ResourceClaim, pod: str, uid: str) -> Raw:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "ownerReferences": [owner]},
        "spec": msgspec.to_builtins(claim.spec),
    }


async def _many(call: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """All results in order, with some concurrency."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(item: T) -> R:
        async with room:
            return await call(item)

    return await asyncio.gather(*(one(item) for item in items))
