"""Pods that sessions evict: told, deleted, known to leave meanwhile, and spared where nobody can delete them."""

from __future__ import annotations

import pytest

from batch_builders import make_group, make_member, make_queue
from bayplan.objects.core import Pod, PodStatus
from bayplan.testing.builders import make_node
from builders import changed
from live_batch_rig import batch_running
from log_levels import log_at
from wire_server import on_loop, status

VICTIM = changed(
    make_member("weak-w-0", "weak", node="n", requests={"cpu": "1"}),
    spec={"scheduler_name": "volcano"},
    status=PodStatus(phase="Running"),
)
WORLD = (make_node("n", cpu=1), make_queue(), make_group("weak"), VICTIM)


@on_loop
async def test_a_victim_is_told_deleted_and_leaves_until_it_is_gone() -> None:
    async with batch_running(*WORLD) as rig:
        await rig.session()
        rig.live.evictions.start(VICTIM, "preempt")
        leaving = rig.live.engine.handle.nominations
        assert leaving.leaving_from("n").keys() == {VICTIM.uid}
        await rig.session()
        (farewell,) = rig.sent("PATCH", "/pods/weak-w-0/status")
        kinds = {each["type"]: (each["status"], each["reason"]) for each in farewell["status"]["conditions"]}
        assert kinds == {"Ready": ("False", "Evict"), "DisruptionTarget": ("True", "PreemptionByScheduler")}
        assert len(rig.sent("DELETE", "/pods/weak-w-0")) == 1
        assert ("default/weak-w-0", "Pod is evicted, because of preempt") in rig.events.about("Evict")
        assert ("default/weak", "preempt") in rig.events.about("Evict")
        rig.hear(changed(VICTIM, metadata={"labels": {"another": "version"}}))
        await rig.session()
        assert leaving.is_leaving(VICTIM.uid)  # whatever else is shown of it
        rig.hear_gone(VICTIM)
        await rig.live.catch_up()
        assert not leaving.leaving


@on_loop
async def test_who_was_told_is_deleted_even_if_that_takes_several_tries() -> None:
    async with batch_running(*WORLD) as rig:
        rig.refuse("DELETE", "/pods/weak-w-0", *[status(500, "InternalError")] * 3)
        await rig.session()
        rig.live.evictions.start(VICTIM, "reclaim")
        await rig.session()
        assert len(rig.sent("DELETE", "/pods/weak-w-0")) == 4


@on_loop
async def test_who_cannot_be_deleted_is_spared() -> None:
    freed: list[Pod] = []
    async with batch_running(*WORLD) as rig:
        rig.live.following.freed = freed.append
        rig.refuse("DELETE", "/pods/weak-w-0", status(403, "Forbidden"))
        await rig.session()
        rig.live.evictions.start(VICTIM, "reclaim")
        await rig.session()
        assert not rig.live.engine.handle.nominations.leaving
        assert [pod.name for pod in freed] == ["weak-w-0"]  # whoever counted on it looks again


@pytest.mark.parametrize(("verbosity", "lines"), [(2, 0), (3, 1)])
def test_an_eviction_is_a_decision_that_the_log_tells(verbosity: int, lines: int) -> None:
    @on_loop
    async def evicted() -> None:
        async with batch_running(*WORLD) as rig:
            await rig.session()
            rig.live.evictions.start(VICTIM, "preempt")
            await rig.session()

    with log_at(verbosity) as written:
        evicted()
    text = '"Successfully evicted pod" pod="default/weak-w-0" node="n" reason="preempt"'
    assert written.getvalue().count(text) == lines
