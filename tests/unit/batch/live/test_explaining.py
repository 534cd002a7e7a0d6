"""Why, of pods of gangs and queues."""

from __future__ import annotations

from batch_builders import make_group, make_member, make_queue
from bayplan.batch.live.explaining import BatchExplainer
from bayplan.objects.core import Pod, PodStatus
from bayplan.telemetry.answers import Answer
from bayplan.testing.builders import make_node
from builders import changed
from live_batch_rig import BatchRig, batch_running
from wire_server import on_loop

NODE = make_node("n", cpu=4, memory="8Gi")
SHARED = """\
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: proportion
  - name: nodeorder
"""


def ours(*pods: Pod) -> list[Pod]:
    return [changed(pod, spec={"scheduler_name": "volcano"}, status=PodStatus(phase="Pending")) for pod in pods]


async def why(rig: BatchRig, name: str) -> Answer:
    explainer = BatchExplainer(rig.live)
    pod = explainer.find("default", name)
    assert pod is not None
    assert explainer.serves(pod)
    return await explainer.answer(pod)


@on_loop
async def test_a_gang_tells_which_members_hold_it_back_and_what_would_help() -> None:
    group = make_group("job", min_member=2)
    pods = ours(make_member("job-w-0", requests={"cpu": "1"}), make_member("job-m-0", requests={"cpu": "6"}))
    async with batch_running(NODE, make_queue(), group, *pods) as rig:
        await rig.session()
        await rig.session()
        answer = await why(rig, "job-m-0")
        assert (answer.engine, answer.state, answer.tries) == ("batch", "pending", 2)
        assert answer.gang is not None
        assert (answer.gang.name, answer.gang.least, answer.gang.ready, answer.gang.tasks) == ("default/job", 2, 0, 2)
        assert answer.gang.holding_back[0].pod == "default/job-m-0"
        assert answer.gang.holding_back[0].reason.startswith("0/1 nodes are unavailable: 1 Insufficient cpu")
        assert [each.text for each in answer.reasons] == ["Insufficient cpu"]
        assert [change.text for change in answer.changes] == ["ask for 2 less CPU"]
        other = await why(rig, "job-w-0")
        assert other.closest == "n"
        assert other.no_change == "none is needed: it fits n now"


@on_loop
async def test_a_queue_tells_its_share_and_who_borrows() -> None:
    queues = [make_queue("q"), make_queue("greedy")]
    running = [
        changed(make_member(f"big-w-{n}", "big", requests={"cpu": "1"}), spec={"node_name": "n"}) for n in range(4)
    ]
    groups = [make_group("big", min_member=1, queue="greedy"), make_group("job", min_member=1)]
    waits = ours(make_member("job-w-0", requests={"cpu": "1"}))
    async with batch_running(NODE, *queues, *groups, *running, *waits, conf=SHARED) as rig:
        await rig.session()
        answer = await why(rig, "job-w-0")
        assert answer.queue is not None
        assert (answer.queue.name, answer.queue.share) == ("q", 0.0)
        assert answer.queue.deserved["cpu"] == "1"
        assert [(each.queue, each.over["cpu"]) for each in answer.queue.borrowers] == [("greedy", "1")]


@on_loop
async def test_a_pod_without_a_group_and_one_that_is_placed() -> None:
    (groupless,) = ours(changed(make_member("lonely"), metadata={"annotations": {}}))
    group, (placed,) = make_group("job", min_member=1), ours(make_member("job-w-0", requests={"cpu": "1"}))
    async with batch_running(NODE, make_queue(), group, groupless, placed) as rig:
        await rig.session()
        assert "names no pod group" in (await why(rig, "lonely")).sentence
        rig.hear(placed.bound_to("n"))
        await rig.live.catch_up()
        answer = await why(rig, "job-w-0")
        assert (answer.state, answer.node) == ("placed", "n")
        assert BatchExplainer(rig.live).find("default", "nobody") is None
