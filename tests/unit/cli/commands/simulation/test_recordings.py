"""`record`, `replay` and `whatif` on clusters in files: output and errors."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan.sim.recordings.recording_file import (
    OBSERVED,
    RecordedChange,
    RecordedDecision,
    Recording,
    RecordingHeader,
    read_recording,
    write_recording,
)
from bayplan.testing import make_node, make_pod
from docs.fences import ROOT
from support.builders.packing_profile import PACKING_CONFIG
from support.harness.in_process_commands import CommandRunner

CLUSTER, GANGS = ROOT / "examples" / "cluster", ROOT / "examples" / "batch"


def change_file(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "change.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "bayplan.dev/v1alpha1", "kind": "WhatIf", **fields}))
    return path


@pytest.mark.parametrize("example", [CLUSTER, GANGS], ids=["pods", "gangs"])
def test_a_cluster_in_files_is_recorded_and_replayed(run: CommandRunner, tmp_path: Path, example: Path) -> None:
    path = tmp_path / "c.jsonl.gz"
    assert run("record", path, "--from", example).code == 0
    recording = read_recording(path)
    assert run("replay", path) == (0, f"{len(recording.decisions)} decisions, all the same\n", "")
    assert any(verdict.node for verdict in recording.decisions)


def test_another_configuration_is_a_difference_with_exit_code_1(run: CommandRunner, tmp_path: Path) -> None:
    path, config = tmp_path / "c.jsonl", tmp_path / "packing.yaml"
    config.write_text(PACKING_CONFIG)
    run("record", path, "--from", CLUSTER)
    ended = run("replay", path, "--config", config)
    assert ended.code == 1
    assert "different; the first:\ndecision 2, default/web-0: recorded web-a; now " in ended.out
    data = json.loads(run("replay", path, "--config", config, "-o", "json").out)
    assert data["first"]["pod"] == "default/web-0"
    assert data["first"]["recorded"]["node"] == "web-a"
    assert data["different"] >= 1
    assert len(data["replayed"]) == data["decisions"]


def test_the_configuration_of_a_recording_is_replayed_with_it(run: CommandRunner, tmp_path: Path) -> None:
    path, config = tmp_path / "c.jsonl", tmp_path / "packing.yaml"
    config.write_text(PACKING_CONFIG)
    run("record", path, "--from", CLUSTER, "--config", config)
    assert run("replay", path).code == 0
    assert read_recording(path).header.configuration == config.read_text()


def test_an_anonymous_recording_replays_without_names(run: CommandRunner, tmp_path: Path) -> None:
    path = tmp_path / "anonymous.jsonl"
    run("record", "--anonymous", path, "--from", CLUSTER)
    text = path.read_text()
    assert [name for name in ("payroll", "shop", "crunch", "web-a") if name in text] == []
    assert run("replay", path).code == 0
    assert read_recording(path).header.anonymous


def test_a_recording_of_a_live_cluster_is_made_anonymous_later(run: CommandRunner, tmp_path: Path) -> None:
    computed, observed, shared = (tmp_path / name for name in ("computed.jsonl", "observed.jsonl", "shared.jsonl"))
    run("record", computed, "--from", CLUSTER)
    known = read_recording(computed)
    header = RecordingHeader(recording=1, at=known.header.at, decisions=OBSERVED)
    write_recording(
        observed, Recording(header, known.objects, (RecordedDecision(pod="default/crunch-0", node="batch-a"),))
    )
    run("record", "--anonymous", shared, "--from", observed)
    again = read_recording(shared)
    assert again.header.decisions == OBSERVED
    assert [verdict.pod.startswith("default/pod-") for verdict in again.decisions] == [True]
    first, second = (json.loads(run("replay", path, "-o", "json").out) for path in (observed, shared))
    assert first["decisions"] == second["decisions"] == 1
    assert first["different"] == second["different"]


def test_for_needs_a_live_cluster_and_a_duration(run: CommandRunner, tmp_path: Path) -> None:
    ended = run("record", tmp_path / "c.jsonl", "--for", "10m", "--from", CLUSTER)
    assert (ended.code, ended.err) == (2, "error: --follow and --for need a live cluster; leave out --from\n")
    for text in ("soon", "-3s", "0s"):
        ended = run("record", tmp_path / "c.jsonl", f"--for={text}")
        assert ended.code == 2
        assert ended.err == f"error: --for takes a duration such as 90s, 10m or 1h30m; got {text!r}\n"


def test_an_unwritable_file_is_reported_before_recording(run: CommandRunner, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    ended = run("record", tmp_path / "no" / "c.jsonl", "--for", "2h", "--kubeconfig", kubeconfig)
    assert ended.code == 1
    assert "c.jsonl cannot be written: No such file or directory" in ended.err


def test_a_pipe_is_written_and_not_replaced(run: CommandRunner, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run("record", pipe, "--from", CLUSTER).code == 0
        assert os.read(reader, 14) == b'{"recording": '
        assert pipe.is_fifo()
    finally:
        os.close(reader)


def test_an_invalid_configuration_is_reported_with_the_change_file(run: CommandRunner, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("kind: Other\n")
    change = change_file(tmp_path, configuration="bad.yaml")
    ended = run("whatif", "-f", change, "--from", CLUSTER)
    assert ended.code == 1
    assert ended.err.startswith(f"error: {change}: configuration: ")
    assert ended.err.count("\n") == 1


def test_whatif_of_a_recording_uses_its_end(run: CommandRunner, tmp_path: Path) -> None:
    path, noon = tmp_path / "story.jsonl", datetime(2026, 3, 1, 12, tzinfo=UTC)
    header = RecordingHeader(recording=1, at=noon, decisions=OBSERVED, until=noon + timedelta(hours=1))
    objects = (make_node("old", cpu=4), make_pod("web", cpu=3))
    changes = (
        RecordedChange(make_node("new", cpu=4), after=1),
        *(RecordedChange(item, deleted=True, after=1) for item in objects),
    )
    late = RecordedChange(make_pod("late", cpu=3), after=1)
    write_recording(
        path, Recording(header, objects, (RecordedDecision(pod="default/web", node="old"),), (*changes, late))
    )
    output = json.loads(run("whatif", "-f", change_file(tmp_path), "--from", path, "-o", "json").out)
    assert [(each["pod"], each["then"]) for each in output["lands"]] == [("default/late", "new")]
    assert run("replay", path) == (0, "1 decisions, all the same\n", "")
    shared = tmp_path / "shared.jsonl"
    assert run("record", "--anonymous", shared, "--from", path).code == 0
    assert len(read_recording(shared).changes) == 4
    assert "late" not in shared.read_text()
    assert run("replay", shared) == (0, "1 decisions, all the same\n", "")


def test_whatif_prints_a_table_or_data(run: CommandRunner, tmp_path: Path) -> None:
    change = change_file(tmp_path, nodes={"remove": ["batch-a"], "add": ["big=2:cpu=32,memory=64Gi"]})
    output = run("whatif", "-f", change, "--from", CLUSTER)
    assert output.code == 0
    assert "1 pod would move\n  default/crunch-0  batch-a -> big-" in output.out
    assert re.search(r"^nodes +6 +7$", output.out, re.MULTILINE)
    data = json.loads(run("whatif", "-f", change, "--from", CLUSTER, "-o", "json").out)
    assert [(fate["now"], fate["then"][:4]) for fate in data["moves"]] == [("batch-a", "big-")]
    assert data["cost"]["restarts"] == 1
    assert yaml.safe_load(run("whatif", "-f", change, "--from", CLUSTER, "-o", "yaml").out) == data


def test_long_tables_are_truncated(run: CommandRunner, tmp_path: Path) -> None:
    pods = tmp_path / "pods.yaml"
    containers = [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]
    tree = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p-{number}"}, "spec": {"containers": containers}}
        for number in range(25)
    ]
    pods.write_text(yaml.safe_dump_all(tree))
    output = run("whatif", "-f", change_file(tmp_path, nodes={"add": ["node=4:cpu=8"]}), "--from", pods)
    assert "25 pods would land" in output.out
    assert "and 5 more; -o json lists all" in output.out


def test_a_recording_with_another_source_is_refused(run: CommandRunner, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    run("record", path, "--from", CLUSTER)
    ended = run("whatif", "-f", change_file(tmp_path), "--from", path, "--from", CLUSTER)
    assert ended.code == 2
    assert ended.err.endswith("is a recording, which is a whole cluster; give no other file with it\n")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        pytest.param(("replay", "{}/none.jsonl"), 1, "none.jsonl cannot be read: No such file", id="no recording"),
        pytest.param(
            ("record", "{}/no/c.jsonl", "--from", CLUSTER), 1, "cannot be written: No such file", id="no folder"
        ),
        pytest.param(("record", "{}", "--from", CLUSTER), 1, "cannot be written: it is a folder", id="a folder"),
        pytest.param(
            ("record", f"{ROOT}/README.md/c.jsonl", "--from", CLUSTER), 1, "cannot be written: Not a dir", id="a file"
        ),
        pytest.param(("whatif", "-f", "{}/none.yaml", "--from", CLUSTER), 1, "cannot read", id="no change"),
        pytest.param(("record", "{}/c.jsonl", "--from", "{}/none"), 1, "none does not exist", id="no manifests"),
    ],
)
def test_missing_files_are_one_sentence(
    run: CommandRunner, tmp_path: Path, arguments: tuple[object, ...], code: int, expected: str
) -> None:
    ended = run(*(str(argument).replace("{}", str(tmp_path)) for argument in arguments))
    assert ended.code == code
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert expected in ended.err


@pytest.mark.parametrize("option", ["--config", "--scheduler-conf"])
def test_an_invalid_configuration_is_reported_with_its_file(run: CommandRunner, tmp_path: Path, option: str) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("kind: Nothing\nactions: fly\ntiers: 3\n")
    ended = run("record", tmp_path / "c.jsonl", "--from", CLUSTER, option, broken)
    assert ended.code == 1
    assert ended.err.startswith(f"error: {broken}: ")
    assert not (tmp_path / "c.jsonl").exists()
