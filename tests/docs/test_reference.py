"""Tables on pages that repeat facts of the code are complete and have no other rows."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

import bayplan.framework
from bayplan.app import build_engine, configured, known_plugins
from bayplan.batch.actions import default_actions
from bayplan.batch.config.scheduler_conf import FLAGS
from bayplan.batch.session import combine_rules
from bayplan.batch.session.extension_points import POINTS
from bayplan.batch.session.outcome import SessionResult
from bayplan.cache import Cache
from bayplan.cli import cli
from bayplan.config.model import KIND, VersionedConfiguration
from bayplan.framework.api.extension_points import ATTEMPT_ORDER
from docs.fences import ROOT, Block, blocks, pages

DOCS = ROOT / "docs"
OWN_PLUGINS = ROOT / "examples" / "plugins"


def table(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without its header."""
    text = (DOCS / page).read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert lines is not None
    return [line.strip("|").split(" | ") for line in lines[0].splitlines()[2:]]


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def configurations() -> list[Block]:
    """The configurations of all pages, except those that a page saves and then runs itself."""
    shown = [block for page in pages() for block in blocks(page) if block.language == "yaml"]
    shown = [block for block in shown if "save" not in block.directives]
    return [block for block in shown if (yaml.safe_load(block.text) or {}).get("kind") == KIND]


def test_the_table_of_points_lists_the_points_of_the_framework() -> None:
    listed = [(codes(row[0])[0], codes(row[1])[0].split("(")[0]) for row in table("plugin-authors.md", "The points")]
    assert listed == [(point.key, method) for point in ATTEMPT_ORDER for method in point.methods]


RULES = {
    combine_rules.first_nonzero: "first that is not 0",
    combine_rules.first_answer: "first answer",
    combine_rules.first_registered: "first plugin alone",
    combine_rules.unanimous: "all must agree",
    combine_rules.any_true: "one is enough",
    combine_rules.unanimous_in_first_tier: "first tier decides",
    combine_rules.vote: "vote",
    combine_rules.victims_of_tier: "victims of a tier",
    combine_rules.union_of_tier: "all of a tier",
    combine_rules.call_all: "all are called",
    combine_rules.answers_by_plugin: "sum",
    None: "row by row",
}


def test_the_table_of_batch_points_lists_the_points_of_the_session() -> None:
    listed = [
        (codes(row[0])[0], codes(row[1]), row[2].strip()) for row in table("batch-plugin-authors.md", "The points")
    ]
    assert listed == [(point.name, list(point.switches), RULES[point.rule]) for point in POINTS]


def test_every_rule_of_a_batch_point_is_explained() -> None:
    page = (DOCS / "batch-plugin-authors.md").read_text(encoding="utf-8").split("### How answers are combined")[1]
    listed = {words.lower() for words in re.findall(r"\*\*([^*]+)\*\*", page.split("\n## ")[0])}
    assert set(RULES.values()) - {"all are called"} <= listed


def test_every_action_is_listed() -> None:
    assert {name for row in table("batch.md", "Phases of a session") for name in codes(row[0])} == set(
        default_actions()
    )


def test_every_field_of_a_session_result_is_listed() -> None:
    listed = [name for row in table("batch.md", "Run a session") for name in codes(row[0])]
    assert sorted(listed) == sorted(each.name for each in dataclasses.fields(SessionResult))


def test_every_field_of_a_configuration_has_a_row() -> None:
    listed = [name for row in table("configuration.md", "Fields") for name in codes(row[0])]
    ignored = {"apiVersion", "kind"}
    assert sorted(listed) == sorted(set(VersionedConfiguration.__struct_encode_fields__) - ignored)


def test_every_field_and_flag_of_a_batch_configuration_has_a_row() -> None:
    page = "batch-configuration.md"
    assert [codes(row[0])[0] for row in table(page, "Fields")] == ["actions", "tiers", "configurations", "metrics"]
    assert [codes(row[0])[0] for row in table(page, "Flags of a plugin")] == list(FLAGS)


def test_every_status_for_plugins_is_listed() -> None:
    listed = {codes(row[0])[0].split("(")[0] for row in table("plugin-authors.md", "What to answer")}
    offered = {"unschedulable", "unresolvable", "pending", "error", "SKIP"}
    assert listed == offered
    assert offered <= set(bayplan.framework.__all__)


def test_every_verb_of_the_command_line_is_shown() -> None:
    shown = "\n".join(block.text for page in pages() for block in blocks(page) if block.language == "console")
    assert [verb for verb in cli.list_commands(None) if f"bayplan {verb}" not in shown] == []  # type: ignore[arg-type]


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in configurations()])
def test_a_configuration_on_a_page_is_accepted(block: Block) -> None:
    registry = known_plugins([OWN_PLUGINS], trust_writable=True)
    engine = build_engine(configured(block.text, registry), registry, Cache(), seed=0)
    assert list(engine.scheduler_names)


def test_every_file_of_recorded_answers_is_named() -> None:
    listed = {
        name
        for row in re.findall(r"^\| (`.+?) \|", (DOCS / "conformance.md").read_text(encoding="utf-8"), re.MULTILINE)
        for name in codes(row)
    }
    assert {path.name for path in (ROOT / "tests" / "conformance" / "data").iterdir()} <= listed


def test_pages_do_not_promise_folders_that_do_not_exist() -> None:
    """Paths in backticks that look like paths of the tree exist."""
    prefixes = ("src/", "tests/", "docs/", "examples/", "benchmarks/")
    named = {
        (page, code)
        for page in pages()
        for code in codes(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
        if code.startswith(prefixes)
    }
    assert {code for page, code in named if not Path(ROOT / code).exists()} == set()
