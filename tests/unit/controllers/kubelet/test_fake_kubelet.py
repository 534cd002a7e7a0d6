"""The fake kubelet against a scripted API server over real sockets, on a manual clock."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.controllers import EXIT_CODE, RUNS_FOR, FakeKubelet, NodeTemplate, PodBehavior
from bayplan.controllers.kubelet.fake_nodes import renew_interval_s
from support.fakes.http_server import (
    FakeHttpServer,
    Reply,
    Request,
    ServerAnswer,
    WatchStream,
    added,
    bookmark,
    deleted,
    modified,
    status,
)
from support.harness.async_tests import async_test, wait_until

Tree = dict[str, Any]


class ApiServer:
    """API server with nodes, leases and pods by path, merge patches, and watches of every change."""

    def __init__(self) -> None:
        self.objects: dict[str, Tree] = {}
        self.version = 100
        self.watches: dict[str, list[WatchStream]] = {"nodes": [], "pods": []}
        self.fails: Callable[[Request], ServerAnswer | None] = lambda _: None

    def route(self, request: Request) -> ServerAnswer:
        if failure := self.fails(request):
            return failure
        if request.options.get("watch"):
            return self._watch(request)
        path = request.path.removesuffix("/status")
        if request.method == "POST":
            return self._create(f"{path}/{request.json['metadata']['name']}", request.json)
        if path not in self.objects:
            return status(404, "NotFound", f"{path} is not there")
        if request.method == "DELETE":
            return self._delete(path, request.json)
        return self._patch(path, request.json)

    def put(self, path: str, tree: Tree) -> None:
        """Write an object as another client would."""
        before = self.objects.get(path)
        self.version += 1
        tree["metadata"] = {**tree["metadata"], "resourceVersion": str(self.version)}
        tree["metadata"].setdefault("uid", f"uid-{self.version}")
        self.objects[path] = tree
        self._send_event(path, added(tree) if before is None else modified(tree))

    def remove(self, path: str) -> None:
        self._send_event(path, deleted(self.objects.pop(path)))

    def pod(self, name: str, node: str = "fake-0", **fields: Any) -> str:
        path = f"/api/v1/namespaces/team/pods/{name}"
        meta = {"name": name, "namespace": "team", **fields.pop("metadata", {})}
        containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
        self.put(path, {"metadata": meta, "spec": {"nodeName": node, "containers": containers}, "status": {}, **fields})
        return path

    def phase(self, path: str) -> str:
        return str(self.objects[path]["status"].get("phase", ""))

    def _create(self, path: str, tree: Tree) -> ServerAnswer:
        if path in self.objects:
            return status(409, "AlreadyExists", f"{path} is there")
        self.put(path, tree)
        return Reply(201, self.objects[path])

    def _patch(self, path: str, patch: Tree) -> ServerAnswer:
        old = self.objects[path]
        if patch.get("metadata", {}).get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            return status(422, "Invalid", "metadata.uid: field is immutable")
        self.put(path, _merged(old, patch))
        return Reply(200, self.objects[path])

    def _delete(self, path: str, options: Tree) -> ServerAnswer:
        assert options.get("gracePeriodSeconds", 0) == 0
        if options.get("preconditions", {}).get("uid") != self.objects[path]["metadata"]["uid"]:
            return status(409, "Conflict", "another uid")
        self.remove(path)
        return Reply(200, {})

    def _watch(self, request: Request) -> WatchStream:
        plural = request.path.rpartition("/")[2]
        watch = WatchStream()
        if request.options.get("sendInitialEvents"):
            for path, tree in self.objects.items():
                if f"/{plural}/" in path:
                    watch.send(added(tree))
            watch.send(bookmark(self.version, initial_end=True))
        self.watches[plural].append(watch)
        return watch

    def _send_event(self, path: str, event: Tree) -> None:
        for plural, watches in self.watches.items():
            for watch in watches if f"/{plural}/" in path else ():
                watch.send(event)


def _merged(old: Tree, patch: Tree) -> Tree:
    new = dict(old)
    for key, value in patch.items():
        new[key] = _merged(old.get(key) or {}, value) if isinstance(value, dict) else value
    return json.loads(json.dumps(new)) if "metadata" in new else new  # type: ignore[no-any-return]


class Harness:
    def __init__(self, api: ApiServer, server: FakeHttpServer, clock: ManualClock, kubelet: FakeKubelet) -> None:
        self.api = api
        self.server = server
        self.clock = clock
        self.kubelet = kubelet

    def count_requests(self, method: str, part: str) -> int:
        return sum(each.method == method and part in each.path for each in self.server.requests)

    async def advance(self, seconds: float, *, steps: int = 50) -> None:
        """Advance the clock in steps, and let tasks run after each."""
        for _ in range(steps):
            self.clock.advance(seconds / steps)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def run_kubelet(
    *, count: int = 2, habits: PodBehavior | None = None, manifest: Tree | None = None, api: ApiServer | None = None
) -> AsyncIterator[Harness]:
    api, clock = api or ApiServer(), ManualClock()
    async with FakeHttpServer(api.route) as server, server.client(clock) as client:
        kubelet = FakeKubelet(client, count=count, template=NodeTemplate(manifest), habits=habits or PodBehavior())
        running = asyncio.ensure_future(kubelet.run())
        try:
            yield Harness(api, server, clock, kubelet)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/fake-0"


@async_test
async def test_nodes_are_registered_ready_with_a_lease() -> None:
    async with run_kubelet() as w:
        await w.kubelet.ready()
        node = w.api.objects["/api/v1/nodes/fake-1"]
        assert {each["type"]: each["status"] for each in node["status"]["conditions"]} == {
            "MemoryPressure": "False",
            "DiskPressure": "False",
            "PIDPressure": "False",
            "Ready": "True",
        }
        await wait_until(lambda: LEASE in w.api.objects)
        lease = w.api.objects[LEASE]
        assert lease["spec"] == {
            "holderIdentity": "fake-0",
            "leaseDurationSeconds": 40,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        }
        owner = lease["metadata"]["ownerReferences"][0]
        assert owner["uid"] == w.api.objects["/api/v1/nodes/fake-0"]["metadata"]["uid"]


@async_test
async def test_leases_are_renewed_every_ten_seconds_and_conditions_every_five_minutes() -> None:
    async with run_kubelet(count=1) as w:
        await wait_until(lambda: LEASE in w.api.objects)
        await w.advance(600, steps=600)
        assert 40 <= w.count_requests("PATCH", "leases") <= 61
        assert w.count_requests("PATCH", "nodes/fake-0/status") == 1
        messages = w.api.objects["/api/v1/nodes/fake-0"]["status"]["conditions"][-1]
        assert messages["lastHeartbeatTime"] > messages["lastTransitionTime"] == "2026-01-01T00:00:00Z"


@async_test
async def test_lease_renewals_are_spread_over_time() -> None:
    async with run_kubelet(count=40) as w:
        await w.kubelet.ready()
        await wait_until(lambda: w.count_requests("POST", "leases") == 40)
        await w.advance(30, steps=300)
        before = len(w.server.requests)
        await w.advance(10, steps=100)
        renewals = [each for each in w.server.requests[before:] if "leases" in each.path]
        assert 25 <= len(renewals) <= 43
        renewals_by_second = Counter(each.json["spec"]["renewTime"][:19] for each in renewals)
        assert max(renewals_by_second.values()) <= 12, "renewals are spread over time"


@pytest.mark.parametrize(("nodes", "interval_s"), [(1, 10), (500, 10), (1000, 20), (1500, 30), (10_000, 40)])
def test_the_renewal_interval_grows_with_the_number_of_nodes(nodes: int, interval_s: float) -> None:
    assert renew_interval_s(nodes) == interval_s


@async_test
async def test_an_existing_node_is_adopted() -> None:
    api = ApiServer()
    api.put("/api/v1/nodes/fake-0", {"metadata": {"name": "fake-0", "labels": {"kept": "yes"}}, "status": {}})
    async with run_kubelet(api=api, count=1) as w:
        await w.kubelet.ready()
        node = w.api.objects["/api/v1/nodes/fake-0"]
        assert node["metadata"]["labels"] == {
            "kept": "yes",
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": "fake-0",
        }
        assert node["status"]["capacity"]["pods"] == "110"
        assert node["status"]["conditions"][-1]["status"] == "True"


@async_test
async def test_a_node_marked_as_unknown_recovers_at_once() -> None:
    async with run_kubelet(count=1) as w:
        await w.kubelet.ready()
        node = json.loads(json.dumps(w.api.objects["/api/v1/nodes/fake-0"]))
        node["status"]["conditions"][-1]["status"] = "Unknown"
        w.api.put("/api/v1/nodes/fake-0", node)
        await wait_until(lambda: w.count_requests("PATCH", "nodes/fake-0/status"))
        assert w.api.objects["/api/v1/nodes/fake-0"]["status"]["conditions"][-1]["status"] == "True"


@async_test
async def test_a_deleted_node_is_ignored_until_it_is_recreated() -> None:
    async with run_kubelet(count=1) as w:
        await wait_until(lambda: LEASE in w.api.objects)
        w.api.remove("/api/v1/nodes/fake-0")
        await wait_until(lambda: "fake-0" not in w.kubelet.nodes)
        before = w.count_requests("PATCH", "leases")
        path = w.api.pod("p")
        await w.advance(60)
        assert w.count_requests("PATCH", "leases") == before
        assert w.count_requests("POST", "nodes") == 1
        assert w.api.phase(path) == ""
        w.api.put("/api/v1/nodes/fake-0", {"metadata": {"name": "fake-0"}, "status": {}})
        await wait_until(lambda: w.api.objects["/api/v1/nodes/fake-0"]["status"].get("conditions"))
        await wait_until(lambda: w.count_requests("PATCH", "leases") > before, tick=lambda: w.clock.advance(1))


@async_test
async def test_refused_registrations_are_retried() -> None:
    api = ApiServer()
    refusals = iter([status(500, "InternalError", "etcd is away")] * 3)
    api.fails = lambda request: next(refusals, None) if request.method == "POST" else None
    async with run_kubelet(api=api, count=1) as w:
        await wait_until(lambda: "/api/v1/nodes/fake-0" in w.api.objects, tick=lambda: w.clock.advance(0.1))
        await w.kubelet.ready()
        assert next(refusals, None) is None, "all refusals were used"


@async_test
async def test_pods_succeed_after_their_run_time() -> None:
    async with run_kubelet(habits=PodBehavior(runs_for_s=60)) as w:
        await w.kubelet.ready()
        usual = w.api.pod("usual")
        quick = w.api.pod("quick", metadata={"annotations": {RUNS_FOR: "5s"}})
        await wait_until(lambda: w.api.phase(usual) == w.api.phase(quick) == "Running")
        await w.advance(4.5)
        assert w.api.phase(quick) == "Running"
        await wait_until(lambda: w.api.phase(quick) == "Succeeded", tick=lambda: w.clock.advance(0.1))
        assert w.api.phase(usual) == "Running"
        assert w.clock.monotonic_s() < 10
        await wait_until(lambda: w.api.phase(usual) == "Succeeded", tick=lambda: w.clock.advance(0.5))


@async_test
async def test_a_crashing_container_backs_off_with_a_warning_event() -> None:
    async with run_kubelet() as w:
        await w.kubelet.ready()
        path = w.api.pod("p", metadata={"uid": "u1", "annotations": {EXIT_CODE: "1"}})
        pod = w.api.objects[path]
        w.api.put(path, {**pod, "spec": {**pod["spec"], "restartPolicy": "Always"}})
        container = lambda: (w.api.objects[path]["status"].get("containerStatuses") or [{}])[0]  # noqa: E731
        waits = lambda: container().get("state", {}).get("waiting")  # noqa: E731
        await wait_until(lambda: waits() and container()["restartCount"] == 1)
        await wait_until(lambda: w.count_requests("POST", "events"))
        (event,) = [each for path_, each in w.api.objects.items() if "/events/" in path_]
        assert (event["type"], event["reason"], event["source"]) == ("Warning", "BackOff", {"component": "kubelet"})
        assert event["message"] == "Back-off restarting failed container c in pod p_team(u1)"
        assert (event["involvedObject"]["kind"], event["involvedObject"]["uid"]) == ("Pod", "u1")
        assert w.clock.monotonic_s() < 5
        await wait_until(lambda: container()["restartCount"] == 2, tick=lambda: w.clock.advance(0.1))
        assert 10 <= w.clock.monotonic_s() <= 12


@async_test
async def test_an_annotation_problem_is_reported_once() -> None:
    async with run_kubelet() as w:
        await w.kubelet.ready()
        path = w.api.pod("p", metadata={"annotations": {RUNS_FOR: "5 seconds"}})
        messages = lambda: [each["message"] for path_, each in w.api.objects.items() if "/events/" in path_]  # noqa: E731
        await wait_until(lambda: w.api.phase(path) == "Running" and messages())
        advice = "is no duration; write one such as 90s or 1h30m, or forever"
        assert messages() == [f"bayplan.dev/runs-for: '5 seconds' {advice}"]
        await w.advance(1)
        pod = w.api.objects[path]
        w.api.put(path, pod | {"metadata": pod["metadata"] | {"annotations": {"bayplan.dev/run-for": "5s"}}})
        await wait_until(lambda: len(messages()) == 2)
        assert messages()[1] == "bayplan.dev/run-for: there is no such annotation; did you mean bayplan.dev/runs-for?"
        w.api.put(path, w.api.objects[path])
        await w.advance(5)
        assert w.count_requests("POST", "events") == 2
        (event, _) = [each for path_, each in w.api.objects.items() if "/events/" in path_]
        assert (event["type"], event["reason"], event["involvedObject"]["name"]) == ("Warning", "BadAnnotation", "p")


@async_test
async def test_pods_on_other_nodes_are_ignored() -> None:
    async with run_kubelet() as w:
        await w.kubelet.ready()
        other, own = w.api.pod("other", node="real"), w.api.pod("ours")
        await wait_until(lambda: w.api.phase(own) == "Running")
        assert w.api.phase(other) == ""
        assert w.kubelet.pods.running == 1


@async_test
async def test_only_unfinished_pods_with_a_node_are_watched() -> None:
    async with run_kubelet() as w:
        await wait_until(lambda: w.count_requests("GET", "pods"))
        (watch,) = [each for each in w.server.requests if each.path == "/api/v1/pods"]
        assert watch.options["fieldSelector"] == "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


async def terminating_pod(w: Harness) -> str:
    """Create a running pod and request its deletion with a grace period of 30 s."""
    await w.kubelet.ready()
    path = w.api.pod("p")
    await wait_until(lambda: w.api.phase(path) == "Running")
    pod = w.api.objects[path]
    w.api.put(path, pod | {"metadata": pod["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:30Z"}})
    return path


@async_test
async def test_a_deleted_pod_is_removed_when_it_has_stopped() -> None:
    async with run_kubelet(habits=PodBehavior(stops_after_s=5)) as w:
        path = await terminating_pod(w)
        await w.advance(4)
        assert path in w.api.objects
        await wait_until(lambda: path not in w.api.objects, tick=lambda: w.clock.advance(0.1))
        await wait_until(lambda: w.kubelet.pods.running == 0)


@async_test
async def test_a_terminating_pod_that_finishes_is_removed() -> None:
    """A finished pod leaves the watch; the kubelet still has to delete it."""
    async with run_kubelet(habits=PodBehavior(stops_after_s=5)) as w:
        path = await terminating_pod(w)
        terminating = w.api.objects[path]
        w.api.objects[path] = terminating | {"status": {"phase": "Succeeded"}}
        w.api.fails = lambda request: status(500, "InternalError", "not now") if request.method == "DELETE" else None
        w.api._send_event(path, deleted(terminating))
        await wait_until(lambda: w.count_requests("DELETE", "pods/p"))
        w.api.fails = lambda _: None
        await wait_until(lambda: path not in w.api.objects, tick=lambda: w.clock.advance(0.1))
        await wait_until(lambda: not w.kubelet.pods._unremoved)
        assert w.count_requests("DELETE", "pods/p") == 2


@async_test
async def test_a_terminating_pod_is_removed_once() -> None:
    async with run_kubelet() as w:
        path = await terminating_pod(w)
        await wait_until(lambda: path not in w.api.objects)
        await wait_until(lambda: w.kubelet.pods.running == 0)
        await w.advance(5)
        assert w.count_requests("DELETE", "pods/p") == 1
        assert not w.kubelet.pods._removed
        assert not w.kubelet.pods._unremoved


@async_test
async def test_a_recreated_pod_is_not_confused_with_its_predecessor() -> None:
    async with run_kubelet() as w:
        await w.kubelet.ready()
        stale = Counter[str]()

        def fails(request: Request) -> ServerAnswer | None:
            if request.method == "PATCH" and "pods" in request.path and not stale:
                stale["p"] += 1
                w.api.objects[request.path.removesuffix("/status")]["metadata"]["uid"] = "another"
            return None

        w.api.fails = fails
        path = w.api.pod("p")
        await wait_until(lambda: stale)
        await w.advance(5)
        assert w.api.phase(path) == ""
        assert w.count_requests("PATCH", "pods/p") == 1, "the watch delivers the new pod"
        w.api.put(path, w.api.objects[path])
        await wait_until(lambda: w.api.phase(path) == "Running")


@async_test
async def test_an_undecodable_or_refused_pod_does_not_affect_other_pods() -> None:
    async with run_kubelet() as w:
        await w.kubelet.ready()
        w.api.fails = lambda request: (
            status(422, "Invalid", "no") if "refused" in request.path and request.method == "PATCH" else None
        )
        w.api.put(
            "/api/v1/namespaces/team/pods/bad",
            {"metadata": {"name": "bad", "namespace": "team"}, "spec": {"nodeName": 7}, "status": {}},
        )
        refused, invalid = w.api.pod("refused"), w.api.pod("mute", metadata={"annotations": {RUNS_FOR: "soon"}})
        good = w.api.pod("good")
        await wait_until(lambda: w.api.phase(good) == w.api.phase(invalid) == "Running")
        await wait_until(lambda: w.count_requests("PATCH", "pods/refused") > 3, tick=lambda: w.clock.advance(0.2))
        assert w.api.phase(refused) == ""


@async_test
async def test_the_clients_rate_limit_applies_to_pods() -> None:
    api, clock = ApiServer(), ManualClock()
    for number in range(30):
        api.pod(f"p{number}")
    async with FakeHttpServer(api.route) as server, server.client(clock, qps=10.0, burst=5) as client:
        kubelet = FakeKubelet(client, count=1)
        running = asyncio.ensure_future(kubelet.run())
        patches = lambda: sum(each.method == "PATCH" and "pods" in each.path for each in server.requests)  # noqa: E731
        await wait_until(lambda: patches() == 30, tick=lambda: clock.advance(0.01))
        assert 2.5 <= clock.monotonic_s() <= 4.5
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@async_test
async def test_remove_deletes_the_nodes() -> None:
    async with run_kubelet() as w:
        await w.kubelet.ready()
        w.api.remove("/api/v1/nodes/fake-1")
        await w.kubelet.nodes.remove()
        assert not [path for path in w.api.objects if "/nodes/" in path]


@async_test
async def test_a_kubelet_without_nodes_is_ready() -> None:
    async with run_kubelet(count=0) as w:
        await w.kubelet.ready()
        assert not [path for path in w.api.objects if "/nodes/" in path]
