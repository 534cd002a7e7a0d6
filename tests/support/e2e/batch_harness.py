"""The batch engine in one end-to-end test: its own queues and gangs, a process, and the checks afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.api import Api, Refused, Tree
from cluster.run import Cluster
from support.e2e.scheduler_harness import SchedulerHarness
from support.e2e.scheduler_process import bayplan_program, condition, node_name, run_process, wait_until
from support.harness.deadlines import DEADLINE_S

GROUP_NAME_ANNOTATION = "scheduling.k8s.io/group-name"
VOLCANO = "scheduling.volcano.sh/v1beta1"
_OWN = {
    "PodGroup": "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups",
    "Queue": "/apis/scheduling.volcano.sh/v1beta1/queues",
    "HyperNode": "/apis/topology.volcano.sh/v1alpha1/hypernodes",
    "BindRequest": "/apis/scheduling.run.ai/v1alpha2/namespaces/{}/bindrequests",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "NodeShard": "/apis/shard.volcano.sh/v1alpha1/nodeshards",
}
GANGS = """
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: predicates
  - name: proportion
  - name: nodeorder
"""


class BatchApi(Api):
    """The same server, with Volcano's kinds."""

    def path(self, kind: str, name: str = "", sub: str = "") -> str:
        if kind in _OWN:
            return "/".join(filter(None, (_OWN[kind].format(self.namespace), name, sub)))
        return super().path(kind, name, sub)


class BatchSchedulerHarness(SchedulerHarness):
    """Nodes, queues and gangs of one test."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        super().__init__(cluster, namespace, folder)
        self.api: BatchApi = BatchApi(cluster, namespace)
        self._queues: list[str] = []
        self._places: list[str] = []
        install_volcano_crds(cluster, self.api)

    # objects ----------------------------------------------------------------------------------------------------

    def queue(self, name: str, **spec: Any) -> str:
        """An open queue; its name is unique to the test."""
        full = f"{self.label[:40]}-{name}"
        self._queues.append(full)
        tree = {"apiVersion": VOLCANO, "kind": "Queue", "metadata": {"name": full}}
        self.api.create({**tree, "spec": {"weight": 1, "reclaimable": True, **spec}})
        self.api.patch("Queue", full, {"status": {"state": "Open"}}, sub="status")
        return full

    def group(self, name: str, minimum: int, queue: str = "default", **spec: Any) -> Tree:
        tree = {"apiVersion": VOLCANO, "kind": "PodGroup", "metadata": {"name": name, "namespace": self.namespace}}
        return self.api.create({**tree, "spec": {"minMember": minimum, "queue": queue, **spec}})[0]

    def member(self, group: str, number: int, *, cpu: str = "1", **spec: Any) -> Tree:
        """A pod of a gang."""
        spec.setdefault("schedulerName", "volcano")
        found = self.pod(f"{group}-w-{number}", cpu=cpu, **spec)
        found["metadata"]["annotations"] = {GROUP_NAME_ANNOTATION: group}
        return found

    def gang(
        self, name: str, size: int, *, minimum: int | None = None, queue: str = "default", cpu: str = "1", **more: Any
    ) -> list[str]:
        """A pod group and all of its pods; returns their names."""
        self.group(name, size if minimum is None else minimum, queue, **more.pop("group", {}))
        self.api.create(*(self.member(name, number, cpu=cpu, **more) for number in range(size)))
        return [f"{name}-w-{number}" for number in range(size)]

    def hyper_node(self, name: str, tier: int, members: Iterable[str], kind: str = "Node") -> str:
        full = f"{self.label[:40]}-{name}"
        self._places.append(full)
        told = [{"type": kind, "selector": {"exactMatch": {"name": each}}} for each in members]
        meta = {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode", "metadata": {"name": full}}
        self.api.create({**meta, "spec": {"tier": tier, "members": told}})
        return full

    def start(self, *names: str) -> None:
        """Set the pods to Running, as a kubelet does."""
        for name in names:
            self.api.patch("Pod", name, {"status": {"phase": "Running"}}, sub="status")

    # the process ------------------------------------------------------------------------------------------------

    @contextmanager
    def run_batch(
        self,
        *arguments: str,
        conf: str | None = GANGS,
        verb: tuple[str, ...] = ("batch", "run"),
        may_end_with: int = -signal.SIGKILL,
        program: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """`bayplan batch run`, ended by its own pid at the end of the block."""
        given = [*arguments]
        if not any(each.startswith("--leader-elect") for each in given):
            given.append("--leader-elect=false")
        if not any(each.startswith("--kubeconfig") for each in given):
            given.append(f"--kubeconfig={self.cluster.kubeconfig()}")
        if conf is not None:
            self.write_conf(conf)
            given.append(f"--scheduler-conf={self.conf}")
        given.append("--schedule-period=100ms")
        log = self.folder / f"scheduler-{time.monotonic_ns()}.log"
        with run_process([sys.executable, *(program or bayplan_program()), *verb, *given], log, env=env) as process:
            yield process
            assert process.poll() in (None, may_end_with), self.log()[-4000:]

    def run_combined(self, *arguments: str, conf: str | None = GANGS, **more: Any) -> Any:
        """`bayplan run`: both engines in one process."""
        flags = ("--secure-port=0", "--kube-api-qps=5000", "--kube-api-burst=10000")
        given = [each for each in flags if not any(own.startswith(each.partition("=")[0]) for own in arguments)]
        return self.run_batch(*arguments, *given, conf=conf, verb=("run",), **more)

    @property
    def conf(self) -> Path:
        return self.folder / "volcano-scheduler.conf"

    def write_conf(self, text: str) -> None:
        """Replace the file atomically, as the kubelet does for a ConfigMap."""
        fresh = self.folder / ".fresh.conf"
        fresh.write_text(text)
        fresh.replace(self.conf)

    def dumped_state(self, process: subprocess.Popen[bytes]) -> Tree:
        """The dump of the process's own cache."""
        before = self.log().count("batch: {")
        process.send_signal(signal.SIGUSR2)
        wait_until(lambda: self.log().count("batch: {") > before, "the process says what it knows")
        line = [each for each in self.log().splitlines() if "batch: {" in each][-1]
        found: Tree = json.loads(line.partition("batch: ")[2])
        return found

    # checks -----------------------------------------------------------------------------------------------------

    def phase(self, group: str) -> str:
        return str(self.api.get("PodGroup", group).get("status", {}).get("phase", ""))

    def wait_for_phase(self, group: str, phase: str) -> None:
        wait_until(lambda: self.phase(group) == phase, f"{group} is {phase}", why=lambda: self.phase(group))

    def group_condition(self, group: str, kind: str) -> Tree:
        found = self.api.get("PodGroup", group).get("status", {}).get("conditions", [])
        return next((each for each in found if each["type"] == kind), {})

    def nodes_of(self, names: Iterable[str]) -> list[str]:
        pods = self.api.pods()
        return [node_name(pods[name]) for name in names if name in pods]

    def reasons(self, names: Iterable[str]) -> list[str]:
        """The reasons of pending pods, from their conditions."""
        pods = self.api.pods()
        return [condition(pods[name]).get("message", "") for name in names if name in pods]

    def event_notes(self, name: str) -> list[str]:
        """Notes of the events about an object of this name."""
        return [each.get("note", "") for each in self.api.list("Event") if each["regarding"]["name"] == name]

    def close(self) -> None:
        super().close()
        for kind, names in (
            ("BindRequest", [each["metadata"]["name"] for each in self.api.list("BindRequest")]),
            ("PodGroup", [each["metadata"]["name"] for each in self.api.list("PodGroup")]),
            ("Queue", self._queues),
            ("HyperNode", self._places),
        ):
            self.api.delete_all(kind, names)


def install_volcano_crds(cluster: Cluster, api: Api) -> None:
    """Install Volcano's CRDs, unless they exist."""

    def served() -> bool:
        try:
            for path in _OWN.values():
                api._ask("GET", path.format(api.namespace))
        except Refused:
            return False
        return True

    if served():
        return
    command = [sys.executable, "-m", "bayplan", "crds", "--install", "--kubeconfig", str(cluster.kubeconfig())]
    subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
    wait_until(served, "the new kinds are served")
