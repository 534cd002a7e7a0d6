from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from bayplan.batch.plugins.tdm import TdmPlugin
from bayplan.batch.session.session import Session
from bayplan.framework.api.status import Code
from bayplan.testing.builders import make_node
from support.builders.batch import make_engine, make_group, make_member, open_session, task_names, tasks_of

NOON = datetime(2024, 6, 1, 12, 0).astimezone()  # the plugin's hours are local
PREEMPTABLE = "volcano.sh/preemptable"
NODES = [make_node("own"), make_node("lent", labels={"volcano.sh/revocable-zone": "rz"})]


def hours(text: Any) -> dict[str, Any]:
    return {"tdm.revocable-zone.rz": text}


def statuses(session: Session, task: str, node: str) -> list[tuple[Code, str]]:
    (found,) = tasks_of(session, task)
    found_node = session.node(node)
    assert found_node is not None
    return [(status.code, status.reasons[0]) for status in session.predicate(found, found_node)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        pytest.param(hours("10:00-14:00"), None, id="open"),
        pytest.param(hours(" 9:00-12:00 "), None, id="the-last-minute-counts"),
        pytest.param(hours("12:00-12:00"), None, id="the-whole-day"),
        pytest.param(hours("11:00-03:00"), None, id="over-midnight"),
        pytest.param({}, "revocable zone rz not support", id="unknown"),
        pytest.param(hours(1000), "revocable zone rz not support", id="not-a-text"),
        pytest.param(hours("13:00-14:00"), "current time beyond revocable zone rz:13:00-14:00", id="later"),
        pytest.param(hours("13:00-03:00"), "current time beyond revocable zone rz:13:00-03:00", id="tonight"),
        pytest.param(hours("10:00-11:59"), "current time beyond revocable zone rz:10:00-11:59", id="over"),
        pytest.param(hours("all day"), "revocable zone all day format error", id="no-hours"),
        pytest.param(hours("24:00-23:00"), 'parsing time "24:00": hour out of range', id="hour"),
        pytest.param(hours("10:60-23:00"), 'parsing time "10:60": minute out of range', id="minute"),
        pytest.param(hours("x-23:00"), 'parsing time "x" as "15:04": cannot parse "x" as "15"', id="no-number"),
        pytest.param(hours("10-23:00"), 'parsing time "10" as "15:04": cannot parse "" as ":"', id="no-minutes"),
        pytest.param(hours("10:0-23:00"), 'parsing time "10:0" as "15:04": cannot parse "0" as "04"', id="one-digit"),
        pytest.param(hours("10:00-23:00x"), 'parsing time "23:00x": extra text: "x"', id="more"),
    ],
)
def test_hours(arguments: dict[str, Any], reason: str | None) -> None:
    pods = [make_member("p", annotations={PREEMPTABLE: "true"})]
    with open_session(
        TdmPlugin, arguments=arguments, nodes=NODES, pods=pods, objects=[make_group()], now=NOON
    ) as session:
        expected = [] if reason is None else [(Code.UNRESOLVABLE, reason)]
        assert statuses(session, "p", "lent") == expected
        assert statuses(session, "p", "own") == []


def test_both_ends_of_the_hours_are_included() -> None:
    for now, is_open in ((NOON, True), (NOON + timedelta(seconds=1), False)):
        with open_session(TdmPlugin, arguments=hours("10:00-12:00"), now=now) as session:
            assert (session.plugins["tdm"].closed_reason("rz") == "") is is_open


def test_tasks_that_may_use_revocable_nodes() -> None:
    pods = [
        make_member("any", annotations={"volcano.sh/revocable-zone": "*"}),
        make_member("one", annotations={"volcano.sh/revocable-zone": "rz"}),
        make_member("none"),
    ]
    cluster = {"nodes": NODES, "pods": pods, "objects": [make_group()], "now": NOON}
    with open_session(TdmPlugin, arguments=hours("10:00-14:00"), **cluster) as session:
        assert statuses(session, "any", "lent") == []
        for name in ("one", "none"):
            assert statuses(session, name, "lent") == [(Code.UNRESOLVABLE, "not allow to dispatch to revocable node")]


def test_revocable_nodes_score_for_revocable_tasks() -> None:
    pods = [make_member("any", annotations={"volcano.sh/revocable-zone": "*"}), make_member("none")]
    cluster = {"nodes": NODES, "pods": pods, "objects": [make_group()], "now": NOON}
    with open_session(TdmPlugin, arguments=hours("10:00-14:00"), **cluster) as session:
        plugin: TdmPlugin = session.plugins["tdm"]
        for name, expected in (("any", [0.0, 100.0]), ("none", [0.0, 0.0])):
            scored = plugin._score(tasks_of(session, name)[0], session.nodes)
            assert (scored.values.tolist(), scored.failed.tolist()) == (expected, [False, False])
    with open_session(TdmPlugin, **cluster) as session:
        scored = session.plugins["tdm"]._score(tasks_of(session, "any")[0], session.nodes)
        assert scored.failed.tolist() == [False, True]


# Victims

NOT_PREEMPTABLE = {PREEMPTABLE: "false"}


def running(name: str, group: str = "job", node: str = "own", **fields: Any) -> Any:
    return make_member(name, group, node=node, **fields)


def test_preemption() -> None:
    pods = [
        make_member("strict", "boss", annotations=NOT_PREEMPTABLE),
        make_member("mild", "boss"),
        running("a"),
        running("b"),
        running("other", "two"),
        running("strong", "two", annotations=NOT_PREEMPTABLE),
        running("far", node="lent"),
        running("going", "two", phase="Succeeded"),
    ]
    groups = [make_group("boss"), make_group("job"), make_group("two")]
    with open_session(TdmPlugin, nodes=NODES, pods=pods, objects=groups, now=NOON) as session:
        strict, mild = tasks_of(session, "strict", "mild")
        candidates = tasks_of(session, "a", "b", "other", "strong", "far", "going")
        assert task_names(session.preemptable(strict, candidates)) == ["a", "other"]
        assert session.preemptable(mild, candidates) == []


@pytest.mark.parametrize(
    ("annotations", "victims"),
    [
        pytest.param({}, 1, id="one-by-default"),
        pytest.param({"volcano.sh/jdb-min-available": "1"}, 2, id="min"),
        pytest.param({"volcano.sh/jdb-min-available": "4"}, 1, id="min-not-met"),
        pytest.param({"volcano.sh/jdb-min-available": "50%"}, 0, id="min-percent-rounded-up"),
        pytest.param({"volcano.sh/jdb-min-available": "some"}, 3, id="min-nonsense"),
        pytest.param({"volcano.sh/jdb-max-unavailable": "2"}, 1, id="max-less-those-that-do-not-run"),
        pytest.param({"volcano.sh/jdb-max-unavailable": "1"}, 0, id="max-reached"),
        pytest.param({"volcano.sh/jdb-max-unavailable": "90%"}, 3, id="max-percent"),
        pytest.param({"volcano.sh/jdb-min-available": "2147483648"}, 3, id="min-above-32-bits"),
        pytest.param({"volcano.sh/jdb-max-unavailable": "2147483647"}, 3, id="max-of-32-bits"),
        pytest.param({"volcano.sh/jdb-max-unavailable": "2147483648"}, 0, id="max-above-32-bits"),
        pytest.param({"volcano.sh/jdb-max-unavailable": "-5"}, 0, id="max-below-zero"),
    ],
)
def test_budgets_of_jobs(annotations: dict[str, str], victims: int) -> None:
    """Five tasks: three run, one waits, one has ended."""
    pods = [running("a"), running("b"), running("c"), make_member("w"), running("s", phase="Succeeded")]
    pods.append(make_member("boss", "boss", annotations=NOT_PREEMPTABLE))
    groups = [make_group(annotations=annotations), make_group("boss")]
    with open_session(TdmPlugin, nodes=NODES, pods=pods, objects=groups, now=NOON) as session:
        (boss,) = tasks_of(session, "boss")
        assert len(session.preemptable(boss, tasks_of(session, "a", "b", "c"))) == victims


def test_tasks_in_closed_zones_are_evicted_once_per_period() -> None:
    pods = [
        running("a", node="lent"),
        running("b", node="lent"),
        running("strong", node="lent", annotations=NOT_PREEMPTABLE),
    ]
    pods.append(running("home"))
    arguments = hours("10:00-11:00") | {"tdm.evict.period": "5m"}
    engine = make_engine(TdmPlugin, arguments=arguments, nodes=NODES, pods=pods, objects=[make_group()], now=NOON)
    found = []
    for seconds in (0, 299, 1):
        engine.handle.clock.advance(seconds)  # type: ignore[attr-defined]
        with engine.session() as session:
            found.append(task_names(session.victim_tasks([])))
    assert found == [["a"], [], ["a"]]


def test_open_hours_have_no_victims() -> None:
    pods = [running("a", node="lent")]
    with open_session(
        TdmPlugin, arguments=hours("10:00-13:00"), nodes=NODES, pods=pods, objects=[make_group()], now=NOON
    ) as session:
        assert session.victim_tasks([]) == []


# Jobs


def test_order_and_starvation_of_jobs() -> None:
    groups = [make_group("mild", annotations={PREEMPTABLE: "true"}), make_group("strict"), make_group("idle")]
    pods = [make_member("m", "mild"), make_member("s", "strict")]
    with open_session(TdmPlugin, pods=pods, objects=groups, now=NOON) as session:
        mild, strict, idle = (session.jobs[f"default/{name}"] for name in ("mild", "strict", "idle"))
        assert session.compare_jobs(strict, mild) < 0 < session.compare_jobs(mild, strict)
        assert session.compare_jobs(strict, idle) == 0
        assert [session.job_starving(job) for job in (mild, strict, idle)] == [False, True, False]
        assert not session.job_pipelined(strict)


def test_invalid_arguments_are_reported() -> None:
    with open_session(TdmPlugin, arguments=hours(5) | {"tdm.evict.period": "often"}) as session:
        assert [fault.split(":")[0] for fault in session.faults] == ["tdm", "tdm"]
