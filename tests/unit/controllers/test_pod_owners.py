"""What controllers of pods share: who wakes whom, adoption, creations and deletions in batches, and expectations."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.controllers.core.api_types import (
    REPLICA_SETS,
    PodFields,
    Tree,
    UntypedObject,
)
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
from support.harness.single_controller import ControllerRig, rig_of

WEB = ("default", "web")
PODS_PATH = "/api/v1/namespaces/default/pods"
WEB_PATH = "/apis/apps/v1/namespaces/default/replicasets/web"
GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
SELECTS = {"matchLabels": {"app": "web"}}


class Sets(ReplicaSetController):
    """Keeps what events would say."""

    said: list[tuple[str, str, bool]]

    def record_event(self, resource: Any, item: Any, reason: str, note: str, *, warning: bool = False) -> None:  # noqa: ARG002
        self.said = [*getattr(self, "said", []), (reason, note, warning)]


def owner(name: str = "web", *, selector: Tree | None = SELECTS, **meta: Any) -> UntypedObject:
    whole = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "5", **meta}
    return convert({"metadata": whole, "spec": {"selector": selector}}, UntypedObject)


def pod(
    name: str = "p", *, of: str = "", app: str = "web", kind: str = "ReplicaSet", phase: str = "Running", **meta: Any
) -> PodFields:
    references = [{"apiVersion": "apps/v1", "kind": kind, "name": of, "uid": f"uid-{of}", "controller": True}]
    whole = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": {"app": app}, **meta}
    whole["ownerReferences"] = references if of else []
    return convert({"metadata": whole, "status": {"phase": phase}}, PodFields)


# Who is woken


@pytest.mark.parametrize(
    ("old", "new", "woken"),
    [
        pytest.param(None, pod(of="web"), {"web"}, id="comes"),
        pytest.param(pod(of="web"), pod(of="web", phase="Failed"), {"web"}, id="changes"),
        pytest.param(pod(of="web"), None, {"web"}, id="goes"),
        pytest.param(None, pod(of="web", kind="Job"), set(), id="of-another-kind"),
        pytest.param(None, pod(), {"web"}, id="orphan-that-fits"),
        pytest.param(None, pod(app="none"), set(), id="orphan-that-does-not-fit"),
        pytest.param(pod(), pod(phase="Failed"), set(), id="orphan-changes"),
        pytest.param(pod(app="none"), pod(), {"web"}, id="orphan-fits-now"),
        pytest.param(pod(), None, set(), id="orphan-goes"),
        pytest.param(pod(of="db"), pod(), {"db", "web"}, id="is-let-go"),
        pytest.param(pod(of="db"), pod(of="web"), {"db", "web"}, id="changes-its-owner"),
        pytest.param(pod(of="db", kind="Job"), pod(of="web"), {"web"}, id="comes-from-another-kind"),
    ],
)
@async_test
async def test_whom_a_pod_wakes(old: PodFields | None, new: PodFields | None, woken: set[str]) -> None:
    async with rig_of(Sets) as rig:
        other = owner("db", selector={"matchLabels": {"app": "db"}})
        far = convert({"metadata": {"name": "far", "namespace": "far"}, "spec": {"selector": SELECTS}}, UntypedObject)
        rig.hear(rig.controller.owners, owner(), other, far)
        if old is not None:
            rig.hear(rig.controller.pods, old)
        assert rig.queued()
        if new is not None:
            rig.hear(rig.controller.pods, new)
        elif old is not None:
            rig.hear_gone(rig.controller.pods, old)
        assert rig.queued() == {("default", name): 0.0 for name in woken}


@async_test
async def test_an_owner_of_many_pods_waits_a_moment() -> None:
    async with rig_of(Sets) as rig:
        for number in range(BATCH_THRESHOLD):
            rig.hear(rig.controller.pods, pod(f"p{number}", of="web"))
            assert rig.queued() == {WEB: 0.0}
        rig.hear(rig.controller.pods, pod("last", of="web"))
        assert rig.queued() == {WEB: pytest.approx(BATCH_PERIOD_S, abs=0.06)}


@async_test
async def test_pods_that_come_and_go_are_expected() -> None:
    async with rig_of(Sets) as rig:
        expected, pods = rig.controller.expectations, rig.controller.pods
        expected.expect_creations("uid-web", 1)
        rig.hear(pods, pod("other", of="db"))
        assert not expected.satisfied("uid-web")
        rig.hear(pods, pod(of="web"))
        assert expected.satisfied("uid-web")
        expected.expect_creations("uid-web", 1)
        expected.expect_deletion("uid-web", "uid-p")
        rig.hear(pods, pod(of="web", phase="Failed"))
        assert not expected.satisfied("uid-web")
        rig.hear(pods, pod("second", of="web"))
        assert not expected.satisfied("uid-web")
        rig.hear(pods, pod(of="web", **GOING))
        assert expected.satisfied("uid-web")
        expected.expect_deletion("uid-web", "uid-second")
        rig.hear_gone(pods, pod("second", of="web"))
        assert expected.satisfied("uid-web")
        expected.expect_creations("uid-web", 1)
        rig.hear(rig.controller.owners, owner(), owner())
        assert not expected.satisfied("uid-web")
        rig.hear_gone(rig.controller.owners, owner())
        assert expected.satisfied("uid-web")


# Adoption


LIVES = {"metadata": {"name": "web", "uid": "uid-web"}}


async def own(rig: ControllerRig[Sets], item: UntypedObject, *pods: PodFields) -> list[str]:
    rig.hear(rig.controller.owners, item)
    rig.hear(rig.controller.pods, *pods)
    return [each.name for each in await rig.controller.claim_pods(item)]


@pytest.mark.parametrize(
    ("found", "server", "adopted"),
    [
        pytest.param(pod(), LIVES, True, id="fits"),
        pytest.param(pod(app="none"), LIVES, False, id="does-not-fit"),
        pytest.param(pod(phase="Succeeded"), LIVES, False, id="finished"),
        pytest.param(pod(**GOING), LIVES, False, id="terminating"),
        pytest.param(pod(of="db"), LIVES, False, id="of-another-owner"),
        pytest.param(pod(), {"metadata": {"uid": "another"}}, False, id="owner-was-made-again"),
        pytest.param(pod(), {"metadata": {"uid": "uid-web", **GOING}}, False, id="owner-terminates"),
        pytest.param(pod(), NotFound("gone", code=404), False, id="owner-is-gone"),
    ],
)
@async_test
async def test_which_orphans_are_adopted(found: PodFields, server: Any, adopted: bool) -> None:
    async with rig_of(Sets, {f"GET {WEB_PATH}": server}) as rig:
        assert await own(rig, owner(), found) == (["p"] if adopted else [])
        body = {"metadata": {"uid": "uid-p", "ownerReferences": [owner_reference(REPLICA_SETS, owner())]}}
        assert rig.writes == ([(f"PATCH {PODS_PATH}/p", body)] if adopted else [])


@async_test
async def test_an_orphan_that_went_meanwhile_is_not_counted() -> None:
    answers = {f"GET {WEB_PATH}": LIVES, f"PATCH {PODS_PATH}/p": NotFound("gone", code=404)}
    async with rig_of(Sets, answers) as rig:
        assert await own(rig, owner(), pod(), pod("q")) == ["q"]


@pytest.mark.parametrize(
    ("item", "found", "let_go"),
    [
        pytest.param(owner(), pod(of="web", app="none"), True, id="does-not-fit-any-more"),
        pytest.param(owner(), pod(of="web", app="none", **GOING), False, id="terminates"),
        pytest.param(owner(**GOING), pod(of="web", app="none"), False, id="owner-terminates"),
        pytest.param(
            owner(selector={"matchExpressions": [{"key": "a", "operator": "?"}]}), pod(of="web"), True, id="bad"
        ),
    ],
)
@async_test
async def test_which_pods_are_let_go(item: UntypedObject, found: PodFields, let_go: bool) -> None:
    answers = {f"PATCH {PODS_PATH}/p": NotFound("gone", code=404)}
    async with rig_of(Sets, answers) as rig:
        assert await own(rig, item, found) == []
        body = {"metadata": {"uid": "uid-p", "ownerReferences": [{"$patch": "delete", "uid": "uid-web"}]}}
        assert rig.requests == ([(f"PATCH {PODS_PATH}/p", body)] if let_go else [])


@pytest.mark.parametrize(
    "item", [pytest.param(owner(**GOING), id="terminating"), pytest.param(owner(selector={}), id="selects-everything")]
)
@async_test
async def test_owners_that_adopt_nothing(item: UntypedObject) -> None:
    async with rig_of(Sets, {f"GET {WEB_PATH}": LIVES}) as rig:
        assert await own(rig, item, pod("mine", of="web"), pod("stray")) == ["mine"]
        assert rig.requests == []


def test_the_reference_of_an_owner_is_that_of_its_controller() -> None:
    assert owner_reference(REPLICA_SETS, owner()) == {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web",
        "uid": "uid-web",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert generated_prefix("web") == "web-"
    assert count_where([pod(), pod(app="db"), pod(of="web")], lambda each: each.labels["app"] == "web") == 2


def test_an_object_without_a_selector_selects_nothing() -> None:
    assert not selector_of(owner(selector=None)).matches({"app": "web"})


@pytest.mark.parametrize(
    ("name", "generate", "expected"), [("p-0", "", {"name": "p-0"}), ("", "p-", {"generateName": "p-"})]
)
def test_a_pod_of_a_template(name: str, generate: str, expected: Tree) -> None:
    template = {"metadata": {"labels": {"a": "b"}, "annotations": {}, "name": "no"}, "spec": {"hostname": "h"}}
    reference = {"uid": "u"}
    whole = {"apiVersion": "v1", "kind": "Pod"}
    meta = {"labels": {"a": "b"}, **expected, "ownerReferences": [reference]}
    made = pod_from_template(template, reference, name=name, generate=generate)
    assert made == {**whole, "metadata": meta, "spec": {"hostname": "h"}}
    bare = {**whole, "metadata": {**expected, "ownerReferences": [reference]}, "spec": {}}
    assert pod_from_template({}, reference, name=name, generate=generate) == bare


# Creations and deletions


MADE = {"metadata": {"name": "web-x", "namespace": "default"}}


@async_test
async def test_created_pods_are_expected_and_reported() -> None:
    async with rig_of(Sets, {f"POST {PODS_PATH}": MADE}) as rig:
        await rig.controller.create_pods(owner(), [{"n": 0}, {"n": 1}])
        assert rig.requests == [(f"POST {PODS_PATH}", {"n": number}) for number in range(2)]
        assert rig.controller.said == [("SuccessfulCreate", "Created pod: web-x", False)] * 2
        for left in (1, 0):
            assert not rig.controller.expectations.satisfied("uid-web")
            rig.hear(rig.controller.pods, pod(f"p{left}", of="web"))
        assert rig.controller.expectations.satisfied("uid-web")
        await rig.controller.create_pods(owner(), [{}], record_each=False)
        assert len(rig.controller.said) == 2


ENDING = "namespace default is being terminated"


@pytest.mark.parametrize(
    ("fault", "raised", "said"),
    [
        pytest.param(
            Forbidden("quota", code=403), True, [("FailedCreate", "Error creating: quota", True)], id="refused"
        ),
        pytest.param(Forbidden(ENDING, code=403), False, [], id="namespace-ends"),
        pytest.param(
            Refused(ENDING, code=500), True, [("FailedCreate", f"Error creating: {ENDING}", True)], id="another-error"
        ),
        pytest.param(ZeroDivisionError(), True, [], id="bug"),
    ],
)
@async_test
async def test_a_refused_pod_stops_the_rest_and_is_not_expected(fault: Exception, raised: bool, said: Any) -> None:
    async with rig_of(Sets, {f"POST {PODS_PATH}": fault}) as rig:
        try:
            await rig.controller.create_pods(owner(), [{}] * 5)
            assert not raised
        except type(fault):
            assert raised
        assert len(rig.requests) == 1
        assert getattr(rig.controller, "said", []) == said
        assert rig.controller.expectations.satisfied("uid-web")


@async_test
async def test_deleted_pods_are_expected_and_reported() -> None:
    answers = {f"DELETE {PODS_PATH}/gone": NotFound("gone", code=404)}
    async with rig_of(Sets, answers) as rig:
        rig.hear(rig.controller.pods, pod(of="web"), pod("gone", of="web"))
        await rig.controller.delete_pods(owner(), [pod(of="web"), pod("gone", of="web")])
        assert [(line, body["preconditions"]) for line, body in rig.requests] == [
            (f"DELETE {PODS_PATH}/p", {"uid": "uid-p"}),
            (f"DELETE {PODS_PATH}/gone", {"uid": "uid-gone"}),
        ]
        assert rig.controller.said == [("SuccessfulDelete", "Deleted pod: p", False)]
        assert not rig.controller.expectations.satisfied("uid-web")
        rig.hear_gone(rig.controller.pods, pod(of="web"))
        assert rig.controller.expectations.satisfied("uid-web")


@async_test
async def test_a_refused_deletion_is_raised_and_nothing_is_expected() -> None:
    pods = [pod(f"p{number}", of="web") for number in range(20)]
    answers = {f"DELETE {PODS_PATH}/{each.name}": Conflict("changed", code=409) for each in pods}
    async with rig_of(Sets, answers) as rig:
        with pytest.raises(Conflict):
            await rig.controller.delete_pods(owner(), pods)
        assert len(rig.requests) == 16
        assert rig.controller.said == [("FailedDelete", "Error deleting: changed", True)] * 16
        assert rig.controller.expectations.satisfied("uid-web")


@pytest.mark.parametrize(
    ("count", "first", "failing", "tried"),
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
async def test_work_in_growing_batches(count: int, first: int, failing: int | None, tried: int) -> None:
    done = []

    async def work(index: int) -> None:
        done.append(index)
        if index == failing:
            raise Conflict("no", code=409)

    found, faults = await slow_start_batch(count, work, first=first)
    assert (found, len(faults), done) == (tried, failing is not None, list(range(tried)))


def test_a_bug_is_raised_before_a_refusal() -> None:
    raise_first_error([])
    with pytest.raises(ZeroDivisionError):
        raise_first_error([Conflict("no", code=409), ZeroDivisionError()])


# Expectations


def test_expectations_end_with_the_last_creation_and_deletion() -> None:
    expected = Expectations(ManualClock())
    assert expected.satisfied("u")
    expected.expect_creations("u", 3)
    expected.expect_creations("u", 1)
    expected.lower_creations("u", 2)
    expected.creation_observed("u")
    assert not expected.satisfied("u")
    expected.expect_deletion("u", "a")
    expected.creation_observed("u")
    expected.creation_observed("u")
    assert not expected.satisfied("u")
    expected.deletion_observed("u", "b")
    assert not expected.satisfied("u")
    expected.deletion_observed("u", "a")
    assert expected.satisfied("u")
    expected.creation_observed("u")
    expected.lower_creations("u")
    expected.deletion_observed("u", "a")
    assert expected.satisfied("u")


def test_expectations_are_forgotten_after_five_minutes() -> None:
    clock = ManualClock()
    expected = Expectations(clock)
    expected.expect_creations("u", 1)
    clock.advance(EXPECTATIONS_TIMEOUT_S - 1)
    assert not expected.satisfied("u")
    clock.advance(1)
    assert expected.satisfied("u")
    expected.expect_deletion("u", "a")
    clock.advance(299)
    expected.expect_deletion("u", "b")
    clock.advance(299)
    assert not expected.satisfied("u")
