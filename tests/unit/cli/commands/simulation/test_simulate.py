"""`bayplan simulate` and `bayplan sweep`: output, reproducibility, and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bayplan.sim.traces.recorded_trace import read_recorded_trace
from support.fakes.cpu_environments import LOCAL_ENVIRONMENT, OTHER_CPU_ENVIRONMENT
from support.harness.cluster_command_line import InProcessCommandLine


def _pod(n: int) -> str:
    """A CSV line of a pod: one in seven without a GPU, one in three with a GPU fraction."""
    milli = 0 if n % 7 == 0 else 1000 if n % 3 else 100 * (n % 7)
    return f"p{n},{1000 * (n % 5)},512,{int(milli > 0)},{milli},{'T4' if n % 11 == 0 else ''}\n"


PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(map(_pod, range(300)))
MODELS = ("P100", "T4")
EXAMPLES = Path(__file__).resolve().parents[5] / "examples"
NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{n},32000,65536,4,{MODELS[n % 2]}\n" for n in range(50))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> InProcessCommandLine:
    return InProcessCommandLine(capsys)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Options for a small workload."""
    (tmp_path / "pods.csv").write_text(PODS)
    (tmp_path / "nodes.csv").write_text(NODES)
    return ["--pods", str(tmp_path / "pods.csv"), "--nodes", str(tmp_path / "nodes.csv")]


def test_the_table(run: InProcessCommandLine, files: list[str]) -> None:
    lines = run.lines("simulate", *files, "--policy", "fgd", "--seeds", 2, "--processes", 1)
    assert lines[0] == "fgd on pods (openb): 50 nodes, 200 GPUs, 2 runs"
    assert lines[2].split() == ["LOAD", "GPU", "ALLOCATION", "DEVIATION"]
    assert lines[-1] == "there are no published results of this workload"
    assert [line.split()[0] for line in lines[3:-2]] == ["90%", "100%", "130%"]


def test_the_json_output(run: InProcessCommandLine, files: list[str]) -> None:
    found = json.loads("\n".join(run.lines("simulate", *files, "--seeds", 3, "--processes", 1, "-o", "json")))
    assert found["seeds"] == [0, 1, 2]
    assert (found["nodes"], found["gpus"], found["published"]) == (50, 200, None)
    finals = [each["gpu_milli_allocated"] for each in found["runs"]]
    assert all(0 < milli <= 200_000 for milli in finals)
    assert {f"gpu_allocation_at_{load}_{what}" for load in (90, 100, 130) for what in ("mean", "sd")} <= found.keys()
    allocations = [each["gpu_allocation_at_130"] for each in found["runs"]]
    assert found["gpu_allocation_at_130_mean"] == pytest.approx(sum(allocations) / 3, abs=1e-3)


@pytest.mark.parametrize("trace", ["openb", "csv"])
def test_the_same_seed_gives_the_same_output_on_every_machine(files: list[str], tmp_path: Path, trace: str) -> None:
    timed = tmp_path / "timed.csv"
    header, *lines = (tmp_path / "pods.csv").read_text().splitlines()
    arrivals = [f"{line},{7 * number},{100 + 37 * number % 1000}" for number, line in enumerate(lines)]
    timed.write_text("\n".join([f"{header},arrival,duration", *arrivals, ""]))
    trace_options = (
        ["--seeds", "2"] if trace == "openb" else ["--trace", "csv", "--pods", timed, "--samples", "-", "--every", 300]
    )
    expected = []
    for number, environment in enumerate((LOCAL_ENVIRONMENT, OTHER_CPU_ENVIRONMENT)):
        samples = tmp_path / f"samples-{number}.csv"
        more = ["--processes", number + 1] if trace == "openb" else []
        options = [samples if each == "-" else each for each in (*files, *trace_options, *more, "-o", "json")]
        command = [sys.executable, "-m", "bayplan", "simulate", *map(str, options)]
        done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=300)
        expected.append((done.stdout, samples.read_bytes() if trace == "csv" else b""))
    assert expected[0] == expected[1]
    assert json.loads(expected[0][0])["nodes"] == 50
    assert expected[0][1].count(b"\n") > (5 if trace == "csv" else -1)


def test_show_config_prints_a_scheduler_configuration(
    run: InProcessCommandLine, files: list[str], tmp_path: Path
) -> None:
    text = "\n".join(run.lines("simulate", *files, "--policy", "fgd", "--show-config"))
    (profile,) = yaml.safe_load(text)["profiles"]
    assert profile["plugins"]["multiPoint"]["enabled"] == [{"name": "GpuFragmentation"}]
    path = tmp_path / "fgd.yaml"
    path.write_text(text)
    assert any("GpuFragmentation" in line for line in run.lines("config", "show", path))


def test_a_table_of_arrivals_is_replayed_in_virtual_time(run: InProcessCommandLine, tmp_path: Path) -> None:
    jobs, nodes, samples = (tmp_path / name for name in ("jobs.csv", "nodes.csv", "samples.csv"))
    jobs.write_text("cores,memory_mib,submitted,duration\n4000,128,0,60\n4000,128,10,60\n")
    nodes.write_text("sn,cpu_milli,memory_mib\na,4000,1024\n")
    options = ["--trace", "csv", "--pods", jobs, "--nodes", nodes, "--every", 50, "--samples", samples]
    options += ["--column", "cpu_milli=cores", "--column", "arrival=submitted"]
    found = json.loads("\n".join(run.lines("simulate", *options, "-o", "json")))
    assert (found["arrived"], found["placed"], found["seconds"]) == (2, 2, 120)
    assert (found["wait_longest_s"], found["cpu_mean"]) == (50, 1.0)
    assert samples.read_text().splitlines()[:3] == [
        "at_s,cpu,memory,gpu,fragmentation,running,waiting,fairness,preemptions",
        "0.0,0.0,0.0,0.0,0.0,0,0,1.0,0",
        "50.0,1.0,0.125,0.0,0.0,1,1,1.0,0",
    ]
    assert run.lines("simulate", *options)[0] == "jobs.csv on 1 nodes: 0.03 hours"


def test_a_recording_is_a_trace(run: InProcessCommandLine, tmp_path: Path) -> None:
    recorded = tmp_path / "cluster.jsonl"
    run.lines("record", "--from", EXAMPLES / "cluster", recorded)
    found = json.loads("\n".join(run.lines("simulate", "--trace", "recording", "--pods", recorded, "-o", "json")))
    nodes, pods = read_recorded_trace(recorded)
    assert (found["nodes"], found["arrived"]) == (len(nodes), len(pods))
    assert 0 < found["placed"] <= len(pods)
    assert found["placed"] + found["waiting"] == len(pods) + found["preemptions"]
    assert 0 < found["cpu_mean"] <= 1  # all pods arrive at once, and no time passes afterwards


def test_gpus_of_a_table_are_shared_by_default(run: InProcessCommandLine, tmp_path: Path) -> None:
    jobs, nodes, config = (tmp_path / name for name in ("jobs.csv", "nodes.csv", "config.yaml"))
    jobs.write_text("cpu_milli,memory_mib,num_gpu,gpu_milli,arrival,duration\n" + "1,1,1,700,0,60\n" * 3)
    nodes.write_text("sn,cpu_milli,memory_mib,gpu\na,4000,1024,1\n")
    config.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
    longest = {}
    for name, more in (("default", []), ("fgd", ["--policy", "fgd"]), ("file", ["--config", config])):
        lines = run.lines("simulate", "--trace", "csv", "--pods", jobs, "--nodes", nodes, "-o", "json", *more)
        longest[name] = json.loads("\n".join(lines))["wait_longest_s"]
    assert longest == {"default": 120, "fgd": 120, "file": 0}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["simulate", "--pods", "none.csv"], "none.csv: it cannot be read: No such file or directory"),
        (["simulate", "--pods", "none.csv", "--samples", "x"], "--samples: only valid with --trace csv or recording"),
        (
            ["simulate", "--pods", "x", "--column", "a=b", "--every", 5],
            "--column, --every: only valid with --trace csv or recording",
        ),
        (
            ["simulate", "--trace", "csv", "--pods", "x", "--show-config"],
            "--show-config: only valid with --trace openb",
        ),
        (
            ["simulate", "--trace", "csv", "--pods", "x", "--seeds", 3, "--processes", 1],
            "--seeds, --processes: only valid with --trace openb",
        ),
        (["simulate", "--trace", "recording", "--pods", "x", "--column", "name=job"], "a recording has no columns"),
        (
            ["simulate", "--trace", "csv", "--pods", "x", "--column", "colour=red"],
            "--column takes FIELD=NAME with a field",
        ),
        (["simulate", "--trace", "csv", "--pods", "x", "--policy", "fgd", "--config", "y"], "give one of them"),
        (
            ["sweep", "--pods", "none.csv", "--out", "/no/x.csv"],
            "cannot write /no/x.csv: the folder /no does not exist",
        ),
        (
            ["sweep", "--pods", "none.csv", "--out", "x.csv", "--report", "no/x.html"],
            "cannot write no/x.html: the folder no does not exist; create it",
        ),
        (["sweep", "--pods", "none.csv", "--out", "x.csv", "--report", "."], "cannot write .: it is a folder"),
        (["sweep", "--pods", "none.csv", "--out", "x.txt"], "--out must be a .csv or .parquet file; got x.txt"),
        (
            ["sweep", "--pods", "none.csv", "--out", "x.csv", "--policy", "best"],
            'unknown policy "best"; expected one of: random',
        ),
        (["sweep", "--pods", "none.csv", "--out", "x.csv", "--policy", "fgd:0"], "a whole number from 1 to 1000"),
        (["sweep", "--pods", "none.csv", "--out", "x.csv", "--policy", "fgd+fgd"], "names fgd twice"),
    ],
)
def test_wrong_calls_are_one_sentence(run: InProcessCommandLine, arguments: list[str], expected: str) -> None:
    ended = run(*arguments)
    assert ended.code in (1, 2)
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert expected in ended.err


@pytest.mark.parametrize("engine", ["pod", "batch"])
def test_an_invalid_configuration_is_reported_with_its_file(
    run: InProcessCommandLine, files: list[str], tmp_path: Path, engine: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("kind: Other\n")
    timed = tmp_path / "timed.csv"
    timed.write_text("cpu_milli,memory_mib,arrival\n1000,512,0\n")
    options = ["--trace", "csv", "--pods", timed, *files[2:], "--engine", engine, "--config", config]
    ended = run("simulate", *options)
    assert ended.err.startswith(f"error: {config}: ")
    assert "; " in ended.err  # the advice
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("verb", ["simulate", "sweep"])
def test_nodes_without_gpus_are_refused(run: InProcessCommandLine, files: list[str], tmp_path: Path, verb: str) -> None:
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib\na,1000,1000\n")
    more = ["--out", tmp_path / "out.csv"] if verb == "sweep" else []
    assert "no node has a GPU" in run(verb, *files, *more).err


def test_other_nodes_are_not_compared_with_published_results(
    run: InProcessCommandLine, files: list[str], tmp_path: Path
) -> None:
    """Published results of a known list of pods are for the nodes of OpenB only."""
    pods, page = tmp_path / "openb_pod_list_default.csv", tmp_path / "page.html"
    pods.write_text(PODS)
    options = ["--pods", pods, *files[2:], "--policy", "bestfit", "--seeds", 1, "--processes", 1]
    lines = run.lines("simulate", *options)
    assert lines[2].split() == ["LOAD", "GPU", "ALLOCATION", "DEVIATION"]
    assert lines[-1] == "the published results of this workload are for other nodes"
    assert json.loads("\n".join(run.lines("simulate", *options, "-o", "json")))["published"] is None
    run.lines("sweep", *options, "--out", tmp_path / "out.csv", "--report", page)
    assert "92.86" not in page.read_text()  # the published value


def test_a_policy_twice_is_refused(run: InProcessCommandLine, files: list[str], tmp_path: Path) -> None:
    ended = run("sweep", *files, "--policy", "fgd", "--policy", "fgd", "--out", tmp_path / "out.csv")
    assert "--policy fgd is given twice" in ended.err


@pytest.mark.parametrize(("out", "library"), [("out.parquet", "pyarrow"), ("out.csv", "matplotlib")])
def test_a_missing_library_is_reported_before_the_first_run(
    run: InProcessCommandLine, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    page = ["--report", tmp_path / "page.html"] if library == "matplotlib" else []
    ended = run("sweep", *files, "--out", tmp_path / out, *page)
    assert f"needs {library}; install it with: pip install 'bayplan[sweep]'" in ended.err
    assert not (tmp_path / f"{out}.partial").exists()


def test_an_interrupted_sweep_continues(run: InProcessCommandLine, files: list[str], tmp_path: Path) -> None:
    whole, again = tmp_path / "whole.csv", tmp_path / "again.csv"
    options = [*files, "--policy", "fgd", "--policy", "fgd:2+bestfit:1", "--seeds", "2", "--processes", "1"]
    assert run.lines("sweep", *options, "--out", whole) == [f"4 runs in {whole}"]
    lines = whole.read_text().splitlines(keepends=True)
    assert len(lines) == 5
    marked = lines[1].split(",")
    marked[3] = "123456"  # a number that no run has, to recognise the stored line
    partial = tmp_path / "again.csv.partial"
    partial.write_text(lines[0] + ",".join(marked) + lines[2].replace(",fgd,", ",bestfit,") + lines[3][:20])
    run.lines("sweep", *options, "--out", again)
    assert again.read_text() == lines[0] + ",".join(marked) + "".join(lines[2:])
    assert not partial.exists()


def test_partial_results_of_other_files_are_not_used(
    run: InProcessCommandLine, files: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    options = ["sweep", *files, "--policy", "bestfit", "--seeds", "1", "--processes", "1", "--out", out]
    run.lines(*options)
    before = out.read_text()
    (tmp_path / "out.csv.partial").write_text(before)
    (tmp_path / "nodes.csv").write_text(NODES.replace("32000", "16000"))
    run.lines(*options)
    assert out.read_text() != before


def test_two_files_with_one_name_are_refused(run: InProcessCommandLine, files: list[str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "pods.csv").write_text(PODS)
    ended = run("sweep", *files, "--pods", other / "pods.csv", "--out", tmp_path / "out.csv")
    assert "two files are called pods" in ended.err
