"""Writes that take effect although the client gets no response: no overcommitment and no second victim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.run import Cluster
from support.e2e.binder_harness import BinderHarness
from support.e2e.scheduler_process import condition, node_name, wait_until
from support.e2e.volumes_and_devices import device_claim, devices
from support.fakes.fault_proxy import FaultProxy, ProxiedRequest, ProxyFault, refusal, run_fault_proxy

# After the write a 5xx, or no response; or the write takes effect 0.3 s or 4 s after the connection was cut.
FAULTS: dict[str, dict[str, Any]] = {
    "failed": {"answer": refusal(500, "InternalError", "etcdserver: request timed out")},
    "lost": {"drop_answer": True},
    "late": {"delay_s": 0.3},
    "later": {"delay_s": 4.0},
}


@pytest.fixture
def harness(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[BinderHarness]:
    mine = BinderHarness(cluster, namespace, tmp_path)
    yield mine
    mine.close()


def is_request(ask: ProxiedRequest) -> bool:
    return ask.method == "POST" and ask.path.endswith("/bindrequests")


def is_deletion(ask: ProxiedRequest) -> bool:
    return ask.method == "DELETE" and "/pods/" in ask.path


@contextmanager
def engine(harness: BinderHarness, how: str, proxy: FaultProxy) -> Iterator[Callable[[ProxiedRequest], bool]]:
    """A scheduler behind the proxy, with a binder if it creates requests; yields the matcher of its writes."""
    with ExitStack() as stack:
        if how == "direct":
            stack.enter_context(harness.run_scheduler(kubeconfig=proxy.kubeconfig()))
            yield lambda ask: ask.is_binding
            return
        if how == "requests":
            stack.enter_context(harness.run_scheduler_with_requests(kubeconfig=proxy.kubeconfig()))
        else:
            stack.enter_context(harness.run_batch_with_requests(f"--kubeconfig={proxy.kubeconfig()}"))
        stack.enter_context(harness.binder())
        yield is_request


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("how", ["direct", "requests", "sessions"])
def test_no_second_pod_on_a_full_node(
    cluster: Cluster, harness: BinderHarness, tmp_path: Path, how: str, kind: str
) -> None:
    harness.add_nodes(1, cpu="8")

    def big(name: str) -> str:
        if how == "sessions":
            (member,) = harness.gang(name, 1, cpu="8")
            return str(member)
        harness.api.create(harness.pod(name, cpu="8"))
        return name

    with run_fault_proxy(cluster, tmp_path) as proxy, engine(harness, how, proxy) as hits:
        fault = proxy.add(ProxyFault(hits, times=1, **FAULTS[kind]))
        first = big("first")
        wait_until(lambda: len(fault.seen) == 1, "the write is on its way")
        second = big("second")
        harness.wait_bound([first])
        if fault.delay_s:
            wait_until(lambda: fault.delivered == 1, "the server gets the first write")
        wait_until(lambda: bool(condition(harness.api.pod(second))), "the second pod finds no room")
        assert node_name(harness.api.pod(second)) == ""
        harness.check_no_overcommit()
        harness.api.delete("Pod", first)
        harness.wait_bound([second])  # no capacity is leaked either
        harness.check_no_overcommit()


QUICK = """
apiVersion: bayplan.dev/v1alpha1
kind: BayplanConfiguration
bindRequests: true
bindAttempts: 1
requestTimeoutSeconds: 8
"""


@contextmanager
def by_requests(harness: BinderHarness, how: str, proxy: FaultProxy | None = None) -> Iterator[None]:
    """An engine that creates requests with one attempt each, and waits 8 s instead of the default of a minute."""
    settings = harness.folder / "quick.yaml"
    settings.write_text(QUICK.replace("bindRequests: true\n", ""))
    if how == "sessions":
        through = [f"--kubeconfig={proxy.kubeconfig()}"] if proxy is not None else []
        process = harness.run_batch_with_requests(*through, settings=QUICK)
    else:
        also = {"kubeconfig": proxy.kubeconfig()} if proxy is not None else {}
        process = harness.run_scheduler_with_requests(f"--settings={settings}", **also)
    with process:
        yield


def big_pod(harness: BinderHarness, how: str, name: str) -> str:
    """A pod that fills a node."""
    if how == "sessions":
        (member,) = harness.gang(name, 1, cpu="8")
        return str(member)
    harness.api.create(harness.pod(name, cpu="8"))
    return name


@pytest.mark.parametrize("how", ["requests", "sessions"])
def test_no_late_request_after_a_failure(cluster: Cluster, harness: BinderHarness, tmp_path: Path, how: str) -> None:
    harness.add_nodes(1, cpu="8")
    with ExitStack() as stack:
        proxy = stack.enter_context(run_fault_proxy(cluster, tmp_path))
        stack.enter_context(by_requests(harness, how, proxy))
        stack.enter_context(harness.binder(f"--kubeconfig={proxy.kubeconfig()}"))
        late = proxy.add(ProxyFault(is_request, times=1, delay_s=4.0))
        refused = proxy.add(
            ProxyFault(lambda ask: ask.is_binding, times=1, refuse=refusal(403, "Forbidden", "a webhook says no"))
        )
        first = big_pod(harness, how, "first")
        wait_until(lambda: len(refused.seen) == 1, "the binder is refused")
        second = big_pod(harness, how, "second")
        harness.wait_bound([second])
        wait_until(lambda: late.delivered == 1, "the server gets the first request")
        assert node_name(harness.api.pod(first)) == ""
        harness.check_no_overcommit()
        harness.api.delete("Pod", second)
        harness.wait_bound([first])  # it is scheduled again when no earlier request can arrive
        harness.check_no_overcommit()


@pytest.mark.parametrize("how", ["requests", "sessions"])
def test_no_node_freed_by_a_deleted_request(cluster: Cluster, harness: BinderHarness, tmp_path: Path, how: str) -> None:
    harness.add_nodes(1, cpu="8")
    with ExitStack() as stack:
        proxy = stack.enter_context(run_fault_proxy(cluster, tmp_path))
        stack.enter_context(by_requests(harness, how))
        stack.enter_context(harness.binder(f"--kubeconfig={proxy.kubeconfig()}"))
        late = proxy.add(ProxyFault(lambda ask: ask.is_binding, delay_s=4.0))
        first = big_pod(harness, how, "first")
        wait_until(lambda: bool(late.seen), "the binding is on its way")
        harness.api.delete_all("BindRequest", [first])
        second = big_pod(harness, how, "second")
        harness.wait_bound([first])
        wait_until(lambda: bool(condition(harness.api.pod(second))), "the second pod finds no room")
        assert node_name(harness.api.pod(second)) == ""
        harness.check_no_overcommit()


@pytest.mark.parametrize("how", ["requests", "sessions"])
def test_placed_again_after_its_request(harness: BinderHarness, how: str) -> None:
    """No binder has seen the request. The scheduler cannot know that and waits for the request timeout."""
    harness.add_nodes(1, cpu="8")
    with by_requests(harness, how):
        pod = big_pod(harness, how, "first")
        wait_until(lambda: bool(harness.find("BindRequest", pod)), "the request is made")
        uid = harness.find("BindRequest", pod)["metadata"]["uid"]
        harness.api.delete_all("BindRequest", [pod])
        wait_until(
            lambda: harness.find("BindRequest", pod).get("metadata", {}).get("uid", uid) != uid, "the next is made"
        )
        with harness.binder():
            harness.wait_bound([pod])


@pytest.mark.parametrize("kind", FAULTS)
def test_no_second_victim(cluster: Cluster, harness: BinderHarness, tmp_path: Path, kind: str) -> None:
    harness.add_nodes(3, cpu="2")
    urgent = harness.priority("urgent", 1000)
    with run_fault_proxy(cluster, tmp_path) as proxy, harness.run_scheduler(kubeconfig=proxy.kubeconfig()):
        weak = [f"weak-{number}" for number in range(3)]
        harness.api.create(*(harness.pod(name, cpu="2") for name in weak))
        harness.wait_bound(weak)
        fault = proxy.add(ProxyFault(is_deletion, times=1, **FAULTS[kind]))
        harness.api.create(harness.pod("strong", cpu="2", priorityClassName=urgent))
        harness.wait_bound(["strong"])
        if fault.delay_s:
            wait_until(lambda: fault.delivered == 1, "the server gets the first deletion")
        left = [each["metadata"]["name"] for each in harness.api.list("Pod")]
        assert sorted(set(weak) - set(left)) == [fault.seen[0].path.rpartition("/")[2].partition("?")[0]]
        harness.check_no_overcommit()


@pytest.mark.parametrize("code", [404, 409, 422])
def test_refused_yet_bound(cluster: Cluster, harness: BinderHarness, tmp_path: Path, code: int) -> None:
    """The pod is read before a rollback, so its claim stays reserved for it."""
    harness.add_nodes(1)
    kind = f"{harness.label[:40]}-gpus"
    harness.api.create(*devices(harness, harness.nodes[0], kind), device_claim("gpu", kind))
    with run_fault_proxy(cluster, tmp_path) as proxy, harness.run_scheduler(kubeconfig=proxy.kubeconfig()):
        fault = proxy.add(ProxyFault(lambda ask: ask.is_binding, times=1, answer=refusal(code, "Refused", "not so")))
        pod = harness.pod("train", resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}])
        pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        (made,) = harness.api.create(pod)
        harness.wait_bound(["train"])
        assert len(fault.seen) == 1
        harness.api.create(harness.pod("after"))
        harness.wait_bound(["after"])  # the failure, if it was one, has been handled
        users = harness.api.get("ResourceClaim", "gpu")["status"].get("reservedFor", [])
        assert [user["uid"] for user in users] == [made["metadata"]["uid"]]
