"""The binder in one end-to-end test: bind requests, the process, and the invariants that must hold afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cluster.api import Api, Refused, Tree
from cluster.run import Cluster
from support.e2e.batch_harness import BatchSchedulerHarness
from support.e2e.bind_watcher import RECORDING_PLUGIN, RESERVATIONS, BindWatcher
from support.e2e.binder_invariants import ClusterState, pod_uid
from support.e2e.scheduler_harness import short_backoff_config
from support.e2e.scheduler_process import bayplan_program, condition, crash_at, node_name, run_process, wait_until
from support.e2e.volumes_and_devices import claim, device_claim, pod_with_claim, volume, wait_for_first_consumer_class

REQUESTS = "scheduling.run.ai/v1alpha2"
BY_BINDER = """
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled: [{name: BindRequestBinder}]
      disabled: [{name: DefaultBinder}]
"""
SETTINGS = """
apiVersion: bayplan.dev/v1alpha1
kind: BayplanConfiguration
bindRequests: true
"""


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process is stopped by SIGSTOP."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class BinderHarness(BatchSchedulerHarness):
    """Pods, bind requests and binders of one test."""

    bound_event_reason = "Bound"  # a pod whose request is lost is scheduled once more
    expected_annotations: Callable[[Tree], Tree] = staticmethod(lambda request: {})  # noqa: ARG005
    """All annotations that the plugins of a test's engine set on a request."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        super().__init__(cluster, namespace, folder)
        self._handed: dict[str, Tree] = {}  # by uid of the pod: annotations that the test itself has set on requests

    # objects ----------------------------------------------------------------------------------------------------

    def request(
        self,
        pod: Tree,
        node: str,
        *,
        labels: Tree | None = None,
        annotations: Tree | None = None,
        owned: bool = True,
        **spec: Any,
    ) -> Tree:
        """A request for a pod, as an engine creates it. Without `owned` it is not garbage-collected with the pod."""
        meta = pod["metadata"]
        self._handed[meta["uid"]] = annotations or {}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        return {
            "apiVersion": REQUESTS,
            "kind": "BindRequest",
            "metadata": {
                "name": meta["name"],
                "namespace": self.namespace,
                "labels": {"bayplan.dev/binder": "bayplan"} if labels is None else labels,
                "annotations": annotations or {},
                "ownerReferences": [owner] if owned else [],
            },
            "spec": {
                "podName": meta["name"],
                "selectedNode": node,
                "backoffLimit": 3,
                **({} if owned else {"podUID": meta["uid"]}),
                **spec,
            },
        }

    def pod_with_request(self, name: str, node: str, **more: Any) -> Tree:
        """A pod of no scheduler, and the request to bind it."""
        (pod,) = self.api.create(self.pod(name, schedulerName="nobody"))
        self.api.create(self.request(pod, node, **more))
        return pod

    def phase_of(self, name: str) -> str:
        return str(self.find("BindRequest", name).get("status", {}).get("phase", ""))

    def reason_of(self, name: str) -> str:
        return str(self.find("BindRequest", name).get("status", {}).get("reason", ""))

    def find(self, kind: str, name: str) -> Tree:
        """The object, or None."""
        try:
            return self.api.get(kind, name)
        except Refused as fault:
            if fault.code != 404:
                raise
            return {}

    def wait_for_end(self, name: str, phase: str) -> Tree:
        """Wait until a request has this final phase; return the request."""
        wait_until(
            lambda: self.phase_of(name) == phase,
            f"{name} ends as {phase}",
            why=lambda: str(self.find("BindRequest", name)),
        )
        return self.find("BindRequest", name)

    # shared devices

    def create_gpu_sharing_pod(self, name: str, group: str, *, config_map: bool = False, **more: Any) -> Tree:
        """A pod that shares a device, and the request to bind it; optionally with a ConfigMap left by an earlier
        attempt.
        """
        pod = self.pod(name, schedulerName="nobody")
        pod["metadata"]["annotations"] = {"runai/shared-gpu-configmap": f"{name}-gpu"}
        (made,) = self.api.create(pod)
        if config_map:
            owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": made["metadata"]["uid"]}
            meta = {"name": f"{name}-gpu-0", "ownerReferences": [owner]}
            self.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {}})
        given: Tree = {"receivedResourceType": "Fraction", "receivedGPU": {"count": 1, "portion": "0.50"}}
        self.api.create(self.request(made, self.nodes[0], selectedGPUGroups=[group], **given, **more))
        return made

    def create_claim_pod(self, name: str, **more: Any) -> Tree:
        """A pod with a device claim, and the request to bind it, which has the allocated device."""
        self.api.create(device_claim(name, "gpus"))
        pod = self.pod(name, schedulerName="nobody", resourceClaims=[{"name": "gpu", "resourceClaimName": name}])
        pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        (made,) = self.api.create(pod)
        result = {"request": "gpu", "driver": "gpu.example.com", "pool": self.label, "device": "gpu-0"}
        given = [{"name": "gpu", "allocation": {"devices": {"results": [result]}}}]
        self.api.create(self.request(made, self.nodes[0], resourceClaimAllocations=given, **more))
        return made

    def create_volume_pod(self, name: str, provisioner: str = "kubernetes.io/no-provisioner", **more: Any) -> list[str]:
        """A pod with an unbound WaitForFirstConsumer claim, two matching volumes on the first node, and the request to
        bind it.

        Returns the names of the volumes: without a provisioner the request selects one of the two, with one a new
        volume is provisioned.
        """
        kind = wait_for_first_consumer_class(self, name, provisioner)
        fits = kind if provisioner == "kubernetes.io/no-provisioner" else "another"
        made = [volume(self, f"{name}-{number}", self.nodes[0], fits) for number in range(2)]
        names = [each["metadata"]["name"] for each in made]
        pod = pod_with_claim(self, name, name)
        pod["spec"]["schedulerName"] = "nobody"
        *_, wanted = self.api.create(*made, claim(name, kind), pod)
        for each in names:
            self.api.patch("PersistentVolume", each, {"status": {"phase": "Available"}}, sub="status")
        self.api.create(self.request(wanted, self.nodes[0], **more))
        return names

    def ensure_reservations(self) -> None:
        """Create the namespace of the reservation pods."""
        with suppress(Refused):
            self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RESERVATIONS}})

    def release(self, group: str) -> None:
        """Wait until no reservation pod is left."""
        api = Api(self.cluster, RESERVATIONS)
        left = api.list("Pod", labelSelector=f"runai-gpu-group={group}")
        api.delete_all("Pod", [pod["metadata"]["name"] for pod in left])

    def reservations(self, group: str) -> list[Tree]:
        """Reservation pods without a deletion timestamp: this cluster has no kubelet that ends deleted pods."""
        found = Api(self.cluster, RESERVATIONS).list("Pod", labelSelector=f"runai-gpu-group={group}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def report_device(self, group: str, device: str = "GPU-7") -> None:
        """Set the device of a reservation pod, as its program does once it runs."""
        wait_until(lambda: bool(self.reservations(group)), "the device is reserved")
        (pod,) = self.reservations(group)
        body = {"metadata": {"annotations": {"run.ai/reserve_for_gpu_index": device}}}
        Api(self.cluster, RESERVATIONS).patch("Pod", pod["metadata"]["name"], body)

    # processes --------------------------------------------------------------------------------------------------

    @contextmanager
    def binder(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """`bayplan binder`, ended by its own pid at the end of the block."""
        given = [*arguments]
        if "--leader-elect" not in given:
            given.append("--no-leader-elect")
        if not any(each.startswith("--kubeconfig") for each in given):
            given.append(f"--kubeconfig={self.cluster.kubeconfig()}")
        command = [sys.executable, *bayplan_program(), "binder", *given]
        with run_process(command, self.folder / f"binder-{time.monotonic_ns()}.log") as process:
            yield process
            assert process.poll() in (None, -signal.SIGKILL), self.binder_log()[-4000:]

    @property
    def long_timeout_settings(self) -> str:
        """Settings for a process that is stopped for a while: no timeout of a client or lease may expire."""
        settings = self.folder / "patient.yaml"
        settings.write_text("apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\nwatchdogSeconds: 0\n")
        return f"--settings={settings}"

    def run_until_crash(self, step: str, *arguments: str) -> None:
        """A binder that kills itself with SIGKILL at a crash point."""
        with crash_at(step), self.binder(*arguments) as process:
            assert process.wait(60) == -signal.SIGKILL, self.binder_log()

    def binder_log(self) -> str:
        return max(self.folder.glob("binder-*.log")).read_text(errors="replace")

    def run_scheduler_with_requests(self, *arguments: str, **more: Any) -> Any:
        """`bayplan scheduler` with BindRequestBinder."""
        return self.run_scheduler(*arguments, config=short_backoff_config(BY_BINDER), **more)

    def run_batch_with_requests(self, *arguments: str, settings: str = SETTINGS, **more: Any) -> Any:
        """`bayplan batch run` with bind requests."""
        path = self.folder / "settings.yaml"
        path.write_text(settings)
        return self.run_batch(f"--settings={path}", *arguments, **more)

    # checks -----------------------------------------------------------------------------------------------------

    def watch_binds(self, plugins: Path) -> BindWatcher:
        """A `BindWatcher`, which also plays the nodes with reserved devices.

        `plugins`: the plugin folder of the test's binders; it gets a plugin that records attempts.
        """
        (plugins / "attempts.py").write_text(RECORDING_PLUGIN)
        return BindWatcher(self.cluster, self.namespace, plugins / "attempts.noted")

    def faults(self) -> list[str]:
        """Violations of `binder_invariants` in the final state."""
        reservations = Api(self.cluster, RESERVATIONS).list("Pod")
        return ClusterState(
            nodes=[each for each in self.api.list("Node") if each["metadata"]["name"] in self.nodes],
            pods=self.api.list("Pod"),
            requests=self.api.list("BindRequest"),
            reservations=[each for each in reservations if node_name(each) in self.nodes],
            config_maps=self.api.list("ConfigMap"),
            claims=self.api.list("ResourceClaim"),
            volumes=self.volumes(),
            volume_claims=self.api.list("PersistentVolumeClaim"),
            expected_annotations=lambda request: (
                self._handed.get(pod_uid(request)) or self.expected_annotations(request)
            ),
        ).faults()

    def volumes(self) -> list[Tree]:
        """Volumes that are bound or reserved for claims of this test."""
        found = self.api.list("PersistentVolume")
        return [each for each in found if each["spec"].get("claimRef", {}).get("namespace") == self.namespace]

    def check_invariants(self) -> None:
        """Check the invariants, which hold whichever process was killed at whichever time."""
        found = self.faults()
        assert not found, found

    def requested_and_bound_nodes(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """The node of each pod by its request, and by its spec."""
        pods = self.api.pods()
        return [(self.find("BindRequest", name)["spec"]["selectedNode"], node_name(pods[name])) for name in names]

    def bound_condition(self, name: str) -> Tree:
        return condition(self.api.pod(name), "PodBound")
