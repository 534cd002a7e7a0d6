"""A complete cluster for a notebook, a script or a test: `from bayplan import Cluster`.

    async with Cluster(nodes=3) as cluster:
        await cluster.apply(manifest)
        node = await cluster.placed("web-0")

Nodes are Ready and known to the scheduler when the block begins, and everything is removed when it ends. Without an
event loop, `with Cluster() as cluster` runs one in a thread, and `cluster.run(...)` awaits a coroutine on it.
Cost: half a second to import, a tenth to start.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from bayplan.apiserver.embedded import credentials_for
from bayplan.app.batch import BatchSettings
from bayplan.app.cluster import ClusterOptions, InProcessCluster, SchedulerSetup
from bayplan.app.combined import CombinedEngines
from bayplan.batch.config.scheduler_conf import load_conf
from bayplan.client import Applier, ApplyResult, Client, Informer, Selection, resource_of
from bayplan.codec.yaml import read_documents
from bayplan.controllers import NodePool, NodeTemplate, PodBehavior, nodes_of
from bayplan.errors import BayplanError, ObjectError, UsageError
from bayplan.objects.core import Pod
from bayplan.objects.kinds import kind_of
from bayplan.objects.manifests import raw_objects
from bayplan.objects.meta import KubeObject
from bayplan.scheduler.live.run_loop import LiveScheduler
from bayplan.telemetry.decision_text import decision_sentence

T = TypeVar("T")

Nodes = int | str | Sequence[str | Mapping[str, Any]]
Manifest = Mapping[str, Any] | str | Path

DEFAULT_TIMEOUT_S = 30.0


class WaitTimedOut(BayplanError):
    """The expected state was not reached within the timeout."""


class Cluster:
    """An API server, nodes, controllers and a scheduler in this process."""

    def __init__(
        self,
        nodes: Nodes = 3,
        *,
        zones: int = 0,
        config: str | Path | None = None,
        plugins: Sequence[type] = (),
        plugins_dir: str | Path | None = None,
        scheduler: bool = True,
        controllers: bool = True,
        batch: bool | str | Path = False,
        habits: PodBehavior | None = None,
        port: int = 0,
    ) -> None:
        """`nodes`: a number, a pool (`gpu=4:cpu=96,nvidia.com/gpu=8`), or a list of pools and Node manifests.

        `config`: a KubeSchedulerConfiguration, as text or as a `Path`. `plugins`: additional classes that it may
        enable. `batch`: adds Volcano's resource types and the engine for gangs and queues; also a
        volcano-scheduler.conf for it. `habits`: how long pods take to start, run and stop, unless their annotations say
        so."""
        self._manifests = _manifests(nodes, zones)
        self._config = _read_text(config, "config") if config is not None else None
        self._batch = _batch_settings(batch)
        if self._batch is not None and not scheduler:
            raise UsageError("batch=... needs the scheduler; leave out scheduler=False")
        self._plugins = tuple(plugins)
        self._folders = [Path(plugins_dir)] if plugins_dir is not None else []
        self._scheduler, self._controllers = scheduler, controllers
        self._habits = habits or PodBehavior()
        self._port = port
        self._stack: AsyncExitStack | None = None
        self._cluster: InProcessCluster | None = None
        self._client: Client | None = None
        self._kubeconfig: Path | None = None
        self._thread: _LoopThread | None = None

    # Start and stop.

    async def __aenter__(self) -> Cluster:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> Cluster:
        """Start the cluster: the same as entering the block, for cells of a notebook."""
        if self._stack is not None:
            raise UsageError("this cluster is up already; create another Cluster")
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bayplan-")))
            setup = self._setup() if self._scheduler else None
            plan = ClusterOptions(
                credentials=credentials_for(folder, "127.0.0.1"),
                port=self._port,
                nodes=self._manifests,
                pod_lifecycle=self._habits,
                scheduler=setup,
                controllers=self._controllers,
            )
            self._cluster = await stack.enter_async_context(InProcessCluster(plan))
            self._client = await stack.enter_async_context(self._cluster.client())
            self._kubeconfig = folder / "kubeconfig"
            self._cluster.write_kubeconfig(self._kubeconfig, "bayplan")
            await self._cluster.ready()
            self._stack = stack.pop_all()
        return self

    def _setup(self) -> SchedulerSetup:
        return SchedulerSetup.from_text(self._config, self._folders, plugins=self._plugins, batch=self._batch)

    async def stop(self) -> None:
        """Stop the cluster and remove everything that belongs to it."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    def __enter__(self) -> Cluster:
        self._thread = _LoopThread()
        try:
            self._thread.run(self.start())
        except BaseException:
            self._thread.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._thread is not None
        try:
            self._thread.run(self.stop())
        finally:
            self._thread.close()
            self._thread = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine where there is no loop: `cluster.run(cluster.wait_placed("web-0"))`. For `with Cluster()`."""
        if self._thread is None:
            work.close()
            raise UsageError("run() is for `with Cluster() as cluster`; in a coroutine, use await")
        return self._thread.run(work)

    # Properties.

    @property
    def client(self) -> Client:
        """An administrator's client of the API server."""
        self._require_started()
        assert self._client is not None
        return self._client

    @property
    def url(self) -> str:
        """The address of the API server, for kubectl and other clients."""
        return self._require_started().url

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig for other programs, valid as long as the cluster is up."""
        self._require_started()
        assert self._kubeconfig is not None
        return self._kubeconfig

    def why(self, pod: str, namespace: str = "default") -> str:
        """Why a pod is on its node, or pending, according to the latest decision."""
        cluster = self._require_started()
        if cluster.scheduler is None:
            raise UsageError("this cluster has no scheduler to explain decisions; leave out scheduler=False")
        live = cluster.scheduler.engine_loop
        live = live.pods if isinstance(live, CombinedEngines) else live
        assert isinstance(live, LiveScheduler), "a complete cluster has the pod engine"
        record = live.engine.records.latest(f"{namespace}/{pod}")
        return decision_sentence(record) if record is not None else "the scheduler has not decided about it"

    # Operations.

    async def apply(self, *manifests: Manifest, namespace: str = "") -> list[ApplyResult]:
        """Create or update objects from manifests: mappings, YAML or JSON texts, or paths of files and folders."""
        applier = Applier(self.client, namespace=namespace)
        return [await applier.apply(tree, place) for each in manifests for tree, place in _manifest_trees(each)]

    async def pods(self, namespace: str = "default", *, selector: str = "") -> list[Pod]:
        """The pods of a namespace, by name."""
        listed = await self.client.list(_PODS, Selection(namespace=namespace, label_selector=selector))
        return sorted((each for each in listed.items if isinstance(each, Pod)), key=lambda pod: pod.name)

    async def wait_placed(self, pod: str, namespace: str = "default", *, timeout_s: float = DEFAULT_TIMEOUT_S) -> str:
        """Wait until a pod has a node, and return the node."""
        found = await self.wait_for(
            lambda each: bool(each.spec.node_name), pod, namespace, what="have a node", timeout_s=timeout_s
        )
        return found.spec.node_name

    async def wait_unschedulable(
        self, pod: str, namespace: str = "default", *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> str:
        """Wait until the scheduler reports a pod unschedulable, and return the message."""
        found = await self.wait_for(
            lambda each: bool(_unschedulable_message(each)),
            pod,
            namespace,
            what="become unschedulable",
            timeout_s=timeout_s,
        )
        return _unschedulable_message(found)

    async def wait_for(
        self,
        condition: Callable[[Pod], bool],
        pod: str,
        namespace: str = "default",
        *,
        what: str = "meet the condition",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Pod:
        """Return the pod as soon as the condition holds; raise `WaitTimedOut` after the timeout."""
        last: list[Pod] = []
        try:
            async with asyncio.timeout(timeout_s), self._watch_pod(pod, namespace) as changes:
                while True:
                    last = [await changes.get()]
                    if condition(last[0]):
                        return last[0]
        except TimeoutError:
            state = (
                f"it is {last[0].status.phase}: {_unschedulable_message(last[0]) or 'without a message'}"
                if last
                else "it does not exist"
            )
            raise WaitTimedOut(f"the pod {namespace}/{pod} did not {what} within {timeout_s:g} s; {state}") from None

    @asynccontextmanager
    async def _watch_pod(self, pod: str, namespace: str) -> AsyncIterator[asyncio.Queue[Pod]]:
        changes: asyncio.Queue[Pod] = asyncio.Queue()

        def on_event(_: KubeObject | None, new: KubeObject | None) -> None:
            if isinstance(new, Pod):
                changes.put_nowait(new)

        chosen = Selection(namespace=namespace, field_selector=f"metadata.name={pod}")
        informer: Informer = self.client.informer(_PODS, on_event, selection=chosen)
        informer_task = asyncio.create_task(informer.run())
        try:
            yield changes
        finally:
            informer_task.cancel()
            await asyncio.gather(informer_task, return_exceptions=True)

    def _require_started(self) -> InProcessCluster:
        if self._cluster is None or self._stack is None:
            raise UsageError("the cluster is not started; use it inside `async with Cluster() as cluster:`")
        return self._cluster


_PODS = resource_of(kind_of(Pod))


def _unschedulable_message(pod: Pod) -> str:
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == "False":
            return each.message or each.reason
    return ""


def _pool(text: str) -> NodePool:
    """Parse a pool; an error names the argument instead of the flag of the command line."""
    try:
        return NodePool.parse(text)
    except UsageError as fault:
        raise UsageError(str(fault).replace(f"--nodes {text}", f"nodes={text!r}")) from None


def _read_text(given: str | Path, argument: str) -> str:
    """The text of a configuration, given as text or as a `Path`."""
    if isinstance(given, Path):
        try:
            return given.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as fault:
            why = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
            raise UsageError(f"{argument}: {given} cannot be read: {why}; give a readable file") from None
    if given.strip() and ":" not in given:  # every configuration has a key with a colon
        raise UsageError(f"{argument}={given!r} is not a configuration; give a file as Path({given!r})")
    return given


def _batch_settings(batch: bool | str | Path) -> BatchSettings | None:
    """The settings of the batch engine; None if there is none."""
    if batch is False:
        return None
    return BatchSettings() if batch is True else BatchSettings(conf=load_conf(_read_text(batch, "batch")))


def _manifests(nodes: Nodes, zones: int) -> list[dict[str, Any]]:
    entries = [str(nodes)] if isinstance(nodes, int | str) else list(nodes)
    pools = [_pool(each) for each in entries if isinstance(each, str)]
    manifests = nodes_of(pools, zones)
    for each in entries:
        if isinstance(each, str):
            continue
        if not isinstance(each, Mapping):
            raise UsageError("invalid node; give a pool such as gpu=4:cpu=96, or a Node manifest as a mapping")
        manifests.append(_add_kubelet_fields(each))
    return manifests


def _add_kubelet_fields(manifest: Mapping[str, Any]) -> dict[str, Any]:
    name = (manifest.get("metadata") or {}).get("name")
    if not isinstance(name, str) or not name:
        raise UsageError("a Node manifest has no metadata.name; add one")
    # The {index} of the template is replaced by the name: there is one node of this manifest.
    numbered = {**manifest, "metadata": {**manifest["metadata"], "name": "{index}"}}
    node = NodeTemplate(numbered).node(0)
    meta = manifest["metadata"]
    hostname = {"kubernetes.io/hostname": name}
    node["metadata"] |= {
        "name": name,
        "labels": {**node["metadata"]["labels"], **hostname, **(meta.get("labels") or {})},
    }
    node["status"]["addresses"][1]["address"] = name
    return node


def _manifest_trees(manifest: Manifest) -> list[tuple[Mapping[str, Any], str]]:
    if isinstance(manifest, Path):
        return [(raw.tree, raw.place) for raw in raw_objects([manifest])]
    if isinstance(manifest, Mapping):
        return [(manifest, "the manifest")]
    found = read_documents(manifest)
    for tree in found:
        if not isinstance(tree, dict):
            raise ObjectError("the text is not a manifest; it must start with apiVersion and kind")
    return [(tree, f"document {number} of the text") for number, tree in enumerate(found, 1)]


class _LoopThread:
    """An event loop in a thread, for callers without one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bayplan cluster", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
