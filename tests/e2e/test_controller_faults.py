"""Controllers whose writes are refused: the final state is correct, and no object was created twice."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from cluster.run import Cluster
from support.e2e.workload_cluster import WAIT_FLAG, NamespaceKubectl, run_cluster, template, workload
from support.fakes.fault_proxy import ProxiedRequest, ProxyFault, refusal, run_fault_proxy

CONFLICT = refusal(409, "Conflict", "the object has been modified")
BROKEN = refusal(500, "InternalError", "the server is ill")


@pytest.mark.parametrize("answer", [pytest.param(CONFLICT, id="409"), pytest.param(BROKEN, id="500")])
def test_every_third_write_is_refused(cluster: Cluster, namespace: str, tmp_path: Path, answer: bytes) -> None:
    numbers = itertools.count(1)

    def third_write(ask: ProxiedRequest) -> bool:
        if ask.method == "GET" or "/leases" in ask.path or ask.path.endswith("/events"):
            return False
        return next(numbers) % 3 == 0

    kubectl = NamespaceKubectl(cluster, namespace)
    with run_fault_proxy(cluster, tmp_path) as proxy, run_cluster(cluster, tmp_path, kubeconfig=proxy.kubeconfig()):
        fault = proxy.add(ProxyFault(third_write, refuse=answer))
        kubectl.apply(workload("Deployment", "web", replicas=4))
        kubectl("rollout", "status", "deployment/web", WAIT_FLAG)
        kubectl("set", "image", "deployment/web", "main=two")
        kubectl("rollout", "status", "deployment/web", WAIT_FLAG)
        pod = template({"app": "sum"}, annotations={"bayplan.dev/runs-for": "0s"}, restartPolicy="Never")
        spec = {"template": pod, "completions": 4, "parallelism": 2}
        kubectl.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sum"}, "spec": spec})
        kubectl.apply(workload("StatefulSet", "db", serviceName="db", replicas=2))
        kubectl("wait", "--for=condition=complete", "job/sum", WAIT_FLAG)
        kubectl("rollout", "status", "statefulset/db", WAIT_FLAG)
        assert kubectl.get("job/sum")["status"]["succeeded"] == 4
        assert len(kubectl.names("pods", "-l", "job-name=sum")) == 4
        assert kubectl.names("pods", "-l", "app=db") == ["db-0", "db-1"]
        kubectl.until(lambda: len(kubectl.names("pods", "-l", "app=web")) == 4, "the old pods are gone")
        assert fault.seen
        kubectl("delete", "deployment,statefulset,job", "--all", "--cascade=foreground", WAIT_FLAG)
