"""Fixes of Volcano's quirks: each quirk exists by default and is fixed when its name is given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from bayplan.app.batch import BatchSettings
from bayplan.batch import Arguments, QuirkFix, Session, Task
from bayplan.batch.handle import HttpReply
from bayplan.cache import Cache
from bayplan.clock import SystemClock
from bayplan.config.bayplan_settings import load_settings
from bayplan.errors import UsageError
from bayplan.testing import BatchHarness, make_gang, make_node, make_option
from bayplan.testing.batch_builders import Gang
from support.harness.in_process_commands import run_command

PAGE = Path(__file__).resolve().parents[4] / "docs" / "differences.md"
PREEMPTING = ["enqueue", "allocate", "preempt"]
NODES = [make_node("a", cpu=2)]
NEW = make_gang("new", cpu=1, priority=9)
GANG = make_option("gang", enableJobStarving=True, enableJobReady=True, enableJobPipelined=True)


def old_gang() -> Gang:
    return make_gang("old", 2, cpu=1, on="a", priority=1, min_member=1)


def test_the_page_lists_every_quirk_fix() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [each.value for each in QuirkFix]


def test_an_unknown_name_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"unknown quirk fix 'tdm-midnigt'; .*; did you mean tdm-midnight"):
        BatchHarness(quirk_fixes=["tdm-midnigt"])


SETTINGS = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\nvolcanoQuirkFixes: [%s]\n"


def test_the_settings_of_a_process_enable_quirk_fixes() -> None:
    settings = BatchSettings(bayplan_settings=load_settings(SETTINGS % "tdm-midnight, victims-veto", "settings"))
    with closing(settings.build_engine(Cache(), SystemClock())) as engine:
        assert engine.handle.quirk_fixes == {QuirkFix.TDM_MIDNIGHT, QuirkFix.VICTIMS_VETO}


@pytest.mark.parametrize("verb", ["batch run", "run"])
def test_a_process_does_not_start_with_an_unknown_name(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(SETTINGS % "midnight", encoding="utf-8")
    ended = run_command(capsys, *verb.split(), "--settings", path, "--master", "http://127.0.0.1:1")
    assert ended.code != 0
    assert "unknown quirk fix 'midnight'; known names: tdm-midnight" in ended.err


@pytest.mark.parametrize(
    ("hour", "by_default", "fixed"),
    [
        pytest.param(23, True, True, id="before-midnight"),
        pytest.param(2, False, True, id="after-midnight"),
        pytest.param(12, False, False, id="noon"),
    ],
)
def test_hours_over_midnight(hour: int, by_default: bool, fixed: bool) -> None:
    tiers = [[make_option("tdm", arguments={"tdm.revocable-zone.rz": "22:00-03:00"})]]
    for fixes, is_open in (((), by_default), (("tdm-midnight",), fixed)):
        harness = BatchHarness(tiers=tiers, quirk_fixes=fixes, now=datetime(2024, 6, 1, hour).astimezone())
        with harness.session() as session:
            assert (session.plugins["tdm"].closed_reason("rz") == "") is is_open


@pytest.mark.parametrize(("quirk_fixes", "evicted"), [((), 0), (("pdb-unlabelled",), 1)])
def test_pods_without_labels(quirk_fixes: Sequence[str], evicted: int) -> None:
    tiers = [[make_option("pdb", enablePreemptable=True)], [GANG]]
    gangs = [old_gang(), NEW]
    done = BatchHarness(nodes=NODES, gangs=gangs, tiers=tiers, actions=PREEMPTING, quirk_fixes=quirk_fixes).run()
    assert len(done.evicted) == evicted


@pytest.mark.parametrize("ignorable", [True, False])
@pytest.mark.parametrize("fixed", [True, False])
def test_an_extender_that_fails(ignorable: bool, fixed: bool) -> None:
    verbs = {"extender.jobReadyVerb": "ready", "extender.preemptableVerb": "preempt"}
    tiers = [
        [
            make_option(
                "extender",
                enableJobReady=True,
                enablePreemptable=True,
                arguments={"extender.urlPrefix": "http://x", "extender.ignorable": ignorable, **verbs},
            )
        ]
    ]
    harness = BatchHarness(
        nodes=NODES,
        gangs=[old_gang(), NEW],
        tiers=tiers,
        post=lambda *_: HttpReply(500, b""),
        quirk_fixes=["extender-failures"] if fixed else [],
    )
    with harness.session() as session:
        job = session.jobs["default/new"]
        victims = session.plugins["extender"]._evictable("preemptable")
        candidates = [harness.task(session, f"old-{number}") for number in range(2)]
        answer = victims(harness.task(session, "new-0"), candidates)
        assert session.job_ready(job) is (ignorable if fixed else not ignorable)
        assert answer == (None if fixed and ignorable else [])


class Spare:
    """Allows no victim."""

    name = "spare"

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        session.add_preemptable_fn(self.name, lambda preemptor, candidates: [])  # noqa: ARG005


class First(Spare):
    """Allows one victim, a different one than `Second`."""

    name = "first"
    chosen = 0

    def on_session_open(self, session: Session) -> None:
        session.add_preemptable_fn(self.name, self._one)

    def _one(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:  # noqa: ARG002
        return sorted(candidates, key=lambda task: task.name)[self.chosen :][:1]


class Second(First):
    name = "second"
    chosen = 1


@pytest.mark.parametrize(("quirk_fixes", "evicted"), [((), 1), (("victims-veto",), 0)])
@pytest.mark.parametrize("tier", [[Spare], [First, Second]], ids=["no-victim", "different-victims"])
def test_a_tier_that_agrees_on_no_victim(tier: list[type[Spare]], quirk_fixes: Sequence[str], evicted: int) -> None:
    """By default the next tier decides: `priority` allows the old tasks as victims."""
    tiers = [
        [make_option(each, enablePreemptable=True) for each in tier],
        [make_option("priority", enablePreemptable=True), GANG],
    ]
    gangs = [old_gang(), NEW]
    done = BatchHarness(tier, nodes=NODES, gangs=gangs, tiers=tiers, actions=PREEMPTING, quirk_fixes=quirk_fixes).run()
    assert len(done.evicted) == evicted
    assert done.faults == []
