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
KEPT = {"volcano.sh/preemptable": "false"}


def full_of(group: str, count: int = 4, **options: Any) -> list[Pod]:
    return [make_member(f"{group}-w-{each}", group, node="a", **options) for each in range(count)]


def taken(**options: Any) -> KubeObject:
    return make_group("rich", phase="Running", **{"queue": "other", "min_member": 0, **options})


def run(pods: list[Pod], objects: list[KubeObject], *, conf: str = CONF, cpu: int = 4) -> SessionResult:
    queues = {item.metadata.name for item in objects}
    others = [] if "other" in queues else [make_queue("other")]
    return build_engine(
        conf=conf, nodes=[make_node("a", cpu=cpu)], pods=pods, objects=[*others, *objects]
    ).run_session()


def names(found: dict[str, str]) -> set[str]:
    return {key.removeprefix("default/") for key in found}


NEW = make_group("new", phase="Inqueue")


def test_a_queue_takes_back_what_it_deserves() -> None:
    outcome = run([*full_of("rich"), make_member("new", "new")], [taken(), NEW])
    assert outcome.evicts == {"default/rich-w-3": "reclaim"}
    assert outcome.pipelined == {"default/new": "a"}
    assert outcome.messages["default/new"].nominated_node == "a"


def test_the_other_queue_keeps_what_it_deserves() -> None:
    pods = [*full_of("rich"), *(make_member(f"new-w-{each}", "new") for each in range(3))]
    outcome = run(pods, [taken(), make_group("new", phase="Inqueue", min_member=2)])
    assert names(outcome.pipelined) == {"new-w-0", "new-w-1"}
    assert len(outcome.evicts) == 2


@pytest.mark.parametrize(
    ("pods", "objects"),
    [
        pytest.param(full_of("rich", annotations=KEPT), [taken()], id="not-preemptable"),
        pytest.param(full_of("rich", phase="Pending"), [taken()], id="not-running-yet"),
        pytest.param(
            full_of("rich"), [taken(), make_queue("other", reclaimable=False)], id="a-queue-that-gives-nothing"
        ),
        pytest.param(full_of("rich"), [taken(queue="q")], id="of-the-same-queue"),
        pytest.param(full_of(""), [], id="of-no-group"),
    ],
)
def test_who_stays(pods: list[Pod], objects: list[KubeObject]) -> None:
    outcome = run([*pods, make_member("new", "new")], [*objects, NEW])
    assert not outcome.evicts
    assert not outcome.pipelined


def test_a_veto_holds_for_its_tier() -> None:
    """A gang at its minimum is not touched, unless a later tier names it.

    `Session.Reclaimable` of Volcano leaves a tier in which somebody names nobody (`victims = nil; break`) and asks the
    next, where `proportion` does not look at `minMember`: with its own tiers a running gang may fall below it."""
    pods, groups = [*full_of("rich"), make_member("new", "new")], [taken(min_member=4), NEW]
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
            id="cannot-start",
        ),
    ],
)
def test_who_reclaims_nothing(pods: list[Pod], group: KubeObject) -> None:
    outcome = run([*full_of("rich"), *pods], [taken(), group])
    assert not outcome.evicts
    assert not outcome.pipelined


def test_a_task_that_does_not_want_to_preempt_reclaims_nothing() -> None:
    new = make_member("new", "new")
    new = replace(new, spec=replace(new.spec, preemption_policy="Never"))
    assert not run([*full_of("rich"), new], [taken(), NEW]).evicts


def test_an_overused_queue_reclaims_nothing() -> None:
    pods = [*full_of("rich", 2), *full_of("mine", 2), make_member("new", "new")]
    groups = [taken(), make_group("mine", phase="Running"), NEW]
    assert not run(pods, groups).evicts


def test_free_room_beside_somebody_who_could_have_gone_is_taken() -> None:
    """Upstream looks at no node that has nobody to reclaim from, but then needs no victim."""
    new = make_member("new", "new")
    assert run([*full_of("rich", 3), new], [taken(), NEW]).pipelined == {"default/new": "a"}
    assert not run([*full_of("rich", 3), new], [taken(), NEW]).evicts
    assert not run([new], [taken(), NEW]).pipelined
