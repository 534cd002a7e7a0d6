"""`bayplan kubelet` before it runs: help, and refused arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.controllers import NodeTemplate
from support.harness.in_process_commands import CommandRunner

EXAMPLE = Path(__file__).resolve().parents[5] / "examples" / "kubelet" / "node.yaml"


def test_the_help_has_options_and_examples(run: CommandRunner) -> None:
    result = run("kubelet", "--help")
    assert result.code == 0
    for part in ("--node-template", "bayplan.dev/runs-for", "{index%3}", "bayplan kubelet --nodes 1000"):
        assert part in result.text


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        pytest.param(
            ["--runs-for", "soon"], 2, "--runs-for soon: that is no duration; write one such", id="a duration"
        ),
        pytest.param(["--stops-after", "-5s"], 2, "--stops-after -5s: that is no duration", id="a negative one"),
        pytest.param(["--nodes", "-1"], 2, "--nodes", id="a negative number"),
        pytest.param(["--node-template", "/nowhere.yaml"], 1, "/nowhere.yaml", id="no such template"),
        pytest.param(["--kubeconfig", "/nowhere"], 1, "/nowhere", id="no such kubeconfig"),
    ],
)
def test_a_wrong_call_is_one_sentence(run: CommandRunner, arguments: list[str], code: int, expected: str) -> None:
    result = run("kubelet", *arguments)
    assert (result.code, "Traceback" in result.text) == (code, False)
    assert expected in result.text


def test_the_example_is_a_valid_template() -> None:
    node = NodeTemplate.read(EXAMPLE).node(41)
    assert node["metadata"]["name"] == "big-41"
    assert node["metadata"]["labels"]["example.com/rack"] == "rack-1"
