"""The page about Volcano's kinds lists the existing examples and controllers."""

from __future__ import annotations

import re

from bayplan.controllers.volcano import VOLCANO_CONTROLLER_NAMES, volcano_controller_name
from docs.fences import ROOT
from support.e2e import volcano_examples

PAGE = (ROOT / "docs" / "batch-controllers.md").read_text(encoding="utf-8")


def test_examples_that_need_more_are_listed_with_what_they_need() -> None:
    assert dict(re.findall(r"^\| `(\S+\.yaml)` \| (.+) \|$", PAGE, re.MULTILINE)) == volcano_examples.MISSING


def test_every_controller_is_listed_with_volcanos_name() -> None:
    rows = re.findall(r"^\| `(volcano-\S+)` \| `(\S+)` \|", PAGE, re.MULTILINE)
    assert sorted(ours for ours, _ in rows) == list(VOLCANO_CONTROLLER_NAMES)
    assert [volcano_controller_name(volcanos) for _, volcanos in rows] == [ours for ours, _ in rows]
