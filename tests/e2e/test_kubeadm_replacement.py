"""Bayplan as kube-scheduler in a kubeadm cluster: kubeadm's manifest, credentials and configuration, unedited.

The files of kubeadm are copied here verbatim. The test plays the kubelet: it mounts `/etc/kubernetes`, runs the
command, sends the probes, and restarts the container when it ends. Two things are replaced: the program, and the
loopback address, because the port is fixed and this machine may run another scheduler.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Api
from cluster.run import Cluster, die_with_parent
from support.e2e.scheduler_harness import SchedulerHarness
from support.e2e.scheduler_process import node_name, wait_until
from support.harness.deadlines import DEADLINE_S

MANIFEST = """
apiVersion: v1
kind: Pod
metadata:
  labels:
    component: kube-scheduler
    tier: control-plane
  name: kube-scheduler
  namespace: kube-system
spec:
  containers:
  - command:
    - kube-scheduler
    - --authentication-kubeconfig=/etc/kubernetes/scheduler.conf
    - --authorization-kubeconfig=/etc/kubernetes/scheduler.conf
    - --bind-address=127.0.0.1
    - --kubeconfig=/etc/kubernetes/scheduler.conf
    - --leader-elect=true
    image: registry.k8s.io/kube-scheduler:v1.36.0
    imagePullPolicy: IfNotPresent
    livenessProbe:
      failureThreshold: 8
      httpGet:
        host: 127.0.0.1
        path: /livez
        port: probe-port
        scheme: HTTPS
      initialDelaySeconds: 10
      periodSeconds: 10
      timeoutSeconds: 15
    name: kube-scheduler
    ports:
    - containerPort: 10259
      name: probe-port
      protocol: TCP
    readinessProbe:
      failureThreshold: 3
      httpGet:
        host: 127.0.0.1
        path: /readyz
        port: probe-port
        scheme: HTTPS
      periodSeconds: 1
      timeoutSeconds: 15
    resources:
      requests:
        cpu: 100m
    startupProbe:
      failureThreshold: 24
      httpGet:
        host: 127.0.0.1
        path: /livez
        port: probe-port
        scheme: HTTPS
      initialDelaySeconds: 10
      periodSeconds: 10
      timeoutSeconds: 15
    volumeMounts:
    - mountPath: /etc/kubernetes/scheduler.conf
      name: kubeconfig
      readOnly: true
  hostNetwork: true
  priority: 2000001000
  priorityClassName: system-node-critical
  securityContext:
    seccompProfile:
      type: RuntimeDefault
  volumes:
  - hostPath:
      path: /etc/kubernetes/scheduler.conf
      type: FileOrCreate
    name: kubeconfig
"""
CONFIG_FLAG = "    - --config=/etc/kubernetes/scheduler-config.yaml\n"
"""The flags that `extraArgs` of a ClusterConfiguration add; kubeadm sorts flags by name."""
CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
leaderElection:
  leaderElect: true
profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources:
        - name: cpu
          weight: 1
  plugins:
    score:
      disabled:
      - name: NodeResourcesBalancedAllocation
"""
LOST = "the lease kube-system/kube-scheduler was lost"
OF_MANIFESTS, LOOPBACK = "/etc/kubernetes", "127.0.0.1"


class StaticPod:
    """A manifest as a kubelet reads it, and its container."""

    def __init__(self, manifest: str, folder: Path) -> None:
        number = os.getpid()
        address = f"127.{1 + number // 250 % 250}.{1 + number % 250}.1"
        self.folder = folder
        (self.container,) = yaml.safe_load(manifest.replace(LOOPBACK, address))["spec"]["containers"]
        self.process: subprocess.Popen[bytes] | None = None

    def mount(self, name: str, text: str) -> None:
        """A file of `/etc/kubernetes`."""
        (self.folder / name).write_text(self._mounted(text))
        (self.folder / name).chmod(0o600)

    def _mounted(self, text: str) -> str:
        return text.replace(OF_MANIFESTS, str(self.folder))

    def start(self) -> None:
        program, *flags = self.container["command"]
        assert program == "kube-scheduler"
        command = [sys.executable, "-m", "bayplan", "scheduler", *map(self._mounted, flags)]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)

    @property
    def log_file(self) -> Path:
        return self.folder / "scheduler.log"

    def runs(self) -> bool:
        """Wait until it leads, also again: on a stalled machine the lease, as short as upstream's, may be lost."""
        assert self.process is not None
        if self.process.poll() is not None:
            assert LOST in self.log_file.read_text(), self.log_file.read_text()[-4000:]
            self.start()
        return True

    def passes(self, probe: str) -> bool:
        """Whether a probe of the manifest succeeds: an anonymous request, without verification of the certificate."""
        get = self.container[probe]["httpGet"]
        (port,) = [each["containerPort"] for each in self.container["ports"] if each["name"] == get["port"]]
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        url = f"{get['scheme'].lower()}://{get['host']}:{port}{get['path']}"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S, context=trusting) as answer:
                return bool(200 <= answer.status < 400)
        except (urllib.error.URLError, ConnectionError):
            return False

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)


@contextmanager
def static_pod(manifest: str, cluster: Cluster, folder: Path) -> Iterator[StaticPod]:
    pod = StaticPod(manifest, folder)
    pod.mount("scheduler.conf", yaml.safe_dump(kubeconfig(cluster)))
    pod.mount("scheduler-config.yaml", CONFIG)
    pod.start()
    try:
        yield pod
    finally:
        if pod.process is not None and pod.process.poll() is None:
            pod.process.kill()
            pod.process.wait()


def kubeconfig(cluster: Cluster) -> dict[str, Any]:
    """The credentials that kubeadm creates for kube-scheduler: a certificate in its name, and its rights."""
    user = cluster.authority.user("system:kube-scheduler")
    certificates = {"client-certificate-data": _encoded(user.certificate), "client-key-data": _encoded(user.key)}
    server = {"server": cluster.url, "certificate-authority-data": _encoded(cluster.authority.certificate)}
    name = "system:kube-scheduler"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": f"{name}@kubernetes",
        "clusters": [{"name": "kubernetes", "cluster": server}],
        "users": [{"name": name, "user": certificates}],
        "contexts": [{"name": f"{name}@kubernetes", "context": {"cluster": "kubernetes", "user": name}}],
    }


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("manifest", "profiles"),
    [
        pytest.param(MANIFEST, ["default-scheduler"], id="as-it-is"),
        pytest.param(
            MANIFEST.replace("    - --kubeconfig", f"{CONFIG_FLAG}    - --kubeconfig"),
            ["default-scheduler", "packing"],
            id="with-a-configuration",
        ),
    ],
)
def test_the_manifest_of_kube_scheduler_runs_bayplan(
    cluster: Cluster, harness: SchedulerHarness, tmp_path: Path, manifest: str, profiles: list[str]
) -> None:
    nodes = harness.add_nodes(2)
    with static_pod(manifest, cluster, tmp_path) as pod:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            wait_until(lambda probe=probe: pod.runs() and pod.passes(probe), f"the {probe} is content")  # type: ignore[misc]
        harness.api.create(*(harness.pod(name, schedulerName=name) for name in profiles))
        wait_until(lambda: pod.runs() and all(map(node_name, harness.api.pods().values())), "the pods have nodes")
        assert {node_name(each) for each in harness.api.pods().values()} <= set(nodes)
        wait_until(lambda: pod.runs() and speakers(harness) == set(profiles), "the profiles tell of it in their names")
        for name in profiles:
            described = cluster.kubectl("-n", harness.namespace, "describe", "pod", name)
            where = f"Successfully assigned {harness.namespace}/{name} to {node_name(harness.api.pod(name))}"
            assert re.search(rf"Normal\s+Scheduled\s+\S+\s+{name}\s+{where}", described), described
        lease = Api(cluster, "kube-system").get("Lease", "kube-scheduler")["spec"]
        assert lease["holderIdentity"]
        assert lease["leaseDurationSeconds"] == 15
        wait_until(lambda: pod.runs() and pod.passes("livenessProbe"), "it is alive with work done")
        ended = pod.stop()
    text = pod.log_file.read_text()
    assert ended == 0 or LOST in text, text[-4000:]
    assert "forbidden" not in text.lower(), text
    harness.check_no_overcommit()
    harness.check_bound_once()


def speakers(harness: SchedulerHarness) -> set[str]:
    """The reporting controllers of the Scheduled events."""
    found = [each for each in harness.api.list("Event") if each["reason"] == "Scheduled"]
    return {each["reportingController"] for each in found}
