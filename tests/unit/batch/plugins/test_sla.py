from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from bayplan.batch.plugins.sla import SlaPlugin
from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.session import Session
from support.builders.batch import CREATED, NOW, make_group, open_session

WAITING = "volcano.sh/sla-waiting-time"
AGE = NOW - CREATED


def vote(session: Session, job: str = "default/job") -> Vote:
    plugin: SlaPlugin = session.plugins["sla"]
    return plugin._vote(session.jobs[job])


@pytest.mark.parametrize(
    ("annotations", "arguments", "expected"),
    [
        pytest.param({}, {}, Vote.ABSTAIN, id="no-waiting-time"),
        pytest.param({WAITING: "1h"}, {}, Vote.PERMIT, id="waited-long-enough"),
        pytest.param({WAITING: "1000000h"}, {}, Vote.ABSTAIN, id="must-wait"),
        pytest.param({"sla-waiting-time": "1h"}, {}, Vote.PERMIT, id="old-spelling"),
        pytest.param({}, {"sla-waiting-time": "1h"}, Vote.PERMIT, id="default-waiting-time"),
        pytest.param({WAITING: "1000000h"}, {"sla-waiting-time": "1h"}, Vote.ABSTAIN, id="own-waiting-time"),
        pytest.param({WAITING: "soon"}, {"sla-waiting-time": "1h"}, Vote.PERMIT, id="own-waiting-time-invalid"),
        pytest.param({}, {"sla-waiting-time": "soon"}, Vote.ABSTAIN, id="no-duration"),
        pytest.param({}, {"sla-waiting-time": "-1h"}, Vote.ABSTAIN, id="below-zero"),
        pytest.param({}, {"sla-waiting-time": 60}, Vote.ABSTAIN, id="not-a-text"),
    ],
)
def test_votes(annotations: dict[str, str], arguments: dict[str, Any], expected: Vote) -> None:
    with open_session(SlaPlugin, arguments=arguments, objects=[make_group(annotations=annotations)]) as session:
        assert vote(session) is expected
        assert session.job_enqueueable(session.jobs["default/job"])
        assert session.job_pipelined(session.jobs["default/job"])


@pytest.mark.parametrize(("late_s", "expected"), [(0, Vote.PERMIT), (1, Vote.ABSTAIN)])
def test_the_deadline_is_inclusive(late_s: int, expected: Vote) -> None:
    annotations = {WAITING: f"{int(AGE.total_seconds()) + late_s}s"}
    with open_session(SlaPlugin, objects=[make_group(annotations=annotations)]) as session:
        assert vote(session) is expected


def test_order() -> None:
    groups = [
        make_group("none"),
        make_group("late", annotations={WAITING: "2h"}),
        make_group("soon", annotations={WAITING: "1h"}),
        make_group("young", annotations={WAITING: "1h"}, created=CREATED + timedelta(hours=1)),
    ]
    with open_session(SlaPlugin, objects=groups) as session:
        none, late, soon, young = (session.jobs[f"default/{name}"] for name in ("none", "late", "soon", "young"))
        assert session.compare_jobs(soon, late) < 0 < session.compare_jobs(late, soon)
        assert session.compare_jobs(late, young) == session.compare_jobs(none, none) == 0
        assert session.compare_jobs(none, late) > 0 > session.compare_jobs(late, none)


@pytest.mark.parametrize("value", ["soon", "0s", 5])
def test_invalid_arguments_are_reported(value: Any) -> None:
    with open_session(SlaPlugin, arguments={"sla-waiting-time": value}) as session:
        (fault,) = session.faults
        assert fault.startswith("sla: ")
        assert "sla-waiting-time" in fault
