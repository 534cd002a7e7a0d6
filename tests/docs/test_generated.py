"""The reference pages are up to date."""

from __future__ import annotations

import re
import subprocess
import sys

import click

from bayplan.cli import cli
from bayplan.clock import ManualClock
from bayplan.framework.runtime.bind_request_mutation import BindRequestMutation
from bayplan.telemetry.binder_metrics import BinderMetrics, register_stale_requests
from bayplan.telemetry.metrics import MetricsRegistry
from docs.fences import ROOT


def test_the_reference_is_up_to_date() -> None:
    """In a separate process: click caches the program name of the first call, which is part of the help."""
    command = [sys.executable, str(ROOT / "tools" / "reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), "call `python tools/reference.py`"


def test_every_verb_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    assert [verb for verb in cli.list_commands(click.Context(cli)) if f"\n## bayplan {verb}\n" not in text] == []


def test_every_metric_of_bind_requests_is_in_the_reference() -> None:
    """Metrics that pages mention, and those that a binder and an engine with requests serve."""
    registry = MetricsRegistry()
    BinderMetrics(registry)
    BindRequestMutation(ManualClock()).add_to(registry)
    register_stale_requests(registry, int)
    shown = {family.name for family in registry}
    spoken_of = re.findall(r"`(kai_\w+)`", (ROOT / "docs" / "binder.md").read_text(encoding="utf-8"))
    assert shown.issuperset(spoken_of)
    assert len(spoken_of) > 1
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name in sorted(shown) if f"\n| `{name}` |" not in text] == []
