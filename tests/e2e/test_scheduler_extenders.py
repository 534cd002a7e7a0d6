"""HTTP extenders on a real cluster: one filters, one prioritizes, one binds, and two do not respond."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cluster.run import Cluster
from support.e2e.scheduler_process import condition, node, node_name, pod, pods, run_scheduler, wait_until
from support.harness.deadlines import DEADLINE_S

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: KUBECONFIG, qps: 5000, burst: 10000}
leaderElection: {leaderElect: false}
extenders:
"""

NOBODY = "http://127.0.0.1:9/extender"

Answers = dict[str, Callable[[dict[str, Any]], Any]]


@contextmanager
def extender(answers: Answers) -> Iterator[str]:
    """A service with a given response for each verb; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(answers[self.path.rpartition("/")[2]](asked)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/extender"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def nodes(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    names = [f"{request.node.name.replace('_', '-')[:40]}-{number}".lower() for number in range(3)]
    cluster.apply(*(node(name, labels={"for": request.node.name[:60]}) for name in names))
    yield names
    cluster.kubectl("delete", "node", *names)


@pytest.fixture
def node_selector(request: pytest.FixtureRequest, nodes: list[str]) -> dict[str, object]:
    assert nodes
    return {"nodeSelector": {"for": request.node.name[:60]}}


def placed(cluster: Cluster, namespace: str) -> bool:
    found = pods(cluster, namespace)
    return bool(found) and all(map(node_name, found.values()))


def test_extenders_refuse_and_prefer(
    cluster: Cluster, namespace: str, nodes: list[str], node_selector: dict[str, Any], tmp_path: Path
) -> None:
    def refuse(asked: dict[str, Any]) -> dict[str, Any]:
        kept = [name for name in asked["NodeNames"] if name != nodes[0]]
        return {"NodeNames": kept, "FailedNodes": {nodes[0]: "too noisy"}}

    def prefer(asked: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"Host": item["metadata"]["name"], "Score": 10 * (item["metadata"]["name"] == nodes[2])}
            for item in asked["Nodes"]["items"]
        ]

    with extender({"filter": refuse}) as first, extender({"prioritize": prefer}) as second:
        config = (
            f"{CONFIG}- {{urlPrefix: '{first}', filterVerb: filter, nodeCacheCapable: true}}\n"
            f"- {{urlPrefix: '{second}', prioritizeVerb: prioritize, weight: 100}}\n"
        )
        with run_scheduler(cluster, tmp_path, config=config):
            cluster.apply(*(pod(f"web-{number}", namespace, **node_selector) for number in range(4)))
            wait_until(lambda: placed(cluster, namespace), "all pods have a node")
            assert {node_name(each) for each in pods(cluster, namespace).values()} == {nodes[2]}
            only = {"nodeSelector": {"kubernetes.io/hostname": nodes[0]}}
            cluster.apply(pod("refused", namespace, **only))
            wait_until(lambda: bool(condition(pods(cluster, namespace)["refused"])), "the pod has a condition")
            told = condition(pods(cluster, namespace)["refused"])
            assert told["reason"] == "Unschedulable"
            assert "1 too noisy" in told["message"]


@pytest.mark.usefixtures("nodes")
def test_an_extender_binds(cluster: Cluster, namespace: str, node_selector: dict[str, Any], tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def bind(told: dict[str, Any]) -> dict[str, Any]:
        asked.append(told)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": told["PodName"], "namespace": told["PodNamespace"], "uid": told["PodUID"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": told["Node"]},
        }
        path = f"/api/v1/namespaces/{told['PodNamespace']}/pods/{told['PodName']}/binding"
        cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
        return {}

    with extender({"bind": bind}) as url:
        config = f"{CONFIG}- {{urlPrefix: '{url}', bindVerb: bind, httpTimeout: {DEADLINE_S:.0f}s}}\n"
        with run_scheduler(cluster, tmp_path, config=config):
            cluster.apply(*(pod(f"web-{number}", namespace, **node_selector) for number in range(3)))
            wait_until(lambda: placed(cluster, namespace), "all pods have a node")
    found = pods(cluster, namespace)
    assert {told["PodName"]: told["Node"] for told in asked} == {name: node_name(each) for name, each in found.items()}


def test_an_extender_that_is_down_fails_the_pod_unless_ignorable(
    cluster: Cluster, namespace: str, node_selector: dict[str, Any], tmp_path: Path
) -> None:
    config = (
        f"{CONFIG}- {{urlPrefix: '{NOBODY}', filterVerb: filter, prioritizeVerb: prioritize, weight: 1, "
        "ignorable: true}\n"
        f"- {{urlPrefix: '{NOBODY}/strict', filterVerb: filter, managedResources: [{{name: example.com/card}}]}}\n"
    )
    with run_scheduler(cluster, tmp_path, config=config):
        cluster.apply(pod("free", namespace, **node_selector))
        wait_until(lambda: placed(cluster, namespace), "a pod without extender has a node")
        wants = pod("held", namespace, **node_selector)
        wants["spec"]["containers"][0]["resources"] = {"limits": {"example.com/card": "0"}}
        cluster.apply(wants)
        wait_until(lambda: bool(condition(pods(cluster, namespace)["held"])), "the pod has a condition")
    told = condition(pods(cluster, namespace)["held"])
    assert told["reason"] == "SchedulerError"
    assert told["message"] == f'Post "{NOBODY}/strict/filter": dial tcp 127.0.0.1:9: connect: connection refused'
