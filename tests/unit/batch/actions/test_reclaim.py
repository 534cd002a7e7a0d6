from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.batch.session.outcome import SessionResult
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue
from support.builders.batch_engines import build_engine

CONF = """\
actions: "reclaim"
tiers:
- plugins:
  - name: gang
  - name: conformance
- plugins:
  - name: predicates
  - name: proportion
"""
NOT_PREEMPTABLE = {"volcano.sh/preemptable": "false"}


def running_tasks(group: str, count: int = 4, **options: Any) -> list[Pod]:
    return [make_member(f"{group}-w-{each}", group, node="a", **options) for each in range(count)]


def rich_group(**options: Any) -> KubeObject:
    return make_group("rich", phase="Running", **{"queue": "other", "min_member": 0, **options})


def run(pods: list[Pod], objects: list[KubeObject], *, conf: str = CONF, cpu: int = 4) -> SessionResult:
    queues = {item.metadata.name for item in objects}
    extra_queues = [] if "other" in queues else [make_queue("other")]
    return build_engine(
        conf=conf, nodes=[make_node("a", cpu=cpu)], pods=pods, objects=[*extra_queues, *objects]
    ).run_session()


def names(found: dict[str, str]) -> set[str]:
    return {key.removeprefix("default/") for key in found}


NEW = make_group("new", phase="Inqueue")


def test_a_queue_reclaims_what_it_deserves() -> None:
    outcome = run([*running_tasks("rich"), make_member("new", "new")], [rich_group(), NEW])
    assert outcome.evicts == {"default/rich-w-3": "reclaim"}
    assert outcome.pipelined == {"default/new": "a"}
    assert outcome.messages["default/new"].nominated_node == "a"


def test_reclaim_leaves_the_other_queue_its_deserved_share() -> None:
    pods = [*running_tasks("rich"), *(make_member(f"new-w-{each}", "new") for each in range(3))]
    outcome = run(pods, [rich_group(), make_group("new", phase="Inqueue", min_member=2)])
    assert names(outcome.pipelined) == {"new-w-0", "new-w-1"}
    assert len(outcome.evicts) == 2


@pytest.mark.parametrize(
    ("pods", "objects"),
    [
        pytest.param(running_tasks("rich", annotations=NOT_PREEMPTABLE), [rich_group()], id="not-preemptable"),
        pytest.param(running_tasks("rich", phase="Pending"), [rich_group()], id="not-running-yet"),
        pytest.param(
            running_tasks("rich"), [rich_group(), make_queue("other", reclaimable=False)], id="not-reclaimable-queue"
        ),
        pytest.param(running_tasks("rich"), [rich_group(queue="q")], id="of-the-same-queue"),
        pytest.param(running_tasks(""), [], id="of-no-group"),
    ],
)
def test_tasks_that_are_not_evicted(pods: list[Pod], objects: list[KubeObject]) -> None:
    outcome = run([*pods, make_member("new", "new")], [*objects, NEW])
    assert not outcome.evicts
    assert not outcome.pipelined


def test_a_veto_holds_for_its_tier() -> None:
    """A gang at its minimum is not evicted, unless a later tier selects it.

    `Session.Reclaimable` of Volcano leaves a tier in which a plugin selects no victim (`victims = nil; break`). In the
    next tier `proportion` ignores `minMember`: with Volcano's default tiers a running gang may fall below it."""
    pods, groups = [*running_tasks("rich"), make_member("new", "new")], [rich_group(min_member=4), NEW]
    together = CONF.replace("- plugins:\n  - name: predicates", "  - name: predicates")
    assert not run(pods, groups, conf=together).evicts
    assert len(run(pods, groups).evicts) == 1


@pytest.mark.parametrize(
    ("pods", "group"),
    [
        pytest.param([make_member("new", "new", gates=["hold"])], make_group("new", phase="Inqueue"), id="gated"),
        pytest.param([make_member("new", "new")], make_group("new"), id="not-in-its-queue"),
        pytest.param(
            [make_member(f"new-w-{each}", "new") for each in range(3)],
            make_group("new", phase="Inqueue", min_member=3),
            id="gang-does-not-fit",
        ),
    ],
)
def test_jobs_that_do_not_reclaim(pods: list[Pod], group: KubeObject) -> None:
    outcome = run([*running_tasks("rich"), *pods], [rich_group(), group])
    assert not outcome.evicts
    assert not outcome.pipelined


def test_a_task_with_preemption_policy_never_reclaims_nothing() -> None:
    new = make_member("new", "new")
    new = replace(new, spec=replace(new.spec, preemption_policy="Never"))
    assert not run([*running_tasks("rich"), new], [rich_group(), NEW]).evicts


def test_an_overused_queue_reclaims_nothing() -> None:
    pods = [*running_tasks("rich", 2), *running_tasks("mine", 2), make_member("new", "new")]
    groups = [rich_group(), make_group("mine", phase="Running"), NEW]
    assert not run(pods, groups).evicts


def test_idle_resources_are_used_on_a_node_with_an_evictable_task() -> None:
    """Upstream skips nodes without an evictable task, but needs no victim where the task fits."""
    new = make_member("new", "new")
    assert run([*running_tasks("rich", 3), new], [rich_group(), NEW]).pipelined == {"default/new": "a"}
    assert not run([*running_tasks("rich", 3), new], [rich_group(), NEW]).evicts
    assert not run([new], [rich_group(), NEW]).pipelined
