"""The scheduler in one end-to-end test: nodes that only its pods may use, a process, and the checks afterwards.

After every scenario each pod has a node or a correct reason, no node is overcommitted, and the cache of the process
equals that of a newly started one: `SchedulerHarness.check_settled`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bayplan.codec.quantity import parse_quantity
from cluster.api import Api, Refused, Tree
from cluster.run import Cluster
from support.e2e.scheduler_process import condition, node, node_name, pod, run_scheduler, wait_until
from support.harness.deadlines import DEADLINE_S

SHORT_BACKOFF_CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: KUBECONFIG, qps: 5000, burst: 10000}
leaderElection: {leaderElect: false}
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 2
PROFILES
"""


def short_backoff_config(profiles: str = "") -> str:
    """A configuration with a short pod backoff."""
    return SHORT_BACKOFF_CONFIG.replace("PROFILES", profiles)


def plugin_folder(folder: Path, name: str, source: str) -> Path:
    """A folder with one plugin file, writable only by its owner."""
    made = folder / "plugins"
    made.mkdir(mode=0o700)
    (made / f"{name}.py").write_text(source)
    (made / f"{name}.py").chmod(0o600)
    return made


def overcommitted_resources(nodes: Iterable[Tree], pods: Iterable[Tree]) -> list[str]:
    """Every overcommitted resource of a node, with the excess in thousandths."""
    wanted: dict[str, Counter[str]] = {}
    for each in pods:
        if node_name(each) and each.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            wanted.setdefault(node_name(each), Counter()).update({"pods": 1000, **_pod_requests(each["spec"])})
            wanted[node_name(each)].subtract(_extended_resource_requests(each))
    found = []
    for each in nodes:
        name, room = each["metadata"]["name"], _thousandths(each["status"]["allocatable"])
        for resource, amount in sorted(wanted.get(name, {}).items()):
            if amount > room[resource]:
                found.append(f"{name}: {amount} of {room[resource]} {resource}")
    return found


def _pod_requests(spec: Tree) -> Counter[str]:
    """The requests of a pod on its node: the maximum of init and main containers, and the overhead."""
    running, starting = Counter[str](), Counter[str]()
    for container in spec.get("initContainers", []):
        if container.get("restartPolicy") == "Always":
            running.update(_requests(container))
            starting |= running
        else:
            starting |= running + _requests(container)
    for container in spec["containers"]:
        running.update(_requests(container))
    whole = Counter({**(running | starting), **_requests(spec)})  # pod-level requests take precedence
    return whole + _thousandths(spec.get("overhead", {}))


def _extended_resource_requests(pod: Tree) -> Counter[str]:
    """Extended resources that a pod gets through a claim; they do not count against the node."""
    claimed = pod.get("status", {}).get("extendedResourceClaimStatus", {}).get("requestMappings", [])
    names = {each["resourceName"] for each in claimed}
    return Counter({name: amount for name, amount in _pod_requests(pod["spec"]).items() if name in names})


def _requests(holder: Tree) -> Counter[str]:
    return _thousandths(holder.get("resources", {}).get("requests", {}))


def _thousandths(amounts: dict[str, str]) -> Counter[str]:
    return Counter({resource: parse_quantity(amount).milli_value() for resource, amount in amounts.items()})


class SchedulerHarness:
    """Nodes and pods of one test."""

    bound_event_reason = "Scheduled"
    """The reason of the binding event; another one with the binder."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster, self.namespace, self.folder = cluster, namespace, folder
        self.api = Api(cluster, namespace)
        self.label = namespace[:60]
        self.nodes: list[str] = []

    # objects ----------------------------------------------------------------------------------------------------

    def add_nodes(
        self, count: int, *, cpu: str = "4", labels: dict[str, str] | None = None, room: dict[str, str] | None = None
    ) -> list[str]:
        """`room`: other resources of the nodes than CPU, instead of the defaults."""
        names = [f"{self.label[:45]}-{len(self.nodes) + number}" for number in range(count)]
        self.nodes += names
        made = [node(name, cpu=cpu, labels={"for": self.label, **(labels or {})}) for name in names]
        for each in made:
            each["status"]["allocatable"].update(room or {})
        self.api.create(*made)
        return names

    def pod(
        self,
        name: str,
        *,
        cpu: str = "100m",
        labels: dict[str, str] | None = None,
        asks: dict[str, str] | None = None,
        **spec: Any,
    ) -> Tree:
        """A pod that is limited to the nodes of this test. `asks`: other requests than CPU."""
        spec.setdefault("nodeSelector", {})
        spec["nodeSelector"] = {"for": self.label, **spec["nodeSelector"]}
        found = pod(name, self.namespace, cpu=cpu, **spec)
        found["metadata"]["labels"] = labels or {}
        if asks:
            (container,) = found["spec"]["containers"]
            container["resources"]["requests"].update(asks)
            # extended resources need equal limits
            container["resources"]["limits"] = {name: amount for name, amount in asks.items() if "/" in name}
        return found

    def priority(self, name: str, value: int, **fields: Any) -> str:
        """A priority class that can be used at once: the server's admission may not know a stored class yet."""
        full = f"{self.label[:40]}-{name}"
        self.api.create(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": full},
                "value": value,
                **fields,
            }
        )
        wait_until(lambda: self._is_known(full), f"pods of {full} are taken")
        return full

    def _is_known(self, priority: str) -> bool:
        try:
            self.api.try_to_create(self.pod("tried", priorityClassName=priority))
        except Refused as fault:
            return "no PriorityClass" not in str(fault)
        return True

    # the process ------------------------------------------------------------------------------------------------

    @contextmanager
    def run_scheduler(
        self, *arguments: str, config: str | None = None, may_end_with: int = -signal.SIGKILL, **more: Any
    ) -> Iterator[subprocess.Popen[bytes]]:
        """`more`: arguments of `scheduler_process.run_scheduler`."""
        text = short_backoff_config() if config is None else config
        with run_scheduler(self.cluster, self.folder, *arguments, config=text, **more) as process:
            yield process
            assert process.poll() in (None, may_end_with), self.log()[-4000:]

    def log(self) -> str:
        """The log of the latest process."""
        return max(self.folder.glob("scheduler-*.log")).read_text(errors="replace")

    def dump_comparison(self, process: subprocess.Popen[bytes]) -> Tree:
        """The state of the process's cache, and its differences from the API server."""
        before = self.log().count("comparison: {")
        process.send_signal(signal.SIGUSR2)
        wait_until(lambda: self.log().count("comparison: {") > before, "the process compares")
        line = [each for each in self.log().splitlines() if "comparison: {" in each][-1]
        found: Tree = json.loads(line.partition("comparison: ")[2])
        return found

    # checks -----------------------------------------------------------------------------------------------------

    def wait_bound(self, names: Iterable[str] | None = None, *, within_s: float = DEADLINE_S) -> None:
        """Wait until the named pods, by default all, have a node."""
        wanted = None if names is None else set(names)
        wait_until(lambda: not self._unbound(wanted), "the pods have nodes", within_s=within_s, why=self._reasons)

    def _unbound(self, names: set[str] | None) -> list[str]:
        waiting = {each["metadata"]["name"] for each in self.api.list("Pod", fieldSelector="spec.nodeName=")}
        left = waiting if names is None else waiting & names
        if left:
            return sorted(left)  # all pods, which may be thousands, are listed only when no pod seems to be pending
        found = self.api.pods()
        wanted = found.keys() if names is None else names
        return [name for name in wanted if name not in found or not node_name(found[name])]

    def _reasons(self) -> str:
        found = self.api.pods()
        waiting = {name: condition(each).get("message", "nothing said") for name, each in found.items()}
        return json.dumps({name: text for name, text in waiting.items() if not node_name(found[name])})[:2000]

    def check_settled(self, process: subprocess.Popen[bytes], *, waiting: Iterable[str] = ()) -> dict[str, str]:
        """Check everything: pods are bound or `waiting` with a reason, nodes are not overcommitted, the cache is
        correct.

        Returns the nodes of the bound pods.
        """
        waits = set(waiting)
        self.wait_bound(self.api.pods().keys() - waits)
        for name in waits:
            wait_until(lambda name=name: bool(condition(self.api.pod(name)).get("message")), f"{name} has a reason")  # type: ignore[misc]
        self.check_no_overcommit()
        wait_until(
            lambda: self._agrees(process), "the process believes what the server says", why=lambda: str(self._last)
        )
        self.check_bound_once()
        return {name: node_name(each) for name, each in self.api.pods().items() if node_name(each)}

    _last: Tree = {}

    def _agrees(self, process: subprocess.Popen[bytes]) -> bool:
        self._last = self.dump_comparison(process)
        on_nodes: dict[str, list[str]] = {name: [] for name in self.nodes if name in self._last["nodes"]}
        for name, each in self.api.pods().items():
            if node_name(each) in on_nodes:
                on_nodes[node_name(each)].append(f"{self.namespace}/{name}")
        believed = {name: self._last["nodes"][name]["pods"] for name in on_nodes}
        same = believed == {name: sorted(pods) for name, pods in on_nodes.items()}
        return not self._last["faults"] and not self._last["assumed"] and same

    def check_no_overcommit(self) -> None:
        """Check that no node is overcommitted."""
        mine = [each for each in self.api.list("Node") if each["metadata"]["name"] in self.nodes]
        assert overcommitted_resources(mine, self.api.pods().values()) == []

    def check_bound_once(self) -> None:
        """Check that no pod has two binding events."""
        told = Counter(
            each["regarding"]["uid"] for each in self.api.list("Event") if each["reason"] == self.bound_event_reason
        )
        assert all(times == 1 for times in told.values()), told

    def close(self) -> None:
        """Delete everything that processes of later tests would have to handle."""
        self.api.delete_all("Node", self.nodes)
        end_s = time.monotonic() + 120
        while self.api.list("Pod", limit="1") and time.monotonic() < end_s:
            with suppress(Refused, OSError):  # thousands may take longer than the request timeout
                self.api.delete_collection("Pod")
            time.sleep(0.1)


def run_basic_scenario(harness: SchedulerHarness) -> dict[str, str]:
    """On two empty nodes: pods are placed, one is unschedulable, and one of high priority preempts one of low priority.

    Returns the nodes of the pods that are bound in the end.
    """
    harness.add_nodes(2)
    strong = harness.priority("strong", 1000)
    with harness.run_scheduler() as process:
        harness.api.create(*(harness.pod(f"fits-{number}", cpu="1500m") for number in range(4)))
        harness.wait_bound()
        harness.api.create(harness.pod("large", cpu="64"), harness.pod("strong", cpu="2", priorityClassName=strong))
        harness.wait_bound(["strong"])
        settled = harness.check_settled(process, waiting=["large"])
        assert "strong" in settled
        assert len(settled) == 4  # one pod of low priority was evicted
        assert condition(harness.api.pod("large"))["reason"] == "Unschedulable"
    return settled
