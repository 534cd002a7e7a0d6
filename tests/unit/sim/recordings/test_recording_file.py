"""Recording files: round trip, order of lines, and errors with their place."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject, ObjectMeta
from bayplan.sim.recordings.recording_file import (
    BATCH_ENGINE,
    RecordedChange,
    RecordedDecision,
    Recording,
    RecordingError,
    RecordingHeader,
    encode_lines,
    is_recording,
    read_recording,
    write_recording,
)
from bayplan.testing import make_node, make_pod
from bayplan.testing.batch_builders import make_gang, make_queue

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def recording() -> Recording:
    gang = make_gang("train", 2, cpu=1)
    objects: list[KubeObject] = [
        make_node("a", zone="z1"),
        make_pod("web", cpu="500m"),
        make_queue("default"),
        *gang.objects,
    ]
    decisions = (
        RecordedDecision(pod="default/web", node="a", why="the only node that fits", evicted=("default/old",)),
        RecordedDecision(pod="default/train-0", engine=BATCH_ENGINE, node="a", session=1, at=NOON),
    )
    return Recording(RecordingHeader(recording=1, at=NOON, seed=3, configuration="kind: Ü"), tuple(objects), decisions)


def followed_recording() -> Recording:
    """The same cluster with changes: a pod is placed, another is added, the first is deleted."""
    known = recording()
    web = known.objects[1]
    late = make_pod("late")
    last = RecordedDecision(pod="default/late", node="a", at=NOON)
    deleted = Pod(metadata=ObjectMeta(name="web", namespace="default", uid=web.metadata.uid))
    changes = (RecordedChange(late, at=NOON, after=1), RecordedChange(deleted, deleted=True, after=2))
    header = replace(known.header, until=NOON + timedelta(hours=1))
    return Recording(header, known.objects[:2], (known.decisions[0], last), changes)


@pytest.mark.parametrize("make", [recording, followed_recording])
@pytest.mark.parametrize("name", ["cluster.jsonl", "cluster.jsonl.gz"])
def test_a_recording_round_trips(tmp_path: Path, name: str, make: Callable[[], Recording]) -> None:
    write_recording(tmp_path / name, make())
    assert read_recording(tmp_path / name) == make()
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["cluster.jsonl", "cluster.jsonl.gz"])
def test_equal_recordings_have_equal_bytes(tmp_path: Path, name: str) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        write_recording(tmp_path / folder / name, recording())
    assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_a_followed_cluster_has_ordered_lines_and_final_objects() -> None:
    lines = [json.loads(line) for line in encode_lines(followed_recording())]
    assert [next(iter(line)) for line in lines] == [
        "recording",
        *["object"] * 2,
        *["decision", "change", "decision", "change"],
        "end",
    ]
    assert [list(line["change"]) for line in lines if "change" in line] == [["at", "comes"], ["goes"]]
    assert lines[-1] == {"end": {"objects": 2, "decisions": 2, "changes": 2}}
    final_objects = {(type(item).__name__, item.key): item for item in followed_recording().objects_at_end()}
    assert set(final_objects) == {("Node", "a"), ("Pod", "default/late")}
    late = final_objects["Pod", "default/late"]
    assert isinstance(late, Pod)
    assert late.spec.node_name == "a"
    assert recording().objects_at_end() == recording().objects


def test_a_name_that_ends_in_gz_is_compressed(tmp_path: Path) -> None:
    write_recording(tmp_path / "c.jsonl.gz", recording())
    lines = gzip.decompress((tmp_path / "c.jsonl.gz").read_bytes()).decode().splitlines()
    assert json.loads(lines[0])["recording"] == 1
    assert json.loads(lines[1])["object"]["kind"] == "Node"


def test_is_recording_by_name_or_first_bytes(tmp_path: Path) -> None:
    write_recording(tmp_path / "plain.txt", recording())
    (tmp_path / "nodes.json").write_text('{"apiVersion": "v1", "kind": "Node"}')
    assert is_recording(tmp_path / "plain.txt")
    assert is_recording(tmp_path / "not-there.jsonl.gz")
    assert not is_recording(tmp_path / "nodes.json")
    assert not is_recording(tmp_path)


HEADER, NODE, *_, END = list(encode_lines(Recording(recording().header, recording().objects[:1], ())))


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        pytest.param([], 1, 'the file is empty; expected {"recording": 1, ...}', id="empty"),
        pytest.param(
            ['{"kind": "Node"}'], 1, 'the first line is not a header; expected {"recording": 1', id="a manifest"
        ),
        pytest.param(['{"recording": 7}'], 1, "recording: the version of the format is 7; expected 1", id="newer"),
        pytest.param(['{"recording": 1}'], 1, "at is missing; expected some of recording, at, ", id="no time"),
        pytest.param(
            ['{"recording": 1, "at": "noon"}'], 1, "at: Invalid RFC3339 encoded datetime; correct it", id="no such time"
        ),
        pytest.param([HEADER, "{"], 2, "it is not JSON: ", id="no JSON"),
        pytest.param([HEADER, "[]"], 2, "it is not a JSON object; expected object, decision, ", id="a list"),
        pytest.param([HEADER, '{"nod": 1}'], 2, "expected object, decision, change or end", id="something else"),
        pytest.param(
            [HEADER, '{"object": {"kind": "Node"}}'], 2, "apiVersion or kind is missing; expected both", id="bare"
        ),
        pytest.param(
            [HEADER, '{"object": {"apiVersion": "v1", "kind": "Secret"}}'],
            2,
            "object.kind: no scheduler reads Secret of v1",
            id="a strange kind",
        ),
        pytest.param(
            [HEADER, NODE, '{"object": {"apiVersion": "v1", "kind": "Pod", "spec": {"priority": "high"}}}'],
            3,
            "spec.priority is a text; write a whole number",
            id="a field of the wrong type",
        ),
        pytest.param(
            [HEADER, '{"decision": {"pod": "default/a", "node": 3}}'],
            2,
            "decision: node is a whole number; write a text, in quotes",
            id="a node that is no name",
        ),
        pytest.param(
            [HEADER, '{"decision": {"pod": "default/a", "nod": "x"}}'],
            2,
            "decision: nod is an unknown field; expected some of pod, engine, node, ",
            id="a misspelt field",
        ),
        pytest.param(
            [HEADER, '{"decision": {"pod": "default/a", "engine": "third"}}'],
            2,
            "decision.engine: it is 'third'; expected 'pods' or 'batch'",
            id="a third engine",
        ),
        pytest.param([HEADER, NODE], 3, 'the file is truncated; expected {"end": ...}', id="cut"),
        pytest.param(
            [HEADER, END],
            2,
            "end: the file holds objects 0 and decisions 0; expected objects 1 and decisions 0",
            id="lost lines",
        ),
        pytest.param(
            [HEADER, '{"change": {"at": "2026-03-01T12:00:00Z"}}'],
            2,
            "change: the action is missing; expected either comes or goes",
            id="a change of nothing",
        ),
        pytest.param(
            [HEADER, '{"change": {"goes": {"apiVersion": "v1", "kind": "Secret"}}}'],
            2,
            "change.goes.kind: no scheduler reads Secret of v1",
            id="a strange kind goes",
        ),
        pytest.param([HEADER, NODE, END, NODE], 4, "there are lines after the end; expected none", id="two in one"),
    ],
)
def test_an_invalid_file_is_an_error_with_line_field_and_expectation(
    tmp_path: Path, lines: list[str], line: int, message: str
) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text("".join(f"{each}\n" for each in lines))
    with pytest.raises(RecordingError) as caught:
        read_recording(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert message in str(caught.value)


def test_a_truncated_gzip_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl.gz"
    write_recording(path, recording())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RecordingError, match="the gzip file is incomplete"):
        read_recording(path)


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "strange.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordingError, match="line 1: it is not text; expected UTF-8"):
        read_recording(path)
