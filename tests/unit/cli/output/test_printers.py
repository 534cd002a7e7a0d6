"""Tables for people and YAML for programs: no text is truncated, whatever the width of the terminal."""

from __future__ import annotations

import pytest
import yaml
from rich.table import Table

from bayplan.cli.output.printers import print_table, yaml_text

WHERE = "big-0 (node-2 without the change)"
WHY = "best of 3 with 467, 3 ahead of node-2 (NodeResourcesBalancedAllocation +3)"


@pytest.mark.parametrize("width", [20, 60, 80, 81, 83, 200])
def test_a_long_text_after_unwrapped_columns_is_complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", min_width=30)
    table.add_row("default/web-0", WHERE, WHY)
    print_table(table)
    printed = capsys.readouterr().out
    assert WHERE in printed.splitlines()[0]
    assert " ".join(printed.split()) == f"default/web-0 {WHERE} {WHY}"


@pytest.mark.parametrize("text", ["\x85x", "a\u2028b", "a\u2029", "\ufeffx", "plain", "yes", "two\nlines\x85"])
def test_yaml_output_reads_back_as_the_same_text(text: str) -> None:
    tree = {"text": text, text: [text]}
    assert yaml.safe_load(yaml_text(tree)) == tree
