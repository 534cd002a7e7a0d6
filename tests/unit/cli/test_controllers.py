"""`bayplan controllers` before it runs: what it teaches, and what it refuses in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.cli import main
from bayplan.controllers import CONTROLLER_NAMES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "controllers.md"


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and everything that was printed."""
    code = 0
    try:
        main(["controllers", *arguments])
    except SystemExit as done:
        code = int(done.code or 0)
    return code, "".join(capsys.readouterr())


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ended(capsys, "--help")
    assert code == 0
    for taught in ("--leader-elect", "--controllers='*,-job-controller", "--default-storage-class"):
        assert taught in text


def test_the_names_are_listed_and_documented(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ended(capsys, "--list")
    assert (code, text.split()) == (0, list(CONTROLLER_NAMES))
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in CONTROLLER_NAMES if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(
            ["--controllers", "jobs"], 2, "'jobs' is no controller; there are cronjob-controller", id="no name"
        ),
        pytest.param(["--kubeconfig", "/nowhere"], 1, "/nowhere", id="no such kubeconfig"),
        pytest.param(["--kube-api-qps", "many"], 2, "--kube-api-qps", id="no number"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    found, text = ended(capsys, *arguments)
    assert (found, "Traceback" in text) == (code, False)
    assert said in text
