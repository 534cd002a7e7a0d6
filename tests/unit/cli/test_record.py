"""`bayplan record`: its output, and the headers of all kinds of recordings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bayplan.cli.commands.simulation.cluster_source import ClusterSource
from bayplan.cli.commands.simulation.record import _seconds, _summary, anonymise_recording, record_snapshot
from bayplan.errors import UsageError
from bayplan.objects.core import PodStatus
from bayplan.objects.meta import Condition, KubeObject
from bayplan.sim.offline.offline_cluster import EngineSetup
from bayplan.sim.recordings.recording_file import (
    DECIDED,
    OBSERVED,
    RecordedChange,
    RecordedDecision,
    Recording,
    RecordingHeader,
    read_recording,
)
from bayplan.testing import make_node, make_pod, make_storage_class
from docs.fences import ROOT
from support.harness.in_process_commands import CommandRunner

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SETUP = EngineSetup(batch_schedulers=("gangs",))
OBJECTS: tuple[KubeObject, ...] = (make_node("node-a"), make_pod("web"), make_pod("db", node="node-a"))


def recording(
    *objects: KubeObject, until: datetime | None = None, changes: tuple[RecordedChange, ...] = ()
) -> Recording:
    header = RecordingHeader(recording=1, at=NOON, decisions=OBSERVED, until=until)
    return Recording(header, objects, (RecordedDecision(pod="default/web", node="node-a"),), changes)


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, None), ("90s", 90.0), ("10m", 600.0), ("1h30m", 5400.0), ("1ms", 0.001)]
)
def test_durations(text: str | None, seconds: float | None) -> None:
    assert _seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0s", "-1s", "5"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--for takes a duration such as 90s, 10m or 1h30m; got "):
        _seconds(text)


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        pytest.param(recording(), "0 nodes, 0 pods, 0 other objects, 1 decisions", id="nothing"),
        pytest.param(
            recording(*OBJECTS, make_storage_class("fast")),
            "1 nodes, 2 pods, 1 other objects, 1 decisions",
            id="one moment",
        ),
        pytest.param(
            recording(*OBJECTS, until=NOON), "1 nodes, 2 pods, 0 other objects, 1 decisions, 0 changes", id="followed"
        ),
    ],
)
def test_the_summary_of_a_recording(recorded: Recording, words: str) -> None:
    assert _summary(recorded) == words


def test_names_are_replaced_in_objects_decisions_and_changes() -> None:
    change = RecordedChange(make_pod("late"), at=NOON, after=1)
    found = anonymise_recording(recording(*OBJECTS, until=NOON, changes=(change,)))
    assert found.header.anonymous
    assert (found.header.decisions, found.header.until) == (OBSERVED, NOON)
    names = {item.name for item in found.objects}
    assert {"node-a", "web", "db", "late"} & {*names, found.changes[0].item.name} == set()
    (verdict,) = found.decisions
    assert verdict.node in names
    assert verdict.pod.partition("/")[2] in names
    assert (found.changes[0].after, found.changes[0].at is None) == (1, False)


@pytest.mark.parametrize("is_anonymous", [False, True], ids=["named", "anonymous"])
def test_decisions_are_made_for_a_cluster_in_files(is_anonymous: bool) -> None:
    found = record_snapshot(ClusterSource(OBJECTS, NOON), SETUP, 7, is_anonymous=is_anonymous)
    header = found.header
    assert (header.at, header.decisions, header.seed, header.until) == (NOON, DECIDED, 7, None)
    assert (header.anonymous, header.batch_schedulers) == (is_anonymous, ("gangs",))
    (verdict,) = found.decisions
    assert bool(verdict.node)
    assert (verdict.node == "node-a") is not is_anonymous


def observed_pod(name: str, scheduler: str) -> KubeObject:
    bound = Condition(type="PodScheduled", status="True", last_transition_time=NOON)
    return make_pod(name, node="node-a", scheduler_name=scheduler, status=PodStatus(conditions=(bound,)))


@pytest.mark.parametrize("is_anonymous", [False, True], ids=["named", "anonymous"])
def test_decisions_of_a_live_cluster_are_observed(is_anonymous: bool) -> None:
    pods = (observed_pod("one", "default-scheduler"), observed_pod("gang", "gangs"), observed_pod("alien", "elsewhere"))
    source = ClusterSource((make_node("node-a"), *pods), NOON, is_observed=True)
    found = record_snapshot(source, SETUP, 3, is_anonymous=is_anonymous)
    assert (found.header.decisions, found.header.seed, found.header.anonymous) == (OBSERVED, 3, is_anonymous)
    assert sorted((each.engine, each.session) for each in found.decisions) == [("batch", 1), ("pods", 0)]
    assert any("one" in each.pod for each in found.decisions) is not is_anonymous


def test_a_recording_of_a_live_cluster_keeps_its_decisions() -> None:
    until = NOON + timedelta(hours=1)
    known = recording(*OBJECTS, until=until)
    source = ClusterSource(OBJECTS, until, is_observed=True, recording=known)
    found = record_snapshot(source, SETUP, 5)
    assert (found.decisions, found.objects) == (known.decisions, known.objects)
    assert (found.header.at, found.header.until, found.header.seed) == (NOON, until, 5)
    assert (found.header.decisions, found.header.anonymous) == (OBSERVED, False)


def test_the_command_prints_a_summary(run: CommandRunner, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    options: list[Any] = ["--from", ROOT / "examples" / "cluster", "--seed", 4, "--batch-scheduler-name", "gangs"]
    ended = run("record", path, *options)
    assert (ended.code, ended.err) == (0, "")
    found = read_recording(path)
    assert ended.out == f"{path}: {_summary(found)}\n"
    assert (found.header.seed, found.header.batch_schedulers, found.header.until) == (4, ("gangs",), None)
