"""API writes: the requests of intents, retries, and texts of failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bayplan.api_writes.writes import ApiWrites, UnsupportedIntent
from bayplan.clock import ManualClock
from bayplan.devices import claim_intents as devices
from bayplan.errors import ApiError, BayplanError, Conflict
from bayplan.intents.pod_intents import AnnotatePod, BindPod
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.resource import AllocationResult, ResourceClaim, ResourceClaimConsumer, ResourceClaimStatus
from bayplan.objects.storage import ClaimReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec
from bayplan.volumes.claims import SELECTED_NODE
from bayplan.volumes.volume_intents import SetSelectedNode, SetVolumeClaimRef, WaitForVolumes
from support.builders.framework import CREATED, make_pod
from support.fakes.http_server import FakeHttpServer, Reply, ServerAnswer, status
from support.harness.async_tests import async_test, wait_until
from support.harness.live_scheduler import CLAIMS, RecordedEvents

POD = make_pod("p")
FINALIZER = "resource.kubernetes.io/delete-protection"
PATH = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"


@dataclass
class World:
    server: FakeHttpServer
    clock: ManualClock
    writes: ApiWrites
    events: RecordedEvents
    exists: dict[str, bool]

    def requests(self) -> list[str]:
        return self.server.request_lines()


@asynccontextmanager
async def run_writes(*answers: ServerAnswer, claims: bool = True) -> AsyncIterator[World]:
    clock, events, exists = ManualClock(), RecordedEvents(), {"p": True}
    async with FakeHttpServer(script=answers) as server, server.client(clock) as client:
        writes = ApiWrites(
            client, events, clock=clock, claims=CLAIMS if claims else None, exists=lambda pod: exists[pod.name]
        )
        yield World(server, clock, writes, events, exists)


def claim(version: str = "1", **fields: Any) -> ResourceClaim:
    finalizers = fields.pop("finalizers", ())
    deleted = CREATED if fields.pop("deleted", False) else None
    meta = ObjectMeta(
        name="c",
        namespace="default",
        uid="u",
        resource_version=version,
        finalizers=tuple(finalizers),
        deletion_timestamp=deleted,
    )
    return ResourceClaim(metadata=meta, status=ResourceClaimStatus(**fields))


def as_reply(item: Any) -> Reply:
    return Reply(200, msgspec.json.encode(item))


CONFLICT = status(409, "Conflict", "the object has been modified")
MINE = ResourceClaimConsumer(resource="pods", name="p", uid=POD.uid)
RESERVE = devices.ReserveClaim(claim(), POD, CREATED, AllocationResult())


@async_test
async def test_an_unknown_intent_is_refused() -> None:
    async with run_writes() as world:
        with pytest.raises(UnsupportedIntent):
            await world.writes.perform("a wish")


@async_test
async def test_a_patch_with_an_unknown_outcome_is_repeated_from_the_version_of_another_writer() -> None:
    before, after = replace(POD.metadata, resource_version="1"), replace(POD.metadata, resource_version="2")
    seen, found = replace(POD, metadata=before), replace(POD, metadata=after)
    done = replace(POD, metadata=replace(after, annotations={"gpu": "1"}))
    answers = status(500, "InternalError"), as_reply(found), as_reply(found), as_reply(done)
    async with run_writes(*answers) as world:
        await world.writes.perform(AnnotatePod(seen, {"gpu": "1"}))
        patches = [each.json for each in world.server.requests if each.method == "PATCH"]
        assert [each["metadata"]["resourceVersion"] for each in patches] == ["1", "2"]


# volumes


@async_test
async def test_the_claim_ref_of_a_volume_is_written_to_the_chosen_version() -> None:
    meta = ObjectMeta(name="v", resource_version="7", annotations={"pv.kubernetes.io/bound-by-controller": "yes"})
    ref = ClaimReference("PersistentVolumeClaim", "default", "c", "u", "v1", "3")
    volume = PersistentVolume(metadata=meta, spec=PersistentVolumeSpec(claim_ref=ref))
    async with run_writes(as_reply(volume)) as world:
        found = await world.writes.perform(SetVolumeClaimRef(volume))
        assert found == volume
        (request,) = world.server.requests
        assert (request.method, request.path) == ("PATCH", "/api/v1/persistentvolumes/v")
        assert request.json["metadata"] == {
            "resourceVersion": "7",
            "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"},
        }
        assert request.json["spec"]["claimRef"]["uid"] == "u"


@async_test
async def test_the_selected_node_of_a_claim_is_written_and_a_conflict_is_raised() -> None:
    meta = ObjectMeta(name="c", namespace="default", resource_version="7", annotations={SELECTED_NODE: "n"})
    async with run_writes(CONFLICT) as world:
        with pytest.raises(Conflict):
            await world.writes.perform(SetSelectedNode(PersistentVolumeClaim(metadata=meta)))
        assert world.requests() == ["PATCH /api/v1/namespaces/default/persistentvolumeclaims/c"]
        assert world.server.requests[0].json["metadata"]["annotations"] == {SELECTED_NODE: "n"}


@async_test
async def test_waiting_for_volumes_polls_every_second_until_the_timeout() -> None:
    looks: list[float] = []
    async with run_writes() as world:

        def done() -> bool:
            looks.append(world.clock.monotonic_s())
            return False

        waiting = asyncio.ensure_future(world.writes.perform(WaitForVolumes(POD, done, 3.5)))
        await wait_until(waiting.done, tick=lambda: world.clock.advance(0.25))
        assert isinstance(waiting.exception(), TimeoutError)
        assert looks == [1.0, 2.0, 3.0, 3.5]


@pytest.mark.parametrize("how", ["done", "pod gone", "never"])
def test_ends_of_waiting_for_volumes(how: str) -> None:
    @async_test
    async def test() -> None:
        async with run_writes() as world:

            def done() -> bool:
                if how == "never":
                    raise BayplanError('provisioning failed for PVC "c"')
                return how == "done"

            world.exists["p"] = how != "pod gone"
            waiting = asyncio.ensure_future(world.writes.perform(WaitForVolumes(POD, done, 60.0)))
            await wait_until(waiting.done, tick=lambda: world.clock.advance(0.5))
            assert world.clock.monotonic_s() >= 1.0
            if how == "done":
                assert waiting.exception() is None
            else:
                messages = {"pod gone": 'pod does not exist any more: pod "p" not found'}
                assert str(waiting.exception()) == messages.get(how, 'provisioning failed for PVC "c"')

    test()


# devices


@async_test
async def test_a_claim_gets_its_finalizer_then_allocation_and_reservation() -> None:
    protected = claim("2", finalizers=[FINALIZER])
    done = claim("3", finalizers=[FINALIZER], allocation=AllocationResult(), reserved_for=(MINE,))
    async with run_writes(as_reply(protected), as_reply(done)) as world:
        assert await world.writes.perform(RESERVE) == done
        assert world.requests() == [f"PATCH {PATH}", f"PATCH {PATH}/status"]
        first, second = [each.json for each in world.server.requests]
        assert first == {"metadata": {"resourceVersion": "1", "finalizers": [FINALIZER]}}
        assert second["metadata"] == {"resourceVersion": "2"}
        assert second["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": POD.uid}]
        assert "allocationTimestamp" in second["status"]["allocation"]


@pytest.mark.parametrize("code", [403, 404, 422, 429])
@async_test
async def test_a_claim_is_read_after_a_refusal_before_its_devices_are_free(code: int) -> None:
    done = claim("3", finalizers=[FINALIZER], allocation=AllocationResult(), reserved_for=(MINE,))
    async with run_writes(as_reply(claim("2", finalizers=[FINALIZER])), status(code, ""), as_reply(done)) as world:
        assert await world.writes.perform(RESERVE) == done
        assert world.requests() == [f"PATCH {PATH}", f"PATCH {PATH}/status", f"GET {PATH}"]


@async_test
async def test_after_a_conflict_the_current_claim_is_patched() -> None:
    newer = claim("8", finalizers=[FINALIZER])
    async with run_writes(CONFLICT, as_reply(newer), as_reply(claim("9"))) as world:
        await world.writes.perform(RESERVE)
        assert world.requests() == [f"PATCH {PATH}", f"GET {PATH}", f"PATCH {PATH}/status"]
        assert world.server.requests[-1].json["metadata"] == {"resourceVersion": "8"}


@async_test
async def test_repeated_conflicts_end() -> None:
    answers = [each for _ in range(5) for each in (CONFLICT, as_reply(claim("8")))]
    async with run_writes(*answers) as world:
        with pytest.raises(ApiError, match=r"^add allocation and reservation to claim default/c: the object has been"):
            await world.writes.perform(RESERVE)
        assert len(world.requests()) == 9  # the last conflict is not followed by a read


@pytest.mark.parametrize(
    ("newer", "text"),
    [
        pytest.param(
            claim("8", allocation=AllocationResult()),
            "claim default/c got allocated elsewhere in the meantime",
            id="allocated",
        ),
        pytest.param(claim("8", deleted=True), "claim default/c got deleted in the meantime", id="deleted"),
    ],
)
def test_a_claim_that_was_allocated_or_deleted_meanwhile(newer: ResourceClaim, text: str) -> None:
    @async_test
    async def test() -> None:
        async with run_writes(CONFLICT, as_reply(newer)) as world:
            with pytest.raises(BayplanError) as found:
                await world.writes.perform(RESERVE)
            assert str(found.value) == text

    test()


@pytest.mark.parametrize(
    ("finalizers", "text"),
    [
        pytest.param((), "add finalizer to claim default/c: not you", id="the finalizer"),
        pytest.param((FINALIZER,), "add allocation and reservation to claim default/c: not you", id="the status"),
    ],
)
def test_failures_name_the_operation(finalizers: tuple[str, ...], text: str) -> None:
    @async_test
    async def test() -> None:
        unchanged = as_reply(claim(finalizers=finalizers))
        async with run_writes(status(403, "Forbidden", "not you"), unchanged) as world:
            intent = devices.ReserveClaim(claim(finalizers=finalizers), POD, CREATED, AllocationResult())
            with pytest.raises(ApiError) as found:
                await world.writes.perform(intent)
            assert str(found.value) == text

    test()


@async_test
async def test_a_pod_is_removed_from_a_shared_claim() -> None:
    async with run_writes(as_reply(claim())) as world:
        world.writes.submit(devices.UnreserveClaim(claim(reserved_for=(MINE,)), POD))
        await world.writes.drain()
        (request,) = world.server.requests
        assert request.headers["content-type"] == "application/strategic-merge-patch+json"
        assert request.json["status"] == {"reservedFor": [{"$patch": "delete", "uid": POD.uid}]}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["older-ends-first", "newer-ends-first"])
@async_test
async def test_a_reservation_waits_for_all_releases_of_the_claim(order: tuple[int, int]) -> None:
    async with run_writes() as world:
        claims, reads = world.writes._claim_writes, list[str]()
        ends: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future() for _ in range(2)]

        async def read(*args: Any, **_: Any) -> ResourceClaim:
            reads.append(args[2])
            return claim("2", finalizers=(FINALIZER,), reserved_for=(MINE,), allocation=AllocationResult())

        claims._client.get = read  # type: ignore[method-assign, assignment]
        for end in ends:
            claims.track_release(devices.UnreserveClaim(claim(), POD), asyncio.ensure_future(_wait_for(end)))
        work = asyncio.ensure_future(world.writes.perform(RESERVE))
        for each in order:
            for _ in range(20):
                await asyncio.sleep(0)
            assert reads == []
            ends[each].set_result(None)
        await work
        assert reads == ["c"]


async def _wait_for(end: asyncio.Future[None]) -> None:
    await end


@async_test
async def test_a_reservation_does_not_wait_for_finished_releases() -> None:
    reserved = claim("2", finalizers=(FINALIZER,), reserved_for=(MINE,), allocation=AllocationResult())
    free = claim("3", finalizers=(FINALIZER,), allocation=AllocationResult())
    async with run_writes(as_reply(free), as_reply(reserved)) as world:
        world.writes.submit(devices.UnreserveClaim(reserved, POD))
        await world.writes.drain()
        await world.writes.perform(devices.ReserveClaim(free, POD, CREATED))
        assert world.requests() == [f"PATCH {PATH}/status", f"PATCH {PATH}/status"]


@async_test
async def test_failures_of_submitted_intents_are_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    allocated = claim(allocation=AllocationResult())
    async with run_writes(status(403, "Forbidden", "not you"), as_reply(allocated)) as world:
        world.writes.submit(devices.DeallocateClaim(allocated))
        world.writes.submit("a wish")
        await world.writes.drain()
    assert "DeallocateClaim failed" in caplog.text
    assert "not you" in caplog.text


@pytest.mark.parametrize(
    ("answers", "methods"),
    [
        pytest.param([as_reply(claim("2")), Reply()], ["PATCH", "DELETE"], id="in two steps"),
        pytest.param([CONFLICT, as_reply(claim("2")), Reply()], ["PATCH", "GET", "DELETE"], id="after a conflict"),
        pytest.param([status(404, "NotFound")] * 2, ["PATCH", "GET"], id="deleted"),
        pytest.param([as_reply(claim("2")), status(404, "NotFound")], ["PATCH", "DELETE"], id="deleted in between"),
    ],
)
def test_a_special_claim_is_deleted(answers: list[ServerAnswer], methods: list[str]) -> None:
    @async_test
    async def test() -> None:
        async with run_writes(*answers) as world:
            await world.writes.perform(devices.DeleteClaim(claim(finalizers=[FINALIZER])))
            assert [each.method for each in world.server.requests] == methods

    test()


@async_test
async def test_waiting_for_devices() -> None:
    looks: list[float] = []
    async with run_writes() as world:

        def done() -> bool:
            looks.append(world.clock.monotonic_s())
            return len(looks) == 3

        intent = devices.WaitForDevices(POD, "waiting for binding conditions for device on node n", done, 600.0)
        waiting = asyncio.ensure_future(world.writes.perform(intent))
        await wait_until(waiting.done, tick=lambda: world.clock.advance(1.0))
        assert looks == [0.0, 5.0, 10.0]
        (event,) = world.events.recorded
        assert (event.kind, event.reason, event.action) == ("Normal", "BindingConditionsPending", "Scheduling")


@async_test
async def test_a_server_without_claims() -> None:
    async with run_writes(claims=False) as world:
        with pytest.raises(UnsupportedIntent, match="offers no resource claims"):
            await world.writes.perform(RESERVE)


# bindings


@async_test
async def test_a_binding_is_read_back_until_its_outcome_is_known() -> None:
    there = {"metadata": {"name": POD.name, "namespace": POD.namespace, "uid": POD.uid}, "spec": {"nodeName": "n"}}
    unknown = [status(500, "InternalError", "oops"), status(401, "Unauthorized"), status(503, "ServiceUnavailable")]
    async with run_writes(*unknown, Reply(200, there)) as world:
        binding = asyncio.ensure_future(world.writes.perform(BindPod(POD, "n")))
        await wait_until(binding.done, tick=lambda: world.clock.advance(1.0))
        await binding
        assert [each.split()[0] for each in world.requests()] == ["POST", "GET", "GET", "GET"]
