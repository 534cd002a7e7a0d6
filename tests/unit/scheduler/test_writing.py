"""Intents as requests: what is sent, what is tried again, and in which words a failure is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bayplan.clock import ManualClock
from bayplan.devices import intents as devices
from bayplan.errors import ApiError, BayplanError, Conflict
from bayplan.framework.intents import AnnotatePod, BindPod
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.resource import (
    AllocationResult,
    ResourceClaim,
    ResourceClaimConsumer,
    ResourceClaimStatus,
)
from bayplan.objects.storage import ClaimReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec
from bayplan.scheduler.writing import ApiWrites, Unperformable
from bayplan.volumes.claims import SELECTED_NODE
from bayplan.volumes.promises import AwaitVolumes, PromiseVolume, SelectNode
from builders import LONG_AGO, make_pod
from live_rig import CLAIMS, RecordedEvents
from wire_server import Answer, Reply, WireServer, on_loop, status, until

POD = make_pod("p")
FINALIZER = "resource.kubernetes.io/delete-protection"
PATH = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"


@dataclass
class World:
    server: WireServer
    clock: ManualClock
    writes: ApiWrites
    events: RecordedEvents
    exists: dict[str, bool]

    def asked(self) -> list[str]:
        return self.server.asked()


@asynccontextmanager
async def writing(*answers: Answer, claims: bool = True) -> AsyncIterator[World]:
    clock, events, exists = ManualClock(), RecordedEvents(), {"p": True}
    async with WireServer(script=answers) as server, server.client(clock) as client:
        writes = ApiWrites(
            client,
            events,
            clock=clock,
            claims=CLAIMS if claims else None,
            exists=lambda pod: exists[pod.name],
        )
        yield World(server, clock, writes, events, exists)


def claim(version: str = "1", **fields: Any) -> ResourceClaim:
    finalizers = fields.pop("finalizers", ())
    deleted = LONG_AGO if fields.pop("deleted", False) else None
    meta = ObjectMeta(
        name="c",
        namespace="default",
        uid="u",
        resource_version=version,
        finalizers=tuple(finalizers),
        deletion_timestamp=deleted,
    )
    return ResourceClaim(metadata=meta, status=ResourceClaimStatus(**fields))


def given(item: Any) -> Reply:
    return Reply(200, msgspec.json.encode(item))


CONFLICT = status(409, "Conflict", "the object has been modified")
MINE = ResourceClaimConsumer(resource="pods", name="p", uid=POD.uid)
RESERVE = devices.ReserveClaim(claim(), POD, LONG_AGO, AllocationResult())


@on_loop
async def test_what_nobody_knows_is_refused() -> None:
    async with writing() as world:
        with pytest.raises(Unperformable):
            await world.writes.perform("a wish")


@on_loop
async def test_a_patch_with_an_unknown_outcome_is_made_again_from_a_version_that_another_writer_made() -> None:
    before, after = replace(POD.metadata, resource_version="1"), replace(POD.metadata, resource_version="2")
    seen, found = replace(POD, metadata=before), replace(POD, metadata=after)
    done = replace(POD, metadata=replace(after, annotations={"gpu": "1"}))
    answers = status(500, "InternalError"), given(found), given(found), given(done)
    async with writing(*answers) as world:
        await world.writes.perform(AnnotatePod(seen, {"gpu": "1"}))
        patches = [each.json for each in world.server.requests if each.method == "PATCH"]
        assert [each["metadata"]["resourceVersion"] for each in patches] == ["1", "2"]


# volumes


@on_loop
async def test_a_volume_is_promised_on_the_version_it_was_chosen_by() -> None:
    meta = ObjectMeta(name="v", resource_version="7", annotations={"pv.kubernetes.io/bound-by-controller": "yes"})
    ref = ClaimReference("PersistentVolumeClaim", "default", "c", "u", "v1", "3")
    volume = PersistentVolume(metadata=meta, spec=PersistentVolumeSpec(claim_ref=ref))
    async with writing(given(volume)) as world:
        found = await world.writes.perform(PromiseVolume(volume))
        assert found == volume
        (request,) = world.server.requests
        assert (request.method, request.path) == ("PATCH", "/api/v1/persistentvolumes/v")
        assert request.json["metadata"] == {
            "resourceVersion": "7",
            "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"},
        }
        assert request.json["spec"]["claimRef"]["uid"] == "u"


@on_loop
async def test_a_claim_is_told_its_node_and_a_conflict_is_for_the_pod_to_sort_out() -> None:
    meta = ObjectMeta(name="c", namespace="default", resource_version="7", annotations={SELECTED_NODE: "n"})
    async with writing(CONFLICT) as world:
        with pytest.raises(Conflict):
            await world.writes.perform(SelectNode(PersistentVolumeClaim(metadata=meta)))
        assert world.asked() == ["PATCH /api/v1/namespaces/default/persistentvolumeclaims/c"]
        assert world.server.requests[0].json["metadata"]["annotations"] == {SELECTED_NODE: "n"}


@on_loop
async def test_waiting_for_volumes_asks_every_second_and_gives_up_in_time() -> None:
    looks: list[float] = []
    async with writing() as world:

        def done() -> bool:
            looks.append(world.clock.monotonic_s())
            return False

        waiting = asyncio.ensure_future(world.writes.perform(AwaitVolumes(POD, done, 3.5)))
        await until(waiting.done, tick=lambda: world.clock.advance(0.25))
        assert isinstance(waiting.exception(), TimeoutError)
        assert looks == [1.0, 2.0, 3.0, 3.5]


@pytest.mark.parametrize("how", ["done", "pod gone", "never"])
def test_how_waiting_for_volumes_ends(how: str) -> None:
    @on_loop
    async def test() -> None:
        async with writing() as world:

            def done() -> bool:
                if how == "never":
                    raise BayplanError('provisioning failed for PVC "c"')
                return how == "done"

            world.exists["p"] = how != "pod gone"
            waiting = asyncio.ensure_future(world.writes.perform(AwaitVolumes(POD, done, 60.0)))
            await until(waiting.done, tick=lambda: world.clock.advance(0.5))
            assert world.clock.monotonic_s() >= 1.0
            if how == "done":
                assert waiting.exception() is None
            else:
                said = {"pod gone": 'pod does not exist any more: pod "p" not found'}
                assert str(waiting.exception()) == said.get(how, 'provisioning failed for PVC "c"')

    test()


# devices


@on_loop
async def test_a_claim_is_protected_then_allocated_and_reserved() -> None:
    protected = claim("2", finalizers=[FINALIZER])
    done = claim("3", finalizers=[FINALIZER], allocation=AllocationResult(), reserved_for=(MINE,))
    async with writing(given(protected), given(done)) as world:
        assert await world.writes.perform(RESERVE) == done
        assert world.asked() == [f"PATCH {PATH}", f"PATCH {PATH}/status"]
        first, second = [each.json for each in world.server.requests]
        assert first == {"metadata": {"resourceVersion": "1", "finalizers": [FINALIZER]}}
        assert second["metadata"] == {"resourceVersion": "2"}
        assert second["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": POD.uid}]
        assert "allocationTimestamp" in second["status"]["allocation"]


@pytest.mark.parametrize("code", [403, 404, 422, 429])
@on_loop
async def test_a_claim_is_read_after_a_refusal_before_its_devices_are_free(code: int) -> None:
    done = claim("3", finalizers=[FINALIZER], allocation=AllocationResult(), reserved_for=(MINE,))
    async with writing(given(claim("2", finalizers=[FINALIZER])), status(code, ""), given(done)) as world:
        assert await world.writes.perform(RESERVE) == done
        assert world.asked() == [f"PATCH {PATH}", f"PATCH {PATH}/status", f"GET {PATH}"]


@on_loop
async def test_a_conflict_begins_again_from_the_claim_as_it_is() -> None:
    newer = claim("8", finalizers=[FINALIZER])
    async with writing(CONFLICT, given(newer), given(claim("9"))) as world:
        await world.writes.perform(RESERVE)
        assert world.asked() == [f"PATCH {PATH}", f"GET {PATH}", f"PATCH {PATH}/status"]
        assert world.server.requests[-1].json["metadata"] == {"resourceVersion": "8"}


@on_loop
async def test_conflicts_without_end() -> None:
    answers = [each for _ in range(5) for each in (CONFLICT, given(claim("8")))]
    async with writing(*answers) as world:
        with pytest.raises(ApiError, match=r"^add allocation and reservation to claim default/c: the object has been"):
            await world.writes.perform(RESERVE)
        assert len(world.asked()) == 9  # the last conflict is not followed by a read


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
def test_a_claim_that_changed_for_good(newer: ResourceClaim, text: str) -> None:
    @on_loop
    async def test() -> None:
        async with writing(CONFLICT, given(newer)) as world:
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
def test_failures_say_what_was_being_done(finalizers: tuple[str, ...], text: str) -> None:
    @on_loop
    async def test() -> None:
        unchanged = given(claim(finalizers=finalizers))
        async with writing(status(403, "Forbidden", "not you"), unchanged) as world:
            intent = devices.ReserveClaim(claim(finalizers=finalizers), POD, LONG_AGO, AllocationResult())
            with pytest.raises(ApiError) as found:
                await world.writes.perform(intent)
            assert str(found.value) == text

    test()


@on_loop
async def test_a_pod_is_taken_off_a_claim_whoever_else_is_on_it() -> None:
    async with writing(given(claim())) as world:
        world.writes.submit(devices.UnreserveClaim(claim(reserved_for=(MINE,)), POD))
        await world.writes.drain()
        (request,) = world.server.requests
        assert request.headers["content-type"] == "application/strategic-merge-patch+json"
        assert request.json["status"] == {"reservedFor": [{"$patch": "delete", "uid": POD.uid}]}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["older-ends-first", "newer-ends-first"])
@on_loop
async def test_a_reservation_waits_for_all_removals_of_the_claim(order: tuple[int, int]) -> None:
    async with writing() as world:
        claims, reads = world.writes._claim_writes, list[str]()
        ends: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future() for _ in range(2)]

        async def read(*args: Any, **_: Any) -> ResourceClaim:
            reads.append(args[2])
            return claim("2", finalizers=(FINALIZER,), reserved_for=(MINE,), allocation=AllocationResult())

        claims._client.get = read  # type: ignore[method-assign, assignment]
        for end in ends:
            claims.withdrawal_started(devices.UnreserveClaim(claim(), POD), asyncio.ensure_future(_wait_for(end)))
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


@on_loop
async def test_a_reservation_does_not_wait_for_removals_that_have_ended() -> None:
    reserved = claim("2", finalizers=(FINALIZER,), reserved_for=(MINE,), allocation=AllocationResult())
    free = claim("3", finalizers=(FINALIZER,), allocation=AllocationResult())
    async with writing(given(free), given(reserved)) as world:
        world.writes.submit(devices.UnreserveClaim(reserved, POD))
        await world.writes.drain()
        await world.writes.perform(devices.ReserveClaim(free, POD, LONG_AGO))
        assert world.asked() == [f"PATCH {PATH}/status", f"PATCH {PATH}/status"]


@on_loop
async def test_what_nobody_waits_for_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    allocated = claim(allocation=AllocationResult())
    async with writing(status(403, "Forbidden", "not you"), given(allocated)) as world:
        world.writes.submit(devices.DeallocateClaim(allocated))
        world.writes.submit("a wish")
        await world.writes.drain()
    assert "DeallocateClaim failed" in caplog.text
    assert "not you" in caplog.text


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        pytest.param([given(claim("2")), Reply()], ["PATCH", "DELETE"], id="in two steps"),
        pytest.param([CONFLICT, given(claim("2")), Reply()], ["PATCH", "GET", "DELETE"], id="others were quicker"),
        pytest.param([status(404, "NotFound")] * 2, ["PATCH", "GET"], id="gone"),
        pytest.param([given(claim("2")), status(404, "NotFound")], ["PATCH", "DELETE"], id="gone in between"),
    ],
)
def test_a_claim_of_ours_is_deleted(answers: list[Answer], asked: list[str]) -> None:
    @on_loop
    async def test() -> None:
        async with writing(*answers) as world:
            await world.writes.perform(devices.DeleteClaim(claim(finalizers=[FINALIZER])))
            assert [each.method for each in world.server.requests] == asked

    test()


@on_loop
async def test_devices_that_are_made_ready() -> None:
    looks: list[float] = []
    async with writing() as world:

        def done() -> bool:
            looks.append(world.clock.monotonic_s())
            return len(looks) == 3

        intent = devices.AwaitDevices(POD, "waiting for binding conditions for device on node n", done, 600.0)
        waiting = asyncio.ensure_future(world.writes.perform(intent))
        await until(waiting.done, tick=lambda: world.clock.advance(1.0))
        assert looks == [0.0, 5.0, 10.0]
        (told,) = world.events.told
        assert (told.kind, told.reason, told.action) == ("Normal", "BindingConditionsPending", "Scheduling")


@on_loop
async def test_a_server_without_claims() -> None:
    async with writing(claims=False) as world:
        with pytest.raises(Unperformable, match="offers no resource claims"):
            await world.writes.perform(RESERVE)


# bindings


@on_loop
async def test_a_pod_keeps_its_node_until_it_is_known_whether_it_has_it() -> None:
    there = {"metadata": {"name": POD.name, "namespace": POD.namespace, "uid": POD.uid}, "spec": {"nodeName": "n"}}
    unknown = [status(500, "InternalError", "oops"), status(401, "Unauthorized"), status(503, "ServiceUnavailable")]
    async with writing(*unknown, Reply(200, there)) as world:
        binding = asyncio.ensure_future(world.writes.perform(BindPod(POD, "n")))
        await until(binding.done, tick=lambda: world.clock.advance(1.0))
        await binding
        assert [each.split()[0] for each in world.asked()] == ["POST", "GET", "GET", "GET"]
