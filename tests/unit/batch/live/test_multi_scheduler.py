"""Several schedulers of one name divide jobs and nodes, and each uses only its part."""

from __future__ import annotations

import pytest

from bayplan.batch.live.multi_scheduler import HashRing, MultiScheduler
from bayplan.batch.live.options import BatchOptions
from bayplan.objects.meta import OwnerReference
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.framework import replace_fields
from support.harness.async_tests import async_test
from support.harness.live_batch import run_live_batch

WORDS = [f"job-{number}" for number in range(300)]
BOTH = [MultiScheduler(f"scheduler-{number}", 2) for number in range(2)]
OWNED = {"owner_references": (OwnerReference(kind="Job", name="train", uid="u", controller=True),)}


def test_the_ring_equals_volcanos() -> None:
    """As stathat.com/c/consistent assigns, with 20 points each and the checksum of the word."""
    ring = HashRing(["scheduler-0", "scheduler-1", "scheduler-2"])
    assert [ring.name_for(word)[-1] for word in ("train", "node-0", "node-1", "a", "")] == list("01101")


def test_most_words_keep_their_name_when_a_name_is_added() -> None:
    two, three = HashRing(["s-0", "s-1"]), HashRing(["s-0", "s-1", "s-2"])
    assert {two.name_for(word) for word in WORDS} == {"s-0", "s-1"}
    moved = [word for word in WORDS if two.name_for(word) != three.name_for(word)]
    assert {three.name_for(word) for word in moved} == {"s-2"}  # no other assignment changes


def test_a_pod_and_its_group_have_the_same_scheduler() -> None:
    pod, group = (
        replace_fields(make_member("train-w-0"), metadata=OWNED),
        replace_fields(make_group("train-uid"), metadata=OWNED),
    )
    assert [each.owns_job(pod) for each in BOTH] == [each.owns_job(group) for each in BOTH]
    assert sum(each.owns_job(pod) for each in BOTH) == 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({}, None, id="alone"),
        pytest.param({"MULTI_SCHEDULER_ENABLE": "yes"}, None, id="not enabled"),
        pytest.param(
            {"MULTI_SCHEDULER_ENABLE": "true", "SCHEDULER_POD_NAME": "s-1", "SCHEDULER_NUM": "3"},
            MultiScheduler("s-1", 3),
            id="one of three",
        ),
        pytest.param(
            {"MULTI_SCHEDULER_ENABLE": "true", "SCHEDULER_POD_NAME": "s-0", "SCHEDULER_NUM": "many"},
            MultiScheduler("s-0", 1),
            id="of no number, as Volcano reads it",
        ),
    ],
)
def test_from_environment(environment: dict[str, str], expected: MultiScheduler | None) -> None:
    assert MultiScheduler.from_environment(environment) == expected


@pytest.mark.parametrize("number", [0, 1])
@async_test
async def test_each_scheduler_uses_only_its_part(number: int) -> None:
    nodes = [make_node(f"node-{each}", cpu=4) for each in range(8)]
    groups = [make_group(f"job-{each}") for each in range(8)]
    pods = [
        replace_fields(make_member(f"job-{each}", f"job-{each}"), spec={"scheduler_name": "volcano"})
        for each in range(8)
    ]
    division = BOTH[number]
    async with run_live_batch(
        *nodes, make_queue(), *groups, *pods, options=BatchOptions(multi_scheduler=division)
    ) as harness:
        await harness.session()
        assert set(harness.bound()) == {pod.name for pod in pods if division.owns_job(pod)}
        assert set(harness.bound().values()) <= {node.name for node in nodes if division.owns_node(node)}
        assert harness.events.about("Misconfigured") == []
