"""Trace files: valid tables, and errors with line, column and expectation."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest, request_annotations
from bayplan.plugins.gpu.typical_pods import GpuPodShape
from bayplan.sim.traces.csv_table import TraceError
from bayplan.sim.traces.trace_files import TraceNode, TracePod, read_csv_pods, read_nodes, read_openb_pods
from bayplan.sim.virtual_time.policies import pod_shape

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"
NODES = "sn,cpu_milli,memory_mib,gpu,model"


def file(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_read_openb_pods(tmp_path: Path) -> None:
    text = f"{PODS}\na,12000,16384,1,460,T4|P100\nb,8000,1024,0,0,\n\nc,1000.0,1,2,1000,\n"
    expected = [
        TracePod("a", 12000, 16384, GpuMilliRequest(460, 1, "T4|P100")),
        TracePod("b", 8000, 1024, GpuMilliRequest()),
        TracePod("c", 1000, 1, GpuMilliRequest(1000, 2)),
    ]
    assert read_openb_pods(file(tmp_path, text)) == expected
    assert read_openb_pods(file(tmp_path, gzip.compress(text.encode()), "trace.csv.gz")) == expected
    assert read_openb_pods(file(tmp_path, "\ufeff" + text.replace("\n", "\r\n"))) == expected


def test_models_are_part_of_the_shape_of_pods_without_gpus(tmp_path: Path) -> None:
    """Shapes are compared as written, although a model has no meaning without a device."""
    text = f"{PODS}\na,8000,1024,0,0,T4\nb,8000,1024,0,0,\nc,8000,1024,1,500,\n"
    pods = read_openb_pods(file(tmp_path, text))
    assert [pod_shape(pod) for pod in pods] == [
        GpuPodShape(8000, 0, 0, "T4"),
        GpuPodShape(8000, 0, 0),
        GpuPodShape(8000, 500, 1),
    ]
    assert [request_annotations(pod.gpu_request) for pod in pods[:2]] == [{}, {}]


def test_a_list_without_models_accepts_any_model(tmp_path: Path) -> None:
    (found,) = read_openb_pods(file(tmp_path, "cpu_milli,memory_mib,num_gpu,gpu_milli\n1,2,1,300\n"))
    assert found == TracePod("pod-0000", 1, 2, GpuMilliRequest(300, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "expected a first line that names the columns; the file is empty", id="nothing at all"),
        pytest.param(f"{PODS}\n", "expected at least one pod; there is none", id="no pod"),
        pytest.param(
            f"{PODS}\na,1,1,0,0,\n", "column num_gpu: expected at least one pod that asks for a GPU", id="no GPU"
        ),
        pytest.param(
            "name,cpu\na,1\n",
            "line 1, column cpu_milli: expected a column of this name; the file has: name, cpu",
            id="no column",
        ),
        pytest.param(f"{PODS},cpu_milli\n", "line 1, column cpu_milli: expected each column once", id="column twice"),
        pytest.param(
            f"{PODS}\na,1,1,1,500\n",
            "line 2, column gpu_spec: expected 6 cells, as many as the first line names; got 5",
            id="short",
        ),
        pytest.param(
            f"{PODS}\na,1,1,1,500,,9\n", "line 2: expected 6 cells, as many as the first line names; got 7", id="long"
        ),
        pytest.param(
            f"{PODS}\na,1,1,1,500,\nb,two,1,1,500,\n",
            "line 3, column cpu_milli: expected a whole number from 0 on; got 'two'",
            id="a word for a number",
        ),
        pytest.param(
            f"{PODS}\na,-1,1,1,500,\n",
            "line 2, column cpu_milli: expected a whole number from 0 on; got '-1'",
            id="negative",
        ),
        pytest.param(f"{PODS}\na,1.5,1,1,500,\n", "column cpu_milli: expected a whole number", id="a half"),
        pytest.param(
            f"{PODS}\na,,1,1,500,\n", "column cpu_milli: expected a whole number from 0 on; got ''", id="empty"
        ),
        pytest.param(f"{PODS}\na,{'9' * 30},1,1,500,\n", "column cpu_milli: expected a whole number", id="too large"),
        pytest.param(f"{PODS}\na,٣,1,1,500,\n", "column cpu_milli: expected a whole number", id="other digits"),
        pytest.param(f"{PODS}\na,1,1,1,1500,\n", "column gpu_milli: expected a share of one device", id="above one"),
        pytest.param(
            f"{PODS}\na,1,1,2,500,\n", "column gpu_milli: expected 1000, since num_gpu is 2; got 500", id="parts"
        ),
        pytest.param(
            f"{PODS}\na,1,1,0,500,\n", "column gpu_milli: expected 0, since num_gpu is 0; got 500", id="of none"
        ),
        pytest.param(
            f"{PODS}\na,1,1,1,0,\n", "column gpu_milli: expected 1 or more, since num_gpu is 1", id="none of one"
        ),
        pytest.param(f"{PODS}\na,1,1,99,1000,\n", "column num_gpu: expected at most 64 devices; got 99", id="too many"),
        pytest.param(f'{PODS}\na,1,1,1,500,\n"b,1\n', "line 3: expected cells separated by commas", id="an open quote"),
        pytest.param(f"{PODS}\na,1,1,1,500,\xff\n".encode("latin-1"), "expected text in UTF-8", id="other bytes"),
    ],
)
def test_invalid_lists_of_pods(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        read_openb_pods(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_missing_or_truncated_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="it cannot be read: No such file"):
        read_openb_pods(tmp_path / "none.csv")
    whole = gzip.compress(f"{PODS}\n".encode() + b"a,1,1,1,500,\n" * 50)
    for name, content in (("cut.csv.gz", whole[:-20]), ("plain.csv.gz", b"name,cpu\n")):
        with pytest.raises(TraceError, match="expected a whole gzip file"):
            read_openb_pods(file(tmp_path, content, name))


def test_nodes(tmp_path: Path) -> None:
    assert read_nodes(file(tmp_path, f"{NODES}\na,64000,262144,2,P100\n")) == [TraceNode("a", 64000, 262144, 2, "P100")]
    for text, message in (
        (f"{NODES}\n", "expected at least one node; there is none"),
        (f"{NODES}\na,1,1,1,x\na,1,1,1,x\n", "line 3, column sn: expected a name that no line before has; got 'a'"),
        (f"{NODES}\na,1,1,65,x\n", "line 2, column gpu: expected at most 64 devices; got 65"),
        (f"{NODES}\n,1,1,1,x\n", "line 2, column sn: expected a text; got ''"),
    ):
        with pytest.raises(TraceError) as caught:
            read_nodes(file(tmp_path, text))
        assert message in str(caught.value)


def test_columns_of_a_plain_table_can_be_renamed(tmp_path: Path) -> None:
    path = file(tmp_path, "job,cores,mem,at,took\na,1000,512,0.5,10\nb,2000,512,3,\n")
    names = {"name": "job", "cpu_milli": "cores", "memory_mib": "mem", "arrival": "at", "duration": "took"}
    assert list(read_csv_pods(path, names)) == [
        TracePod("a", 1000, 512, GpuMilliRequest(), 0.5, 10.0),
        TracePod("b", 2000, 512, GpuMilliRequest(), 3.0, None),
    ]


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        (
            "cpu_milli,memory_mib,arrival\n1,1,5\n1,1,4\n",
            {},
            "line 3, column arrival: expected times in order, 5 or later",
        ),
        (
            "cpu_milli,memory_mib,arrival\n1,1,soon\n",
            {},
            "line 2, column arrival: expected a number from 0 on; got 'soon'",
        ),
        (
            "cpu_milli,memory_mib,arrival\n1,1,nan\n",
            {},
            "line 2, column arrival: expected a number from 0 on; got 'nan'",
        ),
        (
            "cpu_milli,memory_mib,arrival\n1,1,1\n",
            {"duration": "took"},
            "line 1, column took: expected a column of this name",
        ),
        (
            "cpu_milli,memory_mib,arrival\n1,1,1\n",
            {"colour": "x"},
            "column colour: unknown field; expected one of: name, cpu_milli",
        ),
        ("cpu_milli,memory_mib,arrival\n", {}, "expected at least one pod; there is none"),
    ],
)
def test_invalid_plain_tables(tmp_path: Path, text: str, names: dict[str, str], message: str) -> None:
    with pytest.raises(TraceError) as caught:
        list(read_csv_pods(file(tmp_path, text), names))
    assert message in str(caught.value)
