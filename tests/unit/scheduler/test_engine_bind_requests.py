"""The pod engine with BindRequestBinder: its writes, the pods that it counts, and results of the binder."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from msgspec.structs import replace

from bayplan.app import known_plugins
from bayplan.bind_requests.tracker import BindRequestTracker
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.runtime.bind_request_mutation import FAIL, SKIP
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import BindRequest, BindRequestStatus, new_request
from bayplan.queue import QueuedPodInfo
from bayplan.scheduler.binding.binding_cycle import BindingCycle
from bayplan.scheduler.cycle.schedule_result import AssumedPod
from bayplan.testing import make_node, make_pod
from support.builders.framework import replace_fields
from support.fakes.http_server import NoAnswer, Reply, Request, ServerAnswer, status
from support.harness.async_tests import wait_until
from support.harness.live_scheduler import (
    LiveSchedulerHarness,
    bind_request_config,
    conditions,
    run_live_scheduler,
    run_with_bind_requests,
    store_bind_requests,
)

CONFIG = bind_request_config("Annotating")
AT_BIND = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins:
    bind:
      enabled: [{name: BindRequestBinder}]
      disabled: [{name: DefaultBinder}]
"""
either_way = pytest.mark.parametrize("config", [CONFIG, AT_BIND], ids=["multipoint", "bind"])
SECOND_PROFILE = """
- schedulerName: by-itself
"""
NODES = [make_node("n1"), make_node("n2")]


class Annotating:
    """A plugin that only adds annotations to bind requests."""

    name = "Annotating"

    def mutate_bind_request(self, cycle: Cycle, node_name: str) -> dict[str, str]:
        return {"annotating.kai.scheduler/pod": cycle.pod.name, "annotating.kai.scheduler/node": node_name}


def run_harness(*objects: Any, config: str = CONFIG, **options: Any) -> Any:
    options.setdefault("registry", known_plugins().with_plugins(Annotating))
    return run_with_bind_requests(*objects, config=config, **options)


def with_status(harness: LiveSchedulerHarness, pod: Pod, **status: Any) -> BindRequest:
    """The request of a pod with a status, as a watch event has it."""
    known = harness.live.bind_requests
    assert known is not None
    request = known.requests[pod.key]
    meta = replace(request.metadata, resource_version=str(int(request.metadata.resource_version) + 100))
    return replace(request, metadata=meta, status=BindRequestStatus(**status))


async def wait_for_requests(harness: LiveSchedulerHarness, count: int = 1) -> list[Any]:
    await wait_until(lambda: len(harness.sent("POST", "/bindrequests")) >= count)
    found = harness.live.bind_requests
    assert found is not None
    await wait_until(lambda: len(found.requests) > 0)
    return harness.sent("POST", "/bindrequests")


def test_a_bind_request_has_the_annotations_of_plugins_and_its_success_ends_the_binding_cycle() -> None:
    async def run() -> None:
        pod = make_pod("web")
        async with run_harness(*NODES) as harness:
            store_bind_requests(harness)
            harness.deliver(pod)
            (sent,) = await wait_for_requests(harness)
            node = sent["spec"]["selectedNode"]
            assert sent["metadata"]["annotations"] == {
                "annotating.kai.scheduler/pod": "web",
                "annotating.kai.scheduler/node": node,
            }
            assert sent["metadata"]["ownerReferences"][0]["uid"] == pod.uid == sent["spec"]["podUID"]
            assert harness.sent("POST", "/binding") == []
            await wait_until(lambda: harness.live.pods_at_binder == 1)
            assert (harness.live.pods_in_binding, harness.live.is_idle) == (1, False)
            harness.live.handle_event(None, with_status(harness, pod, phase="Succeeded"))
            await wait_until(lambda: harness.live.is_idle)
            assert (harness.live.pods_in_binding, harness.live.pods_at_binder) == (0, 0)
            assert [each.note for each in harness.events.recorded] == [f"Successfully assigned default/web to {node}"]

    asyncio.run(run())


def test_results_of_the_binder_are_finished_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        pods = [make_pod(f"web-{number}") for number in range(3)]
        async with run_harness(*NODES) as harness:
            store_bind_requests(harness)
            harness.deliver(*pods)
            await wait_until(lambda: harness.live.pods_at_binder == 3)
            live, report_bound = harness.live, BindingCycle._report_bound

            def slow(cycle: BindingCycle, queued: QueuedPodInfo, assumed: AssumedPod) -> None:
                report_bound(cycle, queued, assumed)
                harness.clock.advance(live.slice_s + 0.001)

            monkeypatch.setattr(BindingCycle, "_report_bound", slow)
            assert live.bind_requests is not None
            for pod in pods:
                live.bind_requests.handle_event(None, with_status(harness, pod, phase="Succeeded"))
            under_way = [(live.bindings.finish_results(live.slice_s), live.pods_in_binding) for _ in pods]
            assert under_way == [(False, 2), (False, 1), (True, 0)]

    asyncio.run(run())


@pytest.mark.parametrize("fails", [False, True])
def test_post_bind_runs_after_the_binder_has_bound(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug with one pod does not stop PostBind of another."""
    seen: list[str] = []
    may_end = asyncio.Event()

    class After:
        name = "After"

        async def post_bind(self, cycle: Cycle, node_name: str) -> None:
            await may_end.wait()
            seen.append(f"{cycle.pod.name} on {node_name}")

    async def run() -> None:
        async with run_with_plugins(After) as harness:
            store_bind_requests(harness)
            pods = [make_pod(name) for name in ("one", "two")]
            harness.deliver(*pods)
            await wait_until(lambda: harness.live.pods_at_binder == 2)
            report_bound = BindingCycle._report_bound

            def breaks(cycle: BindingCycle, queued: QueuedPodInfo, assumed: AssumedPod) -> None:
                if fails and queued.pod.name == "one":
                    raise ValueError("a bug")
                report_bound(cycle, queued, assumed)

            monkeypatch.setattr(BindingCycle, "_report_bound", breaks)
            for pod in pods:
                harness.live.handle_event(None, with_status(harness, pod, phase="Succeeded"))
            await wait_until(lambda: harness.live.pods_at_binder == 0)
            # assumed until PostBind is done
            await wait_until(lambda: harness.live.pods_in_binding == (1 if fails else 2))
            assert seen == []
            may_end.set()
            await wait_until(lambda: harness.live.is_idle)

    asyncio.run(run())
    assert seen == (["two on n1"] if fails else ["one on n1", "two on n1"])


def test_a_bug_in_tracking_a_request_fails_one_attempt() -> None:
    async def run() -> None:
        async with run_harness(*NODES) as harness:
            store_bind_requests(harness)
            assert harness.live.bind_requests is not None
            harness.live.bindings.cycle.bind_requests = cast(BindRequestTracker, object())
            pod = make_pod("web")
            harness.deliver(pod)
            await wait_until(lambda: "FailedScheduling" in [each.reason for each in harness.events.recorded])
            harness.live.bindings.cycle.bind_requests = harness.live.bind_requests
            assert harness.live.engine.cache.pod(pod.uid) is None
            assert harness.pool(pod) is not None

    asyncio.run(run())


def test_abandon_ends_all_binding_cycles() -> None:
    """Also of pods at the binder, and of those that have not started."""

    async def run() -> None:
        async with run_harness(*NODES) as harness:
            store_bind_requests(harness)
            harness.deliver(make_pod("one"))
            await wait_until(lambda: harness.live.pods_at_binder == 1)
            assumed = cast(AssumedPod, object())
            harness.live.bindings.assumed_pods.add(assumed)
            harness.live.bindings.start_task(assumed, asyncio.sleep(60))
            assert harness.live.pods_in_binding == 2
            await harness.live.abandon()
            assert (harness.live.pods_in_binding, harness.live.pods_at_binder, harness.live.is_idle) == (0, 0, True)

    asyncio.run(run())


def test_a_pod_gets_the_scheduled_event_when_its_request_exists() -> None:
    """The event must exist if the scheduler dies while the binder works."""

    async def run() -> None:
        answered = asyncio.Event()
        async with run_harness(*NODES) as harness:
            store_bind_requests(harness)
            at_once = harness.server.route

            async def later(request: Request) -> ServerAnswer:
                await answered.wait()
                return at_once(request)

            harness.server.route = later
            harness.deliver(make_pod("web"))
            await wait_until(lambda: len(harness.sent("POST", "/bindrequests")) == 1)
            assert harness.events.recorded == []
            answered.set()
            await wait_until(lambda: harness.live.pods_at_binder == 1)
            assert [each.reason for each in harness.events.recorded] == ["Scheduled"]

    asyncio.run(run())


CALLS: list[tuple[str, str, str]] = []


def recording(plugin: str, fault: str = "", policy: str = SKIP) -> type[Any]:
    """A plugin that annotates requests with its name, and records its calls."""

    class Recording:
        name = plugin
        on_mutate_error = policy

        def mutate_bind_request(self, cycle: Cycle, node_name: str) -> dict[str, str]:
            CALLS.append((plugin, cycle.pod.name, node_name))
            if fault:
                raise ValueError(fault)
            return {"who.kai.scheduler/last": plugin, f"{plugin.lower()}.kai.scheduler/node": node_name}

    return Recording


def run_with_plugins(*plugins: type[Any]) -> Any:
    """Run the engine with these plugins in this order, on one node."""
    CALLS.clear()
    listed = ", ".join(f"{{name: {each.name}}}" for each in plugins)
    config = CONFIG.replace("{name: Annotating}", listed)
    return run_harness(NODES[0], config=config, registry=known_plugins().with_plugins(*plugins))


def test_mutate_plugins_run_once_for_each_request_in_configured_order() -> None:
    async def run() -> None:
        async with run_with_plugins(recording("Zeta"), recording("Alpha")) as harness:
            store_bind_requests(harness)
            for name in ("one", "two"):
                harness.deliver(make_pod(name))
            sent = await wait_for_requests(harness, 2)
            expected = [(plugin, pod, "n1") for pod in ("one", "two") for plugin in ("Zeta", "Alpha")]
            assert expected == CALLS
            for each in sent:
                assert each["metadata"]["annotations"] == {
                    "who.kai.scheduler/last": "Alpha",
                    "zeta.kai.scheduler/node": "n1",
                    "alpha.kai.scheduler/node": "n1",
                }

    asyncio.run(run())


def test_mutate_plugins_do_not_run_for_a_pod_without_a_node() -> None:
    async def run() -> None:
        async with run_with_plugins(recording("Alpha")) as harness:
            store_bind_requests(harness)
            harness.deliver(make_pod("large", requests={"cpu": "1000"}))
            await wait_until(lambda: bool(conditions(harness)))
            assert CALLS == []
            assert harness.sent("POST", "/bindrequests") == []

    asyncio.run(run())


@pytest.mark.parametrize("policy", [SKIP, FAIL])
def test_a_failing_mutate_plugin_loses_its_annotations_or_fails_the_binding(policy: str) -> None:
    async def run() -> None:
        pod = make_pod("web")
        async with run_with_plugins(recording("Broken", "oops", policy), recording("Alpha")) as harness:
            store_bind_requests(harness)
            harness.deliver(pod)
            if policy == SKIP:
                (sent,) = await wait_for_requests(harness)
                assert set(sent["metadata"]["annotations"]) == {"who.kai.scheduler/last", "alpha.kai.scheduler/node"}
            else:
                await wait_until(lambda: bool(harness.events.recorded or harness.sent("POST", "/bindrequests")))
                assert [each.reason for each in harness.events.recorded] == ["FailedScheduling"]
                assert 'plugin "Broken" at mutate_bind_request: ValueError: oops' in harness.events.recorded[0].note
                assert harness.sent("POST", "/bindrequests") == []
                assert harness.live.engine.cache.pod(pod.uid) is None  # its capacity is free again
                assert harness.pool(pod) is not None
            assert harness.live.engine.bind_request_factory.mutation.errors.labels("Broken").value == 1

    asyncio.run(run())


def test_events_may_be_delayed_while_all_assumed_pods_are_at_the_binder() -> None:
    async def run() -> None:
        pods = [make_pod(f"web-{number}") for number in range(3)]
        async with run_harness(*NODES) as harness:
            store_bind_requests(harness)
            assert harness.live.max_event_delay_s() == 0.0
            for pod in pods:
                harness.deliver(pod)
            await wait_for_requests(harness, 3)
            requests = harness.live.bind_requests
            assert requests is not None
            await wait_until(lambda: requests.waiting == 3)
            assert harness.live.max_event_delay_s() == 0.003
            blocked = asyncio.Event()
            harness.live.writes.start(blocked.wait(), "another write")
            assert harness.live.max_event_delay_s() == 0.0
            blocked.set()
            await harness.live.writes.drain()
            assert harness.live.max_event_delay_s() == 0.003
            harness.live.handle_event(None, with_status(harness, pods[0], phase="Succeeded"))
            await wait_until(lambda: bool(harness.events.recorded) and harness.live.pods_in_binding == 2)
            assert harness.live.max_event_delay_s() == 0.002

    asyncio.run(run())


def test_events_may_be_delayed_longer_if_the_binder_binds_every_pod() -> None:
    async def run() -> None:
        async with run_harness(*NODES) as harness:
            live, requests = harness.live, harness.live.bind_requests
            assert requests is not None

            def delay_s(waiting: int) -> float:
                requests._waiting = dict.fromkeys(map(str, range(waiting)), lambda _: None)
                live.bindings.cycle.writes_in_flight = writing
                live.bindings.assumed_pods = {cast(AssumedPod, object()) for _ in range(waiting + writing)}
                return live.max_event_delay_s()

            writing = 3
            assert [delay_s(waiting) for waiting in (0, 5, 20, 80, 1000)] == [0.0, 0.005, 0.02, 0.02, 0.02]
            live.all_by_binder = True
            longer = [delay_s(waiting) for waiting in (0, 5, 20, 80, 1000)]
            assert longer == [0.0, 0.005, 0.02, 0.08, 0.1]
            writing = 0  # only the binder can cause events then
            longer = [delay_s(waiting) for waiting in (0, 5, 20, 80, 200, 1000)]
            assert longer == [0.0, 0.005, 0.02, 0.08, 0.2, 0.25]
            requests._waiting, live.bindings.assumed_pods = {}, set()

    asyncio.run(run())


def test_concurrent_writes_are_limited() -> None:
    async def run() -> None:
        async with run_harness(*NODES) as harness:
            harness.live.bindings.cycle.limit_concurrency(2)
            harness.live.bindings.cycle.limit_concurrency(5)  # the limit never rises
            harness.fail_next("POST", "/bindrequests", *[NoAnswer()] * 3)
            for name in ("a", "b", "c"):
                harness.deliver(make_pod(name))
            await wait_until(
                lambda: (
                    harness.live.bindings.cycle.writes_in_flight == 3
                    and len(harness.sent("POST", "/bindrequests")) == 2
                )
            )
            for _ in range(20):
                await asyncio.sleep(0)
            assert (harness.live.bindings.cycle.max_concurrent, len(harness.sent("POST", "/bindrequests"))) == (2, 2)

    asyncio.run(run())


def test_events_are_not_delayed_without_the_binder_or_with_extenders() -> None:
    async def run() -> None:
        async with run_live_scheduler(*NODES) as harness:
            harness.deliver(make_pod("web"))
            assert harness.live.max_event_delay_s() == 0.0
        async with run_harness(*NODES) as harness:
            store_bind_requests(harness)
            harness.deliver(make_pod("web"))
            await wait_for_requests(harness)
            requests = harness.live.bind_requests
            assert requests is not None
            await wait_until(lambda: requests.waiting == 1)
            assert harness.live.max_event_delay_s() == 0.001
            harness.live.call_extender = lambda *_: asyncio.sleep(0)  # type: ignore[assignment]
            assert harness.live.max_event_delay_s() == 0.0

    asyncio.run(run())


def test_another_profile_with_the_default_binder_uses_no_request() -> None:
    async def run() -> None:
        async with run_harness(*NODES, config=CONFIG + SECOND_PROFILE) as harness:
            store_bind_requests(harness)
            harness.deliver(make_pod("web", scheduler_name="by-itself"))
            await wait_until(lambda: bool(harness.events.recorded))
            assert [each.reason for each in harness.events.recorded] == ["Scheduled"]
            assert len(harness.sent("POST", "/binding")) == 1
            assert harness.sent("POST", "/bindrequests") == []

    asyncio.run(run())


@either_way
def test_a_pod_gets_another_node_after_the_binder_gave_up(config: str) -> None:
    async def run() -> None:
        pod = make_pod("web")
        async with run_harness(*NODES, config=config) as harness:
            store_bind_requests(harness)
            harness.deliver(pod)
            (first,) = await wait_for_requests(harness)
            node = first["spec"]["selectedNode"]
            harness.live.handle_event(
                None, with_status(harness, pod, phase="Failed", failed_attempts=3, reason="no quota")
            )
            await wait_until(lambda: len(harness.events.recorded) >= 2)
            assert [each.note for each in harness.events.recorded[:2]] == [
                f"Successfully assigned default/web to {node}",
                f"the binder could not bind the pod to node {node}: no quota",
            ]
            await wait_until(lambda: bool(harness.sent("DELETE", "/bindrequests/web")))
            await wait_until(
                lambda: len(harness.sent("POST", "/bindrequests")) >= 2, tick=lambda: harness.clock.advance(0.01)
            )
            second = harness.sent("POST", "/bindrequests")[1]
            assert {node, second["spec"]["selectedNode"]} == {"n1", "n2"}

    asyncio.run(run())


@either_way
def test_a_pod_without_another_node_gets_the_reason_and_is_retried_later(config: str) -> None:
    async def run() -> None:
        pod = make_pod("web")
        async with run_harness(NODES[0], config=config) as harness:
            store_bind_requests(harness)
            harness.deliver(pod)
            await wait_for_requests(harness)
            harness.live.handle_event(None, with_status(harness, pod, phase="Failed", failed_attempts=3, reason="no"))
            await wait_until(
                lambda: len(conditions(harness)) >= 2 or len(harness.sent("POST", "/bindrequests")) >= 2,
                tick=lambda: harness.clock.advance(0.01),
            )
            assert "1 node(s) on which a binding of the pod failed recently" in conditions(harness)[-1]["message"]
            requests = harness.live.bind_requests
            assert requests is not None
            harness.clock.advance(60)
            requests.run_periodic_checks()
            await wait_until(
                lambda: len(harness.sent("POST", "/bindrequests")) >= 2, tick=lambda: harness.clock.advance(0.01)
            )

    asyncio.run(run())


def test_after_a_restart_a_pod_with_a_live_request_is_not_scheduled_again() -> None:
    async def run() -> None:
        pod = make_pod("web", uid="u-web")
        request = new_request(pod, "n1", annotations={}, backoff_limit=3)
        request = replace(request, metadata=replace(request.metadata, uid="r", resource_version="3"))
        async with run_harness(*NODES, decide=False) as harness:
            harness.deliver(pod)
            harness.live.handle_event(None, request)
            await harness.live.handle_pending_events()
            assert harness.live.engine.cache.pod("u-web") is not None
            assert harness.pool(pod) is None
            failed = replace(request, status=BindRequestStatus("Failed", "no", 3))
            harness.live.handle_event(request, replace(failed, metadata=replace(failed.metadata, resource_version="4")))
            await harness.live.handle_pending_events()
            assert harness.live.engine.cache.pod("u-web") is None
            assert harness.pool(pod) is not None

    asyncio.run(run())


def test_a_pod_of_another_scheduler_counts_on_its_node_while_it_has_a_request() -> None:
    """Its own engine has placed it; the binder may bind it much later."""

    async def run() -> None:
        foreign = replace_fields(make_pod("gang-0", uid="u-gang", cpu=3), spec={"scheduler_name": "volcano"})
        request = new_request(foreign, "n1", annotations={}, backoff_limit=3)
        request = replace(request, metadata=replace(request.metadata, uid="r", resource_version="3"))
        own = make_pod("web", uid="u-web", cpu=2)
        async with run_harness(make_node("n1", cpu=4)) as harness:
            store_bind_requests(harness)
            harness.deliver(foreign)
            harness.live.handle_event(None, request)
            await harness.live.handle_pending_events()
            harness.deliver(own)
            await wait_until(lambda: bool(conditions(harness)))
            assert "1 Insufficient cpu" in conditions(harness)[-1]["message"]
            assert harness.sent("POST", "/bindrequests") == []
            harness.live.handle_event(request, None)  # deleted by its own engine: the binder may have sent the binding
            await harness.live.handle_pending_events()
            requests = harness.live.bind_requests
            assert requests is not None
            assert requests.lost() == []
            harness.clock.advance(60)
            assert requests.lost() == [(foreign.uid, request)]
            requests.read_pod(foreign.uid, foreign)  # pods that wait for the capacity are woken
            await wait_until(
                lambda: bool(harness.sent("POST", "/bindrequests")), tick=lambda: harness.clock.advance(0.1)
            )

    asyncio.run(run())


def test_an_older_request_is_replaced_and_a_live_one_to_another_node_blocks_the_name() -> None:
    async def run(there: BindRequest) -> tuple[list[str], list[str]]:
        pod = make_pod("web", uid="u-web")
        async with run_harness(NODES[0]) as harness:
            store_bind_requests(harness)
            path = "/apis/scheduling.run.ai/v1alpha2/namespaces/default/bindrequests/web"
            harness.objects[path] = there
            harness.fail_next(
                "POST", "/bindrequests", Reply(409, {"kind": "Status", "reason": "AlreadyExists", "code": 409})
            )
            harness.deliver(pod)
            await wait_until(lambda: bool(harness.events.recorded))
            deleted = [each["preconditions"]["uid"] for each in harness.sent("DELETE", "/bindrequests/web")]
            return deleted, [each.note for each in harness.events.recorded]

    def request(uid: str, node: str, **status: Any) -> BindRequest:
        request_of_pod = new_request(make_pod("web", uid=uid), node, annotations={}, backoff_limit=3)
        meta = replace(request_of_pod.metadata, uid="there", resource_version="2")
        return replace(request_of_pod, metadata=meta, status=BindRequestStatus(**status))

    assert asyncio.run(run(request("u-old", "n1"))) == (["there"], ["Successfully assigned default/web to n1"])
    assert asyncio.run(run(request("u-web", "n2", phase="Failed", failed_attempts=3)))[0] == ["there"]
    deleted, notes = asyncio.run(run(request("u-web", "n2")))
    assert deleted == []
    assert "already has a live bind request, to node n2" in notes[0]


def test_a_refused_request_fails_the_attempt_and_is_retried() -> None:
    async def run() -> None:
        pod = make_pod("web")
        async with run_harness(NODES[0]) as harness:
            store_bind_requests(harness)
            harness.fail_next("POST", "/bindrequests", status(403, "Forbidden", "exceeded quota: requests"))
            harness.deliver(pod)
            await wait_until(lambda: bool(harness.events.recorded and conditions(harness)))
            (event,), (written,) = harness.events.recorded, conditions(harness)
            assert (event.kind, event.reason, written["reason"]) == ("Warning", "FailedScheduling", "SchedulerError")
            assert event.note == written["message"]
            assert event.note.startswith('running Bind plugin "BindRequestBinder": ')
            assert "exceeded quota: requests" in event.note
            assert harness.live.engine.bind_request_factory.failures.excluded_nodes(pod.uid) == frozenset()
            await wait_until(
                lambda: len(harness.sent("POST", "/bindrequests")) == 2, tick=lambda: harness.clock.advance(1)
            )

    asyncio.run(run())
