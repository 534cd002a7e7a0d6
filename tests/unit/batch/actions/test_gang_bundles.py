from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.batch.actions.gang_bundles import Bundle, BundleKind, make_bundles, sort_bundles
from bayplan.batch.model.amounts import Amounts
from bayplan.batch.model.tasks import TASK_PRIORITY, TASK_SPEC
from bayplan.objects.core import Pod
from bayplan.objects.meta import LabelSelector
from bayplan.objects.volcano.types import SubGroupPolicy
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, open_session, task_names, tasks_of

NODES = [make_node("n")]


def running(name: str, group: str = "job", *, role: str = "", priority: int = 1, **pod: Any) -> Pod:
    annotations = {TASK_PRIORITY: str(priority), **({TASK_SPEC: role} if role else {})}
    return make_member(name, group, node="n", annotations=annotations, **pod)


def kinds_and_names(bundles: list[Bundle]) -> list[tuple[str, list[str]]]:
    return [(bundle.kind.name, task_names(bundle.tasks)) for bundle in bundles]


ROLES = [running("a1", role="a"), running("a2", role="a"), running("b1", role="b"), running("b2", role="b")]
GROUPS = [running(f"g{number // 2}-{number % 2}", labels={"g": str(number // 2)}) for number in range(6)]
TWO_OF_THREE = SubGroupPolicy(
    name="g", label_selector=LabelSelector(), match_label_keys=("g",), sub_group_size=2, min_sub_groups=2
)


@pytest.mark.parametrize(
    ("pods", "group", "expected"),
    [
        pytest.param(
            [running("x"), running("y"), running("z")],
            {"min_member": 2},
            [("SAFE", ["x"]), ("WHOLE", ["y", "z"])],
            id="surplus-above-the-minimum",
        ),
        pytest.param(
            [running("x", priority=5), running("y", priority=3), running("z", priority=4)],
            {"min_member": 1},
            [("SAFE", ["y", "z"]), ("WHOLE", ["x"])],
            id="the-least-important-first",
        ),
        pytest.param([running("x"), running("y")], {"min_member": 3}, [("SAFE", ["x", "y"])], id="broken-already"),
        pytest.param([running("x")], {"min_member": 0}, [("SAFE", ["x"])], id="no-minimum"),
        pytest.param(
            ROLES,
            {"min_member": 2, "min_task_member": {"a": 2}},
            [("SAFE", ["b1", "b2"]), ("WHOLE", ["a1", "a2"])],
            id="role-minimums-are-kept",
        ),
        pytest.param(
            ROLES,
            {"min_member": 1, "min_task_member": {"a": 2}},
            [("SAFE", ["a1", "a2", "b1"]), ("WHOLE", ["b2"])],
            id="roles-do-not-count-below-their-sum",
        ),
        pytest.param(
            GROUPS,
            {"min_member": 2, "sub_group_policy": (TWO_OF_THREE,)},
            [("SAFE", ["g0-0", "g0-1"]), ("WHOLE", ["g1-0", "g1-1", "g2-0", "g2-1"])],
            id="one-sub-group-to-spare",
        ),
    ],
)
def test_bundles_of_a_job(pods: list[Pod], group: dict[str, Any], expected: list[tuple[str, list[str]]]) -> None:
    with open_session(nodes=NODES, pods=pods, objects=[make_group(phase="Running", **group)]) as session:
        job = session.jobs["default/job"]
        assert kinds_and_names(make_bundles(job, list(job.tasks.values()))) == expected


def test_a_bundle_is_restricted_to_allowed_tasks() -> None:
    pods = [running(name) for name in ("x", "y", "z")]
    with open_session(nodes=NODES, pods=pods, objects=[make_group(min_member=1)]) as session:
        x, y, z = tasks_of(session, "x", "y", "z")
        job = session.jobs["default/job"]
        safe, whole = make_bundles(job, [x, y, z])
        assert safe.restricted_to({x.uid, y.uid, z.uid}) is safe
        shrunk = safe.restricted_to({y.uid})
        assert shrunk is not None
        assert (task_names(shrunk.tasks), shrunk.freed_amounts.milli_cpu) == (["y"], 1000.0)
        assert safe.restricted_to({z.uid}) is None
        assert whole.restricted_to({z.uid}) is whole
        assert make_bundles(job, []) == []
        two = Bundle(BundleKind.WHOLE, job, [x, y], Amounts(), Amounts())
        assert two.restricted_to({x.uid}) is None


def test_order_of_bundles_is_safe_first_then_highest_value() -> None:
    pods = [
        running("big-1", "big"),
        running("big-2", "big", requests={"cpu": "3"}),
        running("small", "small"),
        running("spare-1", "spare"),
        running("spare-2", "spare"),
    ]
    groups = [make_group("big", min_member=2), make_group("small"), make_group("spare")]
    with open_session(nodes=NODES, pods=pods, objects=groups) as session:
        bundles = [
            bundle
            for job in session.jobs.values()
            for bundle in make_bundles(job, [task for task in job.tasks.values() if task.name != "big-2"])
        ]
        need = Amounts(1000.0)
        ordered = sort_bundles(bundles, need, lambda left, right: 0)  # noqa: ARG005
        assert [bundle.value_for(need) for bundle in ordered] == [math.inf, 1.0, 0.5, 0.25]
        assert kinds_and_names(ordered) == [
            ("SAFE", ["spare-1"]),
            ("WHOLE", ["small"]),
            ("WHOLE", ["spare-2"]),
            ("WHOLE", ["big-1"]),
        ]
        backwards = sort_bundles(bundles, need, lambda left, right: -1 if left.job.uid > right.job.uid else 1)
        assert [each.job.name for each in backwards] == ["spare", "spare", "small", "big"]


def test_amounts_above_the_need_add_no_value() -> None:
    pod = running("huge", requests={"cpu": "8"})
    with open_session(nodes=NODES, pods=[replace(pod)], objects=[make_group()]) as session:
        job = session.jobs["default/job"]
        (whole,) = make_bundles(job, list(job.tasks.values()))
        assert whole.value_for(Amounts(2000.0)) == pytest.approx(1 / 4)
