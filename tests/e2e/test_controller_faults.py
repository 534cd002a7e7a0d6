"""Controllers whose writes are refused: everything is right in the end, and nothing was made twice."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from cluster.run import Cluster
from support.e2e.workload_cluster import (
    PATIENCE,
    Hands,
    living,
    template,
    workload,
)
from support.fakes.fault_proxy import (
    Ask,
    Fault,
    faulty,
    refusal,
)

CONFLICT = refusal(409, "Conflict", "the object has been modified")
BROKEN = refusal(500, "InternalError", "the server is ill")


@pytest.mark.parametrize("answer", [pytest.param(CONFLICT, id="409"), pytest.param(BROKEN, id="500")])
def test_every_third_write_is_refused(cluster: Cluster, namespace: str, tmp_path: Path, answer: bytes) -> None:
    numbers = itertools.count(1)

    def third_write(ask: Ask) -> bool:
        if ask.method == "GET" or "/leases" in ask.path or ask.path.endswith("/events"):
            return False
        return next(numbers) % 3 == 0

    hands = Hands(cluster, namespace)
    with faulty(cluster, tmp_path) as proxy, living(cluster, tmp_path, kubeconfig=proxy.kubeconfig()):
        fault = proxy.add(Fault(third_write, refuse=answer))
        hands.apply(workload("Deployment", "web", replicas=4))
        hands("rollout", "status", "deployment/web", PATIENCE)
        hands("set", "image", "deployment/web", "main=two")
        hands("rollout", "status", "deployment/web", PATIENCE)
        pod = template({"app": "sum"}, annotations={"bayplan.dev/runs-for": "0s"}, restartPolicy="Never")
        spec = {"template": pod, "completions": 4, "parallelism": 2}
        hands.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sum"}, "spec": spec})
        hands.apply(workload("StatefulSet", "db", serviceName="db", replicas=2))
        hands("wait", "--for=condition=complete", "job/sum", PATIENCE)
        hands("rollout", "status", "statefulset/db", PATIENCE)
        assert hands.get("job/sum")["status"]["succeeded"] == 4
        assert len(hands.names("pods", "-l", "job-name=sum")) == 4
        assert hands.names("pods", "-l", "app=db") == ["db-0", "db-1"]
        hands.until(lambda: len(hands.names("pods", "-l", "app=web")) == 4, "the old pods are gone")
        assert fault.seen
        hands("delete", "deployment,statefulset,job", "--all", "--cascade=foreground", PATIENCE)
