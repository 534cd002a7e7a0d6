"""`bayplan place`: tables, line for line, and the data for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.harness.in_process_commands import CommandRunner

Tree = dict[str, Any]
Files = Callable[..., Path]


def node(name: str, cpu: str = "2", memory: str = "4Gi", pods: str = "10") -> Tree:
    allocatable = {"cpu": cpu, "memory": memory, "pods": pods}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}


def pod(name: str, cpu: str = "1", memory: str = "0", **spec: Any) -> Tree:
    containers = [{"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    def write(*objects: Tree) -> Path:
        path = tmp_path / "all.yaml"
        path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
        return path

    return write


@pytest.fixture(autouse=True)
def _use_wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def lines(run: CommandRunner, *arguments: object) -> list[str]:
    ended = run("place", *arguments)
    assert (ended.code, ended.err) == (0, "")
    return [line.rstrip() for line in ended.out.splitlines()]


def test_the_tables_of_pods_and_nodes(run: CommandRunner, files: Files) -> None:
    path = files(
        node("b", cpu="4", memory="0"), node("a"), pod("there", "1500m", "1Gi", nodeName="a"), pod("p", "4", priority=7)
    )
    assert lines(run, "-f", path) == [
        "POD        PRIORITY  NODE  WHY",
        "default/p         7  b     the only node that fits; other nodes: 1 Insufficient cpu",
        "",
        "1 of 1 pods placed",
        "",
        "NODE  PODS  CPU                         MEMORY",
        "a     1/10  ███████████████░░░░░   75%  █████░░░░░░░░░░░░░░░  25%",
        "b     1/10  ████████████████████  100%  ░░░░░░░░░░░░░░░░░░░░   0%",
    ]


def test_pods_that_fit_no_node_are_pending(run: CommandRunner, files: Files) -> None:
    found = lines(run, "-f", files(node("a"), pod("p"), pod("big", "9")))
    assert [line.split()[:3] for line in found[1:3]] == [["default/p", "0", "a"], ["default/big", "0", "pending"]]
    assert found[4] == "1 of 2 pods placed"


@pytest.mark.parametrize(
    ("requests", "share", "filled"),
    [("0", "0%", 0), ("40m", "2%", 0), ("60m", "3%", 1), ("1", "50%", 10), ("2", "100%", 20), ("3", "150%", 20)],
)
def test_a_usage_bar_has_twenty_parts(run: CommandRunner, files: Files, requests: str, share: str, filled: int) -> None:
    there = pod("there", requests, nodeName="a")
    row = lines(run, "-f", files(node("a"), there, pod("p", "9")))[-1].split()
    assert row[2:4] == ["█" * filled + "░" * (20 - filled), share]


def test_wide_output_has_the_scores_of_the_best_nodes(run: CommandRunner, files: Files) -> None:
    found = lines(run, "-f", files(node("a"), node("b", cpu="4"), pod("p"), pod("big", "9")), "-o", "wide")
    begin = next(number for number, line in enumerate(found) if "SCORES (best five)" in line)
    assert found[begin].split()[:3] == ["POD", "NODE", "TOTAL"]
    first, second, blank, head = found[begin + 1 : begin + 5]
    assert first.split()[:2] == ["default/p", "b"]
    assert second.split()[0] == "a"
    assert blank == ""
    assert head.split() == ["NODE", "PODS", "CPU", "MEMORY"]
    for total, *shares in (first.split()[2:], second.split()[1:]):
        given = [int(share.partition("=")[2]) for share in shares]
        assert sum(given) == int(total)
        assert 0 not in given


def test_without_scores_there_is_no_score_table(run: CommandRunner, files: Files) -> None:
    found = lines(run, "-f", files(node("a"), pod("big", "9")), "-o", "wide")
    assert not any("SCORES" in line for line in found)
    assert [number for number, line in enumerate(found) if line == ""] == [2, 4]


def test_data_has_every_score(run: CommandRunner, files: Files) -> None:
    path = files(node("a"), node("b", cpu="4"), pod("p", priority=3), pod("big", "9"))
    placed, big = json.loads(run("place", "-f", path, "-o", "json").out)
    assert (placed["pod"], placed["priority"], placed["node"], placed["evicted"]) == ("default/p", 3, "b", [])
    assert list(placed["scores"]) == ["b", "a"]
    for scores in placed["scores"].values():
        assert scores.pop("total") == sum(scores.values()) > 0
    assert (big["node"], big["scores"]) == (None, {})


def test_the_seed_chooses_among_equally_good_nodes(run: CommandRunner, files: Files) -> None:
    path = files(*(node(f"n{number}") for number in range(8)), pod("p"))
    chosen = {
        seed: json.loads(run("place", "-f", path, "-o", "json", f"--seed={seed}").out)[0]["node"] for seed in range(6)
    }
    assert len(set(chosen.values())) > 1
    assert json.loads(run("place", "-f", path, "-o", "json").out)[0]["node"] == chosen[0]
