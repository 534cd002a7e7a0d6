"""The parser of pages is correct: if it found no code, every page would pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.fences import ROOT, Command, agrees, blocks, commands


def page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_blocks_carry_language_text_and_line(tmp_path: Path) -> None:
    found = list(blocks(page(tmp_path, "# Title\n\n```python\nx = 1\ny = 2\n```\ntext\n```console\n$ true\n```\n")))
    assert [(b.language, b.text, b.line) for b in found] == [
        ("python", "x = 1\ny = 2\n", 4),
        ("console", "$ true\n", 9),
    ]


def test_directives_belong_to_the_next_block_only(tmp_path: Path) -> None:
    text = (
        "<!-- not run: takes a cluster -->\n\n```bash\nfalse\n```\n\n```bash\ntrue\n```\n"
        "<!-- exits: 2 -->\nprose\n```bash\n:\n```\n"
    )
    first, second, third = blocks(page(tmp_path, text))
    assert (first.runs, second.runs, third.runs) == (False, True, True)
    assert third.directives == {}


def test_a_block_may_be_saved_and_commands_run_beside_it(tmp_path: Path) -> None:
    text = "<!-- save: x.py -->\n```python\nx = 1\n```\n<!-- in: scratch -->\n```console\n$ ls\n```\n"
    saved, shell = blocks(page(tmp_path, text))
    assert (saved.directives, shell.directives) == ({"save": "x.py"}, {"in": "scratch"})


def test_an_indented_block_loses_its_indent(tmp_path: Path) -> None:
    (block,) = blocks(page(tmp_path, "- item\n\n    ```yaml\n    a:\n      b: 1\n    ```\n"))
    assert block.text == "a:\n  b: 1\n"


def test_a_fence_that_never_closes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="line 1 is never closed"):
        list(blocks(page(tmp_path, "```python\nx = 1\n")))


def test_commands_are_split_at_prompts() -> None:
    found = list(commands("$ one\nout\nmore\n$ two \\\n> three\n$ four\n\nout\n"))
    assert found == [Command("one", "out\nmore"), Command("two \\\nthree", None), Command("four", "out")]


@pytest.mark.parametrize(
    ("shown", "real", "expected"),
    [
        pytest.param("a\nb", "a  \nb\n\n", True, id="trailing-space-is-no-difference"),
        pytest.param("a ... d", "a b\nc d", True, id="wildcard-spans-lines"),
        pytest.param("a\n...", "a\n", False, id="wildcard-line-wants-a-line"),
        pytest.param("a", "a\nb", False, id="more-output-than-shown"),
        pytest.param("a.c", "abc", False, id="a-dot-is-a-dot"),
    ],
)
def test_shown_and_real_output(shown: str, real: str, expected: bool) -> None:
    assert agrees(shown, real) is expected


def test_the_readme_shows_code_that_runs() -> None:
    runnable = {block.language for block in blocks(ROOT / "README.md") if block.runs}
    assert {"python", "console"} <= runnable
