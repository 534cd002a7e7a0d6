"""Shared code of the controllers of pods: enqueued owners, adoption, batched creations and deletions, expectations."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.controllers.core.api_types import REPLICA_SETS, PodFields, Tree, UntypedObject
from bayplan.controllers.core.controller import raise_first_error, slow_start_batch
from bayplan.controllers.core.expectations import EXPECTATIONS_TIMEOUT_S, Expectations
from bayplan.controllers.core.owner_refs import (
    count_where,
    generated_prefix,
    owner_reference,
    pod_from_template,
    selector_of,
)
from bayplan.controllers.workloads.owned_pods import BATCH_PERIOD_S, BATCH_THRESHOLD
from bayplan.controllers.workloads.replica_sets import ReplicaSetController
from bayplan.errors import ApiError as Refused
from bayplan.errors import Conflict, Forbidden, NotFound
from bayplan.objects.kinds import convert
from support.harness.async_tests import async_test
from support.harness.single_controller import SingleControllerHarness, run_controller

WEB = ("default", "web")
PODS_PATH = "/api/v1/namespaces/default/pods"
WEB_PATH = "/apis/apps/v1/namespaces/default/replicasets/web"
TERMINATING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
SELECTOR = {"matchLabels": {"app": "web"}}


class RecordingController(ReplicaSetController):
    """Records events instead of sending them."""

    events: list[tuple[str, str, bool]]

    def record_event(self, resource: Any, item: Any, reason: str, note: str, *, warning: bool = False) -> None:  # noqa: ARG002
        self.events = [*getattr(self, "events", []), (reason, note, warning)]


def owner(name: str = "web", *, selector: Tree | None = SELECTOR, **meta: Any) -> UntypedObject:
    tree = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "5", **meta}
    return convert({"metadata": tree, "spec": {"selector": selector}}, UntypedObject)


def pod(
    name: str = "p",
    *,
    owner_name: str = "",
    app: str = "web",
    kind: str = "ReplicaSet",
    phase: str = "Running",
    **meta: Any,
) -> PodFields:
    references = [
        {"apiVersion": "apps/v1", "kind": kind, "name": owner_name, "uid": f"uid-{owner_name}", "controller": True}
    ]
    tree = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": {"app": app}, **meta}
    tree["ownerReferences"] = references if owner_name else []
    return convert({"metadata": tree, "status": {"phase": phase}}, PodFields)


# Enqueued owners.


@pytest.mark.parametrize(
    ("old", "new", "enqueued"),
    [
        pytest.param(None, pod(owner_name="web"), {"web"}, id="comes"),
        pytest.param(pod(owner_name="web"), pod(owner_name="web", phase="Failed"), {"web"}, id="changes"),
        pytest.param(pod(owner_name="web"), None, {"web"}, id="goes"),
        pytest.param(None, pod(owner_name="web", kind="Job"), set(), id="of-another-kind"),
        pytest.param(None, pod(), {"web"}, id="orphan-that-fits"),
        pytest.param(None, pod(app="none"), set(), id="orphan-that-does-not-fit"),
        pytest.param(pod(), pod(phase="Failed"), set(), id="orphan-changes"),
        pytest.param(pod(app="none"), pod(), {"web"}, id="orphan-fits-now"),
        pytest.param(pod(), None, set(), id="orphan-goes"),
        pytest.param(pod(owner_name="db"), pod(), {"db", "web"}, id="is-let-go"),
        pytest.param(pod(owner_name="db"), pod(owner_name="web"), {"db", "web"}, id="changes-its-owner"),
        pytest.param(pod(owner_name="db", kind="Job"), pod(owner_name="web"), {"web"}, id="comes-from-another-kind"),
    ],
)
@async_test
async def test_owners_enqueued_by_a_pod_event(old: PodFields | None, new: PodFields | None, enqueued: set[str]) -> None:
    async with run_controller(RecordingController) as harness:
        other = owner("db", selector={"matchLabels": {"app": "db"}})
        far = convert({"metadata": {"name": "far", "namespace": "far"}, "spec": {"selector": SELECTOR}}, UntypedObject)
        harness.deliver(harness.controller.owners, owner(), other, far)
        if old is not None:
            harness.deliver(harness.controller.pods, old)
        assert harness.queued()
        if new is not None:
            harness.deliver(harness.controller.pods, new)
        elif old is not None:
            harness.deliver_deletion(harness.controller.pods, old)
        assert harness.queued() == {("default", name): 0.0 for name in enqueued}


@async_test
async def test_an_owner_of_many_pods_is_enqueued_with_a_delay() -> None:
    async with run_controller(RecordingController) as harness:
        for number in range(BATCH_THRESHOLD):
            harness.deliver(harness.controller.pods, pod(f"p{number}", owner_name="web"))
            assert harness.queued() == {WEB: 0.0}
        harness.deliver(harness.controller.pods, pod("last", owner_name="web"))
        assert harness.queued() == {WEB: pytest.approx(BATCH_PERIOD_S, abs=0.06)}


@async_test
async def test_pod_events_fulfil_expectations() -> None:
    async with run_controller(RecordingController) as harness:
        expectations, pods = harness.controller.expectations, harness.controller.pods
        expectations.expect_creations("uid-web", 1)
        harness.deliver(pods, pod("other", owner_name="db"))
        assert not expectations.satisfied("uid-web")
        harness.deliver(pods, pod(owner_name="web"))
        assert expectations.satisfied("uid-web")
        expectations.expect_creations("uid-web", 1)
        expectations.expect_deletion("uid-web", "uid-p")
        harness.deliver(pods, pod(owner_name="web", phase="Failed"))
        assert not expectations.satisfied("uid-web")
        harness.deliver(pods, pod("second", owner_name="web"))
        assert not expectations.satisfied("uid-web")
        harness.deliver(pods, pod(owner_name="web", **TERMINATING))
        assert expectations.satisfied("uid-web")
        expectations.expect_deletion("uid-web", "uid-second")
        harness.deliver_deletion(pods, pod("second", owner_name="web"))
        assert expectations.satisfied("uid-web")
        expectations.expect_creations("uid-web", 1)
        harness.deliver(harness.controller.owners, owner(), owner())
        assert not expectations.satisfied("uid-web")
        harness.deliver_deletion(harness.controller.owners, owner())
        assert expectations.satisfied("uid-web")


# Adoption and release.


EXISTING = {"metadata": {"name": "web", "uid": "uid-web"}}


async def claim(
    harness: SingleControllerHarness[RecordingController], item: UntypedObject, *pods: PodFields
) -> list[str]:
    harness.deliver(harness.controller.owners, item)
    harness.deliver(harness.controller.pods, *pods)
    return [each.name for each in await harness.controller.claim_pods(item)]


@pytest.mark.parametrize(
    ("found", "server", "adopted"),
    [
        pytest.param(pod(), EXISTING, True, id="fits"),
        pytest.param(pod(app="none"), EXISTING, False, id="does-not-fit"),
        pytest.param(pod(phase="Succeeded"), EXISTING, False, id="finished"),
        pytest.param(pod(**TERMINATING), EXISTING, False, id="terminating"),
        pytest.param(pod(owner_name="db"), EXISTING, False, id="of-another-owner"),
        pytest.param(pod(), {"metadata": {"uid": "another"}}, False, id="owner-was-made-again"),
        pytest.param(pod(), {"metadata": {"uid": "uid-web", **TERMINATING}}, False, id="owner-terminates"),
        pytest.param(pod(), NotFound("gone", code=404), False, id="owner-is-gone"),
    ],
)
@async_test
async def test_adoption_of_orphans(found: PodFields, server: Any, adopted: bool) -> None:
    async with run_controller(RecordingController, {f"GET {WEB_PATH}": server}) as harness:
        assert await claim(harness, owner(), found) == (["p"] if adopted else [])
        body = {"metadata": {"uid": "uid-p", "ownerReferences": [owner_reference(REPLICA_SETS, owner())]}}
        assert harness.writes == ([(f"PATCH {PODS_PATH}/p", body)] if adopted else [])


@async_test
async def test_an_orphan_deleted_during_its_adoption_is_not_counted() -> None:
    answers = {f"GET {WEB_PATH}": EXISTING, f"PATCH {PODS_PATH}/p": NotFound("gone", code=404)}
    async with run_controller(RecordingController, answers) as harness:
        assert await claim(harness, owner(), pod(), pod("q")) == ["q"]


@pytest.mark.parametrize(
    ("item", "found", "released"),
    [
        pytest.param(owner(), pod(owner_name="web", app="none"), True, id="does-not-fit-any-more"),
        pytest.param(owner(), pod(owner_name="web", app="none", **TERMINATING), False, id="terminates"),
        pytest.param(owner(**TERMINATING), pod(owner_name="web", app="none"), False, id="owner-terminates"),
        pytest.param(
            owner(selector={"matchExpressions": [{"key": "a", "operator": "?"}]}), pod(owner_name="web"), True, id="bad"
        ),
    ],
)
@async_test
async def test_release_of_owned_pods(item: UntypedObject, found: PodFields, released: bool) -> None:
    answers = {f"PATCH {PODS_PATH}/p": NotFound("gone", code=404)}
    async with run_controller(RecordingController, answers) as harness:
        assert await claim(harness, item, found) == []
        body = {"metadata": {"uid": "uid-p", "ownerReferences": [{"$patch": "delete", "uid": "uid-web"}]}}
        assert harness.requests == ([(f"PATCH {PODS_PATH}/p", body)] if released else [])


@pytest.mark.parametrize(
    "item",
    [pytest.param(owner(**TERMINATING), id="terminating"), pytest.param(owner(selector={}), id="selects-everything")],
)
@async_test
async def test_owners_that_adopt_nothing(item: UntypedObject) -> None:
    async with run_controller(RecordingController, {f"GET {WEB_PATH}": EXISTING}) as harness:
        assert await claim(harness, item, pod("mine", owner_name="web"), pod("stray")) == ["mine"]
        assert harness.requests == []


def test_owner_reference_is_a_controller_reference() -> None:
    assert owner_reference(REPLICA_SETS, owner()) == {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web",
        "uid": "uid-web",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert generated_prefix("web") == "web-"
    assert count_where([pod(), pod(app="db"), pod(owner_name="web")], lambda each: each.labels["app"] == "web") == 2


def test_a_missing_selector_matches_nothing() -> None:
    assert not selector_of(owner(selector=None)).matches({"app": "web"})


@pytest.mark.parametrize(
    ("name", "generate", "expectations"), [("p-0", "", {"name": "p-0"}), ("", "p-", {"generateName": "p-"})]
)
def test_pod_from_template(name: str, generate: str, expectations: Tree) -> None:
    template = {"metadata": {"labels": {"a": "b"}, "annotations": {}, "name": "no"}, "spec": {"hostname": "h"}}
    reference = {"uid": "u"}
    tree = {"apiVersion": "v1", "kind": "Pod"}
    meta = {"labels": {"a": "b"}, **expectations, "ownerReferences": [reference]}
    created = pod_from_template(template, reference, name=name, generate=generate)
    assert created == {**tree, "metadata": meta, "spec": {"hostname": "h"}}
    bare = {**tree, "metadata": {**expectations, "ownerReferences": [reference]}, "spec": {}}
    assert pod_from_template({}, reference, name=name, generate=generate) == bare


# Creation and deletion.


CREATED = {"metadata": {"name": "web-x", "namespace": "default"}}


@async_test
async def test_created_pods_are_expected_and_reported() -> None:
    async with run_controller(RecordingController, {f"POST {PODS_PATH}": CREATED}) as harness:
        await harness.controller.create_pods(owner(), [{"n": 0}, {"n": 1}])
        assert harness.requests == [(f"POST {PODS_PATH}", {"n": number}) for number in range(2)]
        assert harness.controller.events == [("SuccessfulCreate", "Created pod: web-x", False)] * 2
        for left in (1, 0):
            assert not harness.controller.expectations.satisfied("uid-web")
            harness.deliver(harness.controller.pods, pod(f"p{left}", owner_name="web"))
        assert harness.controller.expectations.satisfied("uid-web")
        await harness.controller.create_pods(owner(), [{}], record_each=False)
        assert len(harness.controller.events) == 2


TERMINATING_MESSAGE = "namespace default is being terminated"


@pytest.mark.parametrize(
    ("fault", "raised", "events"),
    [
        pytest.param(
            Forbidden("quota", code=403), True, [("FailedCreate", "Error creating: quota", True)], id="refused"
        ),
        pytest.param(Forbidden(TERMINATING_MESSAGE, code=403), False, [], id="namespace-ends"),
        pytest.param(
            Refused(TERMINATING_MESSAGE, code=500),
            True,
            [("FailedCreate", f"Error creating: {TERMINATING_MESSAGE}", True)],
            id="another-error",
        ),
        pytest.param(ZeroDivisionError(), True, [], id="bug"),
    ],
)
@async_test
async def test_a_refused_creation_stops_the_rest_and_its_expectation(
    fault: Exception, raised: bool, events: Any
) -> None:
    async with run_controller(RecordingController, {f"POST {PODS_PATH}": fault}) as harness:
        try:
            await harness.controller.create_pods(owner(), [{}] * 5)
            assert not raised
        except type(fault):
            assert raised
        assert len(harness.requests) == 1
        assert getattr(harness.controller, "events", []) == events
        assert harness.controller.expectations.satisfied("uid-web")


@async_test
async def test_deleted_pods_are_expected_and_reported() -> None:
    answers = {f"DELETE {PODS_PATH}/gone": NotFound("gone", code=404)}
    async with run_controller(RecordingController, answers) as harness:
        harness.deliver(harness.controller.pods, pod(owner_name="web"), pod("gone", owner_name="web"))
        await harness.controller.delete_pods(owner(), [pod(owner_name="web"), pod("gone", owner_name="web")])
        assert [(line, body["preconditions"]) for line, body in harness.requests] == [
            (f"DELETE {PODS_PATH}/p", {"uid": "uid-p"}),
            (f"DELETE {PODS_PATH}/gone", {"uid": "uid-gone"}),
        ]
        assert harness.controller.events == [("SuccessfulDelete", "Deleted pod: p", False)]
        assert not harness.controller.expectations.satisfied("uid-web")
        harness.deliver_deletion(harness.controller.pods, pod(owner_name="web"))
        assert harness.controller.expectations.satisfied("uid-web")


@async_test
async def test_a_refused_deletion_is_raised_and_ends_its_expectation() -> None:
    pods = [pod(f"p{number}", owner_name="web") for number in range(20)]
    answers = {f"DELETE {PODS_PATH}/{each.name}": Conflict("changed", code=409) for each in pods}
    async with run_controller(RecordingController, answers) as harness:
        with pytest.raises(Conflict):
            await harness.controller.delete_pods(owner(), pods)
        assert len(harness.requests) == 16
        assert harness.controller.events == [("FailedDelete", "Error deleting: changed", True)] * 16
        assert harness.controller.expectations.satisfied("uid-web")


@pytest.mark.parametrize(
    ("count", "first", "failing", "calls"),
    [
        pytest.param(0, 1, None, 0, id="none"),
        pytest.param(10, 1, None, 10, id="all"),
        pytest.param(10, 1, 0, 1, id="the-first-fails"),
        pytest.param(10, 1, 1, 3, id="the-second-batch-has-two"),
        pytest.param(10, 1, 3, 7, id="the-third-batch-has-four"),
        pytest.param(10, 1, 9, 10, id="the-last-fails"),
        pytest.param(10, 4, 0, 4, id="a-larger-first-batch"),
    ],
)
@async_test
async def test_slow_start_doubles_its_batches(count: int, first: int, failing: int | None, calls: int) -> None:
    done = []

    async def work(index: int) -> None:
        done.append(index)
        if index == failing:
            raise Conflict("no", code=409)

    found, faults = await slow_start_batch(count, work, first=first)
    assert (found, len(faults), done) == (calls, failing is not None, list(range(calls)))


def test_a_bug_is_raised_before_a_refusal() -> None:
    raise_first_error([])
    with pytest.raises(ZeroDivisionError):
        raise_first_error([Conflict("no", code=409), ZeroDivisionError()])


# Expectations.


def test_expectations_end_with_the_last_creation_and_deletion() -> None:
    expectations = Expectations(ManualClock())
    assert expectations.satisfied("u")
    expectations.expect_creations("u", 3)
    expectations.expect_creations("u", 1)
    expectations.lower_creations("u", 2)
    expectations.creation_observed("u")
    assert not expectations.satisfied("u")
    expectations.expect_deletion("u", "a")
    expectations.creation_observed("u")
    expectations.creation_observed("u")
    assert not expectations.satisfied("u")
    expectations.deletion_observed("u", "b")
    assert not expectations.satisfied("u")
    expectations.deletion_observed("u", "a")
    assert expectations.satisfied("u")
    expectations.creation_observed("u")
    expectations.lower_creations("u")
    expectations.deletion_observed("u", "a")
    assert expectations.satisfied("u")


def test_expectations_expire_after_five_minutes() -> None:
    clock = ManualClock()
    expectations = Expectations(clock)
    expectations.expect_creations("u", 1)
    clock.advance(EXPECTATIONS_TIMEOUT_S - 1)
    assert not expectations.satisfied("u")
    clock.advance(1)
    assert expectations.satisfied("u")
    expectations.expect_deletion("u", "a")
    clock.advance(299)
    expectations.expect_deletion("u", "b")
    clock.advance(299)
    assert not expectations.satisfied("u")
