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
    """Nodes, leases and pods by path, with merge patches and watches that tell of every change."""

    def __init__(self) -> None:
        self.objects: dict[str, Tree] = {}
        self.version = 100
        self.feeds: dict[str, list[WatchStream]] = {"nodes": [], "pods": []}
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
        """As if somebody else had written it."""
        before = self.objects.get(path)
        self.version += 1
        tree["metadata"] = {**tree["metadata"], "resourceVersion": str(self.version)}
        tree["metadata"].setdefault("uid", f"uid-{self.version}")
        self.objects[path] = tree
        self._tell(path, added(tree) if before is None else modified(tree))

    def remove(self, path: str) -> None:
        self._tell(path, deleted(self.objects.pop(path)))

    def pod(self, name: str, node: str = "fake-0", **more: Any) -> str:
        path = f"/api/v1/namespaces/team/pods/{name}"
        meta = {"name": name, "namespace": "team", **more.pop("metadata", {})}
        containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
        self.put(path, {"metadata": meta, "spec": {"nodeName": node, "containers": containers}, "status": {}, **more})
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
        feed = WatchStream()
        if request.options.get("sendInitialEvents"):
            for path, tree in self.objects.items():
                if f"/{plural}/" in path:
                    feed.send(added(tree))
            feed.send(bookmark(self.version, initial_end=True))
        self.feeds[plural].append(feed)
        return feed

    def _tell(self, path: str, event: Tree) -> None:
        for plural, feeds in self.feeds.items():
            for feed in feeds if f"/{plural}/" in path else ():
                feed.send(event)


def _merged(old: Tree, patch: Tree) -> Tree:
    new = dict(old)
    for key, value in patch.items():
        new[key] = _merged(old.get(key) or {}, value) if isinstance(value, dict) else value
    return json.loads(json.dumps(new)) if "metadata" in new else new  # type: ignore[no-any-return]


class World:
    def __init__(self, api: ApiServer, server: FakeHttpServer, clock: ManualClock, kubelet: FakeKubelet) -> None:
        self.api = api
        self.server = server
        self.clock = clock
        self.kubelet = kubelet

    def asked(self, method: str, part: str) -> int:
        return sum(each.method == method and part in each.path for each in self.server.requests)

    async def later(self, seconds: float, *, steps: int = 50) -> None:
        """Let time pass; the loop gets its turns meanwhile."""
        for _ in range(steps):
            self.clock.advance(seconds / steps)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def world(
    *, count: int = 2, habits: PodBehavior | None = None, manifest: Tree | None = None, api: ApiServer | None = None
) -> AsyncIterator[World]:
    api, clock = api or ApiServer(), ManualClock()
    async with FakeHttpServer(api.route) as server, server.client(clock) as client:
        kubelet = FakeKubelet(client, count=count, template=NodeTemplate(manifest), habits=habits or PodBehavior())
        running = asyncio.ensure_future(kubelet.run())
        try:
            yield World(api, server, clock, kubelet)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/fake-0"


@async_test
async def test_nodes_are_registered_ready_with_a_lease() -> None:
    async with world() as w:
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
    async with world(count=1) as w:
        await wait_until(lambda: LEASE in w.api.objects)
        await w.later(600, steps=600)
        assert 40 <= w.asked("PATCH", "leases") <= 61
        assert w.asked("PATCH", "nodes/fake-0/status") == 1
        told = w.api.objects["/api/v1/nodes/fake-0"]["status"]["conditions"][-1]
        assert told["lastHeartbeatTime"] > told["lastTransitionTime"] == "2026-01-01T00:00:00Z"


@async_test
async def test_leases_that_began_together_are_renewed_apart() -> None:
    async with world(count=40) as w:
        await w.kubelet.ready()
        await wait_until(lambda: w.asked("POST", "leases") == 40)
        await w.later(30, steps=300)
        before = len(w.server.requests)
        await w.later(10, steps=100)
        renewals = [each for each in w.server.requests[before:] if "leases" in each.path]
        assert 25 <= len(renewals) <= 43
        moments = Counter(each.json["spec"]["renewTime"][:19] for each in renewals)
        assert max(moments.values()) <= 12, "no second has more than a few of them"


@pytest.mark.parametrize(("nodes", "interval_s"), [(1, 10), (500, 10), (1000, 20), (1500, 30), (10_000, 40)])
def test_many_nodes_renew_less_often_but_often_enough(nodes: int, interval_s: float) -> None:
    assert renew_interval_s(nodes) == interval_s


@async_test
async def test_a_node_that_is_there_already_is_taken_over() -> None:
    api = ApiServer()
    api.put("/api/v1/nodes/fake-0", {"metadata": {"name": "fake-0", "labels": {"kept": "yes"}}, "status": {}})
    async with world(api=api, count=1) as w:
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
async def test_a_node_that_others_call_ill_recovers_at_once() -> None:
    async with world(count=1) as w:
        await w.kubelet.ready()
        node = json.loads(json.dumps(w.api.objects["/api/v1/nodes/fake-0"]))
        node["status"]["conditions"][-1]["status"] = "Unknown"
        w.api.put("/api/v1/nodes/fake-0", node)
        await wait_until(lambda: w.asked("PATCH", "nodes/fake-0/status"))
        assert w.api.objects["/api/v1/nodes/fake-0"]["status"]["conditions"][-1]["status"] == "True"


@async_test
async def test_a_node_that_is_deleted_is_left_alone_until_it_is_made_anew() -> None:
    async with world(count=1) as w:
        await wait_until(lambda: LEASE in w.api.objects)
        w.api.remove("/api/v1/nodes/fake-0")
        await wait_until(lambda: "fake-0" not in w.kubelet.nodes)
        before = w.asked("PATCH", "leases")
        path = w.api.pod("p")
        await w.later(60)
        assert w.asked("PATCH", "leases") == before
        assert w.asked("POST", "nodes") == 1
        assert w.api.phase(path) == ""
        w.api.put("/api/v1/nodes/fake-0", {"metadata": {"name": "fake-0"}, "status": {}})
        await wait_until(lambda: w.api.objects["/api/v1/nodes/fake-0"]["status"].get("conditions"))
        await wait_until(lambda: w.asked("PATCH", "leases") > before, tick=lambda: w.clock.advance(1))


@async_test
async def test_a_server_that_refuses_for_a_while_gets_its_nodes_later() -> None:
    api = ApiServer()
    refusals = iter([status(500, "InternalError", "etcd is away")] * 3)
    api.fails = lambda request: next(refusals, None) if request.method == "POST" else None
    async with world(api=api, count=1) as w:
        await wait_until(lambda: "/api/v1/nodes/fake-0" in w.api.objects, tick=lambda: w.clock.advance(0.1))
        await w.kubelet.ready()
        assert next(refusals, None) is None, "it has asked through all of them"


@async_test
async def test_pods_run_and_succeed_when_their_time_is_over() -> None:
    async with world(habits=PodBehavior(runs_for_s=60)) as w:
        await w.kubelet.ready()
        usual = w.api.pod("usual")
        quick = w.api.pod("quick", metadata={"annotations": {RUNS_FOR: "5s"}})
        await wait_until(lambda: w.api.phase(usual) == w.api.phase(quick) == "Running")
        await w.later(4.5)
        assert w.api.phase(quick) == "Running"
        await wait_until(lambda: w.api.phase(quick) == "Succeeded", tick=lambda: w.clock.advance(0.1))
        assert w.api.phase(usual) == "Running"
        assert w.clock.monotonic_s() < 10
        await wait_until(lambda: w.api.phase(usual) == "Succeeded", tick=lambda: w.clock.advance(0.5))


@async_test
async def test_a_container_that_crashes_waits_and_a_warning_tells_of_it() -> None:
    async with world() as w:
        await w.kubelet.ready()
        path = w.api.pod("p", metadata={"uid": "u1", "annotations": {EXIT_CODE: "1"}})
        pod = w.api.objects[path]
        w.api.put(path, {**pod, "spec": {**pod["spec"], "restartPolicy": "Always"}})
        container = lambda: (w.api.objects[path]["status"].get("containerStatuses") or [{}])[0]  # noqa: E731
        waits = lambda: container().get("state", {}).get("waiting")  # noqa: E731
        await wait_until(lambda: waits() and container()["restartCount"] == 1)
        await wait_until(lambda: w.asked("POST", "events"))
        (event,) = [each for at, each in w.api.objects.items() if "/events/" in at]
        assert (event["type"], event["reason"], event["source"]) == ("Warning", "BackOff", {"component": "kubelet"})
        assert event["message"] == "Back-off restarting failed container c in pod p_team(u1)"
        assert (event["involvedObject"]["kind"], event["involvedObject"]["uid"]) == ("Pod", "u1")
        assert w.clock.monotonic_s() < 5
        await wait_until(lambda: container()["restartCount"] == 2, tick=lambda: w.clock.advance(0.1))
        assert 10 <= w.clock.monotonic_s() <= 12


@async_test
async def test_what_is_wrong_with_an_annotation_is_told_to_the_author_once() -> None:
    async with world() as w:
        await w.kubelet.ready()
        path = w.api.pod("p", metadata={"annotations": {RUNS_FOR: "5 seconds"}})
        told = lambda: [each["message"] for at, each in w.api.objects.items() if "/events/" in at]  # noqa: E731
        await wait_until(lambda: w.api.phase(path) == "Running" and told())
        advice = "is no duration; write one such as 90s or 1h30m, or forever"
        assert told() == [f"bayplan.dev/runs-for: '5 seconds' {advice}"]
        await w.later(1)
        pod = w.api.objects[path]
        w.api.put(path, pod | {"metadata": pod["metadata"] | {"annotations": {"bayplan.dev/run-for": "5s"}}})
        await wait_until(lambda: len(told()) == 2)
        assert told()[1] == "bayplan.dev/run-for: there is no such annotation; did you mean bayplan.dev/runs-for?"
        w.api.put(path, w.api.objects[path])
        await w.later(5)
        assert w.asked("POST", "events") == 2
        (event, _) = [each for at, each in w.api.objects.items() if "/events/" in at]
        assert (event["type"], event["reason"], event["involvedObject"]["name"]) == ("Warning", "BadAnnotation", "p")


@async_test
async def test_pods_of_other_nodes_are_not_touched() -> None:
    async with world() as w:
        await w.kubelet.ready()
        other, ours = w.api.pod("other", node="real"), w.api.pod("ours")
        await wait_until(lambda: w.api.phase(ours) == "Running")
        assert w.api.phase(other) == ""
        assert w.kubelet.pods.running == 1


@async_test
async def test_only_pods_that_have_a_node_and_go_on_are_watched() -> None:
    async with world() as w:
        await wait_until(lambda: w.asked("GET", "pods"))
        (watch,) = [each for each in w.server.requests if each.path == "/api/v1/pods"]
        assert watch.options["fieldSelector"] == "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


async def one_that_is_asked_to_go(w: World) -> str:
    """A pod that runs, and has half a minute to stop."""
    await w.kubelet.ready()
    path = w.api.pod("p")
    await wait_until(lambda: w.api.phase(path) == "Running")
    pod = w.api.objects[path]
    w.api.put(path, pod | {"metadata": pod["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:30Z"}})
    return path


@async_test
async def test_a_deleted_pod_goes_when_it_has_stopped() -> None:
    async with world(habits=PodBehavior(stops_after_s=5)) as w:
        path = await one_that_is_asked_to_go(w)
        await w.later(4)
        assert path in w.api.objects
        await wait_until(lambda: path not in w.api.objects, tick=lambda: w.clock.advance(0.1))
        await wait_until(lambda: w.kubelet.pods.running == 0)


@async_test
async def test_a_pod_that_ends_while_it_is_asked_to_go_goes() -> None:
    """Somebody says that it has ended: from then on the watch shows it no more, and nobody else lets it go."""
    async with world(habits=PodBehavior(stops_after_s=5)) as w:
        path = await one_that_is_asked_to_go(w)
        going = w.api.objects[path]
        w.api.objects[path] = going | {"status": {"phase": "Succeeded"}}
        w.api.fails = lambda request: status(500, "InternalError", "not now") if request.method == "DELETE" else None
        w.api._tell(path, deleted(going))
        await wait_until(lambda: w.asked("DELETE", "pods/p"))
        w.api.fails = lambda _: None
        await wait_until(lambda: path not in w.api.objects, tick=lambda: w.clock.advance(0.1))
        await wait_until(lambda: not w.kubelet.pods._unremoved)
        assert w.asked("DELETE", "pods/p") == 2


@async_test
async def test_a_pod_that_is_let_go_is_let_go_once() -> None:
    async with world() as w:
        path = await one_that_is_asked_to_go(w)
        await wait_until(lambda: path not in w.api.objects)
        await wait_until(lambda: w.kubelet.pods.running == 0)
        await w.later(5)
        assert w.asked("DELETE", "pods/p") == 1
        assert not w.kubelet.pods._removed
        assert not w.kubelet.pods._unremoved


@async_test
async def test_a_pod_of_the_same_name_is_not_taken_for_the_one_before() -> None:
    async with world() as w:
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
        await w.later(5)
        assert w.api.phase(path) == ""
        assert w.asked("PATCH", "pods/p") == 1, "the watch will tell of the other one"
        w.api.put(path, w.api.objects[path])
        await wait_until(lambda: w.api.phase(path) == "Running")


@async_test
async def test_a_pod_that_cannot_be_read_or_is_refused_stops_nobody() -> None:
    async with world() as w:
        await w.kubelet.ready()
        w.api.fails = lambda request: (
            status(422, "Invalid", "no") if "refused" in request.path and request.method == "PATCH" else None
        )
        w.api.put(
            "/api/v1/namespaces/team/pods/bad",
            {"metadata": {"name": "bad", "namespace": "team"}, "spec": {"nodeName": 7}, "status": {}},
        )
        refused, mute = w.api.pod("refused"), w.api.pod("mute", metadata={"annotations": {RUNS_FOR: "soon"}})
        good = w.api.pod("good")
        await wait_until(lambda: w.api.phase(good) == w.api.phase(mute) == "Running")
        await wait_until(lambda: w.asked("PATCH", "pods/refused") > 3, tick=lambda: w.clock.advance(0.2))
        assert w.api.phase(refused) == ""


@async_test
async def test_requests_of_many_pods_keep_the_rate_of_the_client() -> None:
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
async def test_nodes_are_removed_when_that_is_asked_for() -> None:
    async with world() as w:
        await w.kubelet.ready()
        w.api.remove("/api/v1/nodes/fake-1")
        await w.kubelet.nodes.remove()
        assert not [path for path in w.api.objects if "/nodes/" in path]


@async_test
async def test_no_nodes_are_soon_ready() -> None:
    async with world(count=0) as w:
        await w.kubelet.ready()
        assert not [path for path in w.api.objects if "/nodes/" in path]
