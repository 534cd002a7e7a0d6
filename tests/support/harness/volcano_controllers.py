"""Volcano's controllers in one namespace of any API server, with kubelets and a fake scheduler.

The fake scheduler admits every pod group and binds every pod that has one to the next node, at once, because only the
controllers are under test. A pod ends when the test ends it, or by the kubelet's annotations.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, ParamSpec, TypeVar

import msgspec

from bayplan.client import CORE_EVENTS, MERGE_PATCH, Client, ConnectionConfig, GroupVersionResource, Informer, Selection
from bayplan.clock import SystemClock
from bayplan.controllers import ControllerManager, FakeKubelet, NodeTemplate
from bayplan.controllers.core.api_types import PODS, PodFields, UntypedObject
from bayplan.controllers.volcano import VOLCANO_CONTROLLER_NAMES, VolcanoControllers
from bayplan.controllers.volcano.resources import POD_GROUPS, QUEUES, VC_JOBS
from bayplan.errors import AlreadyExists, ApiError, NotFound
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.constants import GROUP_NAME
from bayplan.objects.volcano.definitions import definitions_to_install, volcano_definitions
from support.harness.deadlines import DEADLINE_S, TEST_TIMEOUT_S

Tree = dict[str, Any]
P = ParamSpec("P")
R = TypeVar("R")
DEFINITIONS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
NAMESPACES = GroupVersionResource("", "v1", "namespaces", namespaced=False)
_CAPACITY = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}


def async_test(test: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Run an async test."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return asyncio.run(asyncio.wait_for(test(*args, **kwargs), TEST_TIMEOUT_S))

    return run


class VolcanoControllersHarness:
    """One namespace, with administrator rights."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def make(self, resource: GroupVersionResource, tree: Tree) -> Tree:
        space = self.namespace if resource.namespaced else ""
        kind = {"apiVersion": resource.api_version, "kind": resource.kind.name} if resource.kind is not None else {}
        found: Tree = msgspec.json.decode(await self.client.create(resource, {**kind, **tree}, namespace=space))
        return found

    async def get(self, resource: GroupVersionResource, name: str) -> Tree:
        return await self.client.get_raw(resource, self.namespace if resource.namespaced else "", name)

    async def list(self, resource: GroupVersionResource) -> list[Tree]:
        answer = await self.client.transport.request(
            "GET", resource.path(self.namespace if resource.namespaced else "")
        )
        found: list[Tree] = msgspec.json.decode(answer.body)["items"]
        return found

    async def until(self, resource: GroupVersionResource, name: str, so: Callable[[Tree], object]) -> Tree:
        """Wait until the object fulfils a condition; return it."""
        last: Tree = {}
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    with suppress(NotFound):
                        last = await self.get(resource, name)
                        if so(last):
                            return last
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pods = {each["metadata"]["name"]: each["status"].get("phase") for each in await self.list(PODS)}
            status = last.get("status")
            raise AssertionError(f"{resource} {name} did not become so: {status}; pods {pods}") from None

    async def gone(self, resource: GroupVersionResource, name: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    found = await self.get(resource, name)
                except NotFound:
                    return
                if found["metadata"].get("deletionTimestamp") and resource is not PODS:
                    return  # the garbage collector deletes its dependents
                await asyncio.sleep(0.05)

    async def job(self, name: str, phase: str) -> Tree:
        """Wait until a job has a phase; return it."""
        return await self.until(VC_JOBS, name, lambda job: phase_of(job) == phase)

    async def pods(self, so: Callable[[dict[str, Tree]], object]) -> dict[str, Tree]:
        """Wait until the pods fulfil a condition; return them by name."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    found = {each["metadata"]["name"]: each for each in await self.list(PODS)}
                    if so(found):
                        return found
                    await asyncio.sleep(0.05)
        except TimeoutError:
            phases = {name: pod["status"].get("phase") for name, pod in found.items()}
            raise AssertionError(f"the pods did not become so: {phases}") from None

    async def running(self, *names: str) -> dict[str, Tree]:
        """Wait until the pods run; return them."""
        return await self.pods(lambda pods: all(_phase(pods.get(name)) == "Running" for name in names))

    async def end(self, name: str, *, exit_code: int = 0) -> None:
        """End a pod's only container."""
        phase = "Failed" if exit_code else "Succeeded"
        ended = {"terminated": {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}}
        container = {
            "name": "main",
            "image": "busybox",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": ended,
        }
        status = {"phase": phase, "containerStatuses": [container]}
        await self.client.patch(PODS, {"status": status}, namespace=self.namespace, name=name, subresource="status")

    async def events(self, about: str, reason: str) -> list[str]:
        """Wait for events about an object; return their notes."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                notes = [
                    each["message"]
                    for each in await self.list(CORE_EVENTS)
                    if each["involvedObject"]["name"] == about and each["reason"] == reason
                ]
                if notes:
                    return notes
                await asyncio.sleep(0.05)


def phase_of(item: Tree) -> str:
    return str(((item.get("status") or {}).get("state") or {}).get("phase") or "")


def _phase(pod: Tree | None) -> str:
    return str((pod or {}).get("status", {}).get("phase") or "")


class FakeScheduler:
    """Admits pod groups and binds pods of one namespace."""

    def __init__(self, client: Client, namespace: str, nodes: Collection[str]) -> None:
        self._client = client
        self._nodes = itertools.cycle(nodes)
        self._work: asyncio.Queue[KubeObject] = asyncio.Queue()
        mine = Selection(namespace=namespace)
        self._informers: list[Informer] = [
            client.informer(resource, self._on_change, selection=mine) for resource in (POD_GROUPS, PODS)
        ]

    def _on_change(self, _: KubeObject | None, new: KubeObject | None) -> None:
        if new is not None:
            self._work.put_nowait(new)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for each in self._informers:
                group.create_task(each.run())
            group.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            item = await self._work.get()
            try:
                await self._one(item)
            except NotFound:
                continue
            except ApiError as fault:
                if fault.code != 409:
                    self._work.put_nowait(item)
                    await asyncio.sleep(0.05)

    async def _one(self, item: KubeObject) -> None:
        if isinstance(item, PodFields):
            waits = item.spec.scheduler_name == "volcano" and not item.spec.node_name and not item.terminating
            if waits and GROUP_NAME in item.metadata.annotations:
                await self._client.bind(item.namespace, item.name, next(self._nodes), uid=item.uid)
        elif isinstance(item, UntypedObject) and (item.status.get("phase") or "Pending") == "Pending":
            patch = {"metadata": {"uid": item.uid}, "status": {"phase": "Inqueue"}}
            await self._client.patch(POD_GROUPS, patch, namespace=item.namespace, name=item.name, kind=MERGE_PATCH)


async def install_volcano_crds(client: Client) -> None:
    """Install Volcano's CRDs, and wait until the server serves them."""
    installed = []
    for definition in volcano_definitions():
        with suppress(NotFound):
            installed.append(await client.get_raw(DEFINITIONS, "", definition["metadata"]["name"]))
    for definition in definitions_to_install(installed):
        with suppress(AlreadyExists):
            await client.create(DEFINITIONS, definition)
    async with asyncio.timeout(DEADLINE_S):
        for resource in (VC_JOBS, POD_GROUPS, QUEUES):
            while True:
                with suppress(NotFound):
                    await client.transport.request("GET", resource.path())
                    break
                await asyncio.sleep(0.05)


@asynccontextmanager
async def run_controllers(
    target: ConnectionConfig,
    namespace: str,
    *,
    through: ConnectionConfig | None = None,
    only: Collection[str] = VOLCANO_CONTROLLER_NAMES,
    nodes: int = 2,
    stand_in: bool = True,
    workloads: Collection[str] = (),
    labels: Mapping[str, str] | None = None,
) -> AsyncIterator[VolcanoControllersHarness]:
    """`through`: how the controllers reach the server, if not directly.

    `workloads`: further controllers of Kubernetes to run. `labels`: of the nodes.
    """
    options: Tree = {"clock": SystemClock(), "qps": -1.0}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(target, chance=random.Random(0), **options))
        working = await stack.enter_async_context(Client(through or target, chance=random.Random(0), **options))
        await install_volcano_crds(client)
        with suppress(AlreadyExists):
            await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        controllers = VolcanoControllers(working, only=only)
        template = {"metadata": {"name": f"{namespace[:40]}-node", "labels": dict(labels or {})}}
        kubelet = FakeKubelet(
            client, count=nodes, template=NodeTemplate({**template, "status": {"capacity": _CAPACITY}})
        )
        jobs = [controllers.run(), kubelet.run()]
        if stand_in:
            jobs.append(FakeScheduler(client, namespace, list(kubelet.nodes.names)).run())
        if workloads:
            jobs.append(ControllerManager(working, only=workloads).run())
        tasks = [asyncio.create_task(each) for each in jobs]
        try:
            async with asyncio.timeout(DEADLINE_S):
                await controllers.wait_synced()
                await kubelet.ready()
            here = VolcanoControllersHarness(client, namespace)
            await here.until(QUEUES, "default", lambda queue: queue.get("status", {}).get("state") == "Open")
            yield here
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await kubelet.nodes.remove()
