"""A whole cluster on one event loop: the embedded API server, the controllers, fake nodes, and the scheduler.

async with run_controllers(tmp_path, nodes=3) as world:
    await world.make(DEPLOYMENTS, {...})
    await world.until(lambda: ...)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from bayplan.app import configured, known_plugins, scheduler_process
from bayplan.client import MERGE_PATCH, Client, GroupVersionResource
from bayplan.clock import LoopClock, ManualClock
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.serving_flags import ProcessOptions, ServingFlags
from bayplan.controllers import CLEANUP_CONTROLLERS, ControllerManager, FakeKubelet, NodePool, PodBehavior, nodes_of
from bayplan.controllers.core.api_types import PODS, Tree
from bayplan.controllers.core.shared_informers import SharedIndexInformer
from bayplan.errors import NotFound
from support.harness.deadlines import DEADLINE_S
from support.harness.embedded_cluster import EmbeddedClusterClient, run_embedded_cluster

SHORT_BACKOFF_CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {qps: 5000, burst: 10000}
"""

NO_SERVING = ProcessOptions(settings=BayplanSettings(watchdog_seconds=0), serving=ServingFlags(secure_port=0))
"""No metrics server: many of these clusters run on one machine."""


class ControllersHarness:
    """Requests to the cluster."""

    def __init__(self, served: EmbeddedClusterClient, client: Client, within_s: float = DEADLINE_S) -> None:
        self.served, self.client, self._within_s = served, client, within_s

    async def make(self, resource: GroupVersionResource, body: Tree, *, namespace: str = "default") -> Tree:
        assert resource.kind is not None
        whole = {"apiVersion": resource.api_version, "kind": resource.kind.name, **body}
        answer = await self.client.create(resource, whole, namespace=namespace if resource.namespaced else "")
        found: Tree = msgspec.json.decode(answer)
        return found

    async def get(self, resource: GroupVersionResource, name: str, *, namespace: str = "default") -> Tree:
        return await self.client.get_raw(resource, namespace if resource.namespaced else "", name)

    async def list(self, resource: GroupVersionResource, *, namespace: str = "default", labels: str = "") -> list[Tree]:
        path = resource.path(namespace if resource.namespaced else "")
        answer = await self.client.transport.request("GET", f"{path}?labelSelector={labels}" if labels else path)
        found: list[Tree] = msgspec.json.decode(answer.body)["items"]
        return found

    async def patch(self, resource: GroupVersionResource, name: str, body: Tree, *, sub: str = "") -> None:
        namespace = "default" if resource.namespaced else ""
        await self.client.patch(resource, body, namespace=namespace, name=name, subresource=sub, kind=MERGE_PATCH)

    async def patch_pod(self, name: str, body: Tree) -> None:
        """Write a pod status, as a kubelet does."""
        await self.patch(PODS, name, body, sub="status")

    async def delete(self, resource: GroupVersionResource, name: str, *, propagation: str = "") -> None:
        namespace = "default" if resource.namespaced else ""
        await self.client.delete(resource, namespace=namespace, name=name, propagation=propagation)

    async def until(self, so: Callable[[], Awaitable[Any]], what: str = "it is so") -> Any:
        """Poll the server; return the first result that is true."""
        last: Any = None
        try:
            async with asyncio.timeout(self._within_s):
                while True:
                    with contextlib.suppress(NotFound):
                        last = await so()
                        if last:
                            return last
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pods = [(each["metadata"]["name"], each.get("status")) for each in await self.list(PODS)]
            raise AssertionError(f"not within {self._within_s:g} s: {what}; last {last!r}; pods {pods}") from None

    async def when(self, resource: GroupVersionResource, name: str, so: Callable[[Tree], Any]) -> Tree:
        """Wait until the object fulfils a condition; return it."""

        async def look() -> Tree | None:
            found = await self.get(resource, name)
            try:
                return found if so(found) else None
            except KeyError:
                return None  # not in the informer's cache yet

        try:
            seen: Tree = await self.until(look, f"{resource} {name}")
        except AssertionError as late:
            raise AssertionError(f"{late}; it is {await self.get(resource, name)}") from None
        return seen

    async def pods(self, labels: str = "") -> list[Tree]:
        return await self.list(PODS, labels=labels)

    async def gone(self, resource: GroupVersionResource, name: str) -> None:
        async def look() -> bool:
            try:
                await self.get(resource, name)
            except NotFound:
                return True
            return False

        await self.until(look, f"{resource} {name} is gone")


@contextlib.asynccontextmanager
async def run_controllers(
    folder: Path,
    *,
    nodes: int = 2,
    only: Collection[str] | None = None,
    scheduling: bool = True,
    habits: PodBehavior | None = None,
    cleanup: bool = True,
    clock: LoopClock | None = None,
    within_s: float = DEADLINE_S,
) -> AsyncIterator[ControllersHarness]:
    """Run everything in this process; `only`: these controllers, with `cleanup` also those of `CLEANUP_CONTROLLERS`.

    `clock`: that of controllers and nodes. `within_s`: the timeout of one wait.
    """
    async with (
        run_embedded_cluster(folder) as cluster,
        cluster.client() as client,
        contextlib.AsyncExitStack() as stack,
    ):
        timed = client
        if clock is not None:
            timed = await stack.enter_async_context(Client(client.target, clock=clock, chance=client.chance, qps=-1.0))
        names = {*only, *CLEANUP_CONTROLLERS} if only is not None and cleanup else only
        controllers = ControllerManager(timed, only=names)
        kubelet = FakeKubelet(timed, nodes=nodes_of([NodePool("node", nodes)]), habits=habits or PodBehavior())
        work = [controllers.run(), kubelet.run()]
        if scheduling:
            registry = known_plugins()
            process = scheduler_process(
                configured(SHORT_BACKOFF_CONFIG, registry), registry, client.target, options=NO_SERVING
            )
            work.append((await stack.enter_async_context(process)).run())
        tasks = [asyncio.create_task(each) for each in work]
        try:
            await kubelet.ready()
            await controllers.wait_synced()
            yield ControllersHarness(cluster, client, within_s)
            assert not [task for task in tasks if task.done()], "a part of the cluster has ended"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def advance_until(clock: ManualClock, so: Callable[[], Awaitable[Any]], *, step_s: float = 1.0) -> Any:
    """Advance the clock in small steps until a condition holds."""
    while not (found := await so()):
        clock.advance(step_s)
        await asyncio.sleep(0.01)
    return found


def deliver_event(feed: SharedIndexInformer[Any], old: Any, new: Any) -> None:
    """Deliver a watch event to a controller that has no watch."""
    item, store = new if new is not None else old, feed._informer._store
    if new is None:
        del store[(item.namespace, item.name)]
    else:
        store[(item.namespace, item.name)] = item
    feed._on_change(old, new)
