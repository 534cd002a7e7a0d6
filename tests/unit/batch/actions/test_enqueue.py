from __future__ import annotations

from typing import Any

from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.session import Session
from support.builders.batch import make_group, make_member, make_queue
from support.builders.batch_engines import build_engine

CONF = """\
actions: "enqueue"
tiers:
- plugins:
  - name: priority
  - name: admits-some
"""


class AdmitsSome:
    """Admits a number of jobs, and records the order of the calls."""

    name = "admits-some"
    seen: list[str]
    places: int

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        session.add_job_enqueueable_fn(self.name, self._vote)
        session.add_job_enqueued_fn(self.name, lambda job: self.seen.append(f"in {job.name}"))

    def _vote(self, job: Any) -> Vote:
        self.seen.append(job.name)
        return Vote.PERMIT if len([name for name in self.seen if name.startswith("in")]) < self.places else Vote.REJECT


def run(places: int, groups: list[Any], queues: list[Any] | None = None) -> tuple[dict[str, str], list[str]]:
    class Admits(AdmitsSome):
        pass

    Admits.seen, Admits.places = [], places
    plugins = default_batch_plugins().with_plugins(Admits)
    outcome = build_engine(conf=CONF, objects=[*groups, *(queues or ())], plugins=plugins).run_session()
    return {uid.partition("/")[2]: group.status.phase for uid, group in outcome.groups.items()}, Admits.seen


MIN_RESOURCES = {"cpu": "1"}


def test_admitted_groups_become_inqueue() -> None:
    groups = [make_group(name, min_resources=MIN_RESOURCES) for name in ("a", "b", "c")]
    phases, seen = run(2, groups)
    assert phases == {"a": "Inqueue", "b": "Inqueue", "c": "Pending"}
    assert seen == ["a", "in a", "b", "in b", "c"]


def test_a_group_without_min_resources_needs_no_vote() -> None:
    phases, seen = run(0, [make_group("free"), make_group("asks", min_resources=MIN_RESOURCES)])
    assert phases == {"free": "Inqueue", "asks": "Pending"}
    assert "free" not in seen


def test_queues_take_turns() -> None:
    groups = [make_group(name, queue=name[0], min_resources=MIN_RESOURCES) for name in ("q1", "q2", "z1", "z2")]
    _, seen = run(9, groups, [make_queue("z")])
    assert [name for name in seen if not name.startswith("in")] == ["q1", "q2", "z1", "z2"]


def test_groups_that_are_not_pending_are_ignored() -> None:
    phases, seen = run(9, [make_group("in", phase="Inqueue", min_resources=MIN_RESOURCES, min_member=1)])
    assert phases == {"in": "Inqueue"}
    assert seen == []


def test_a_group_without_pods_can_become_inqueue() -> None:
    outcome = build_engine(
        conf=CONF, objects=[make_group(min_member=3)], pods=[make_member("x", "other")]
    ).run_session()
    assert outcome.groups["default/job"].status.phase == "Inqueue"
