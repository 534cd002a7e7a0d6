"""Writes the reference pages that are derived from the code: commands, metrics, settings and plugins.

    python tools/reference.py            write docs/reference
    python tools/reference.py --check    exit code 1 if a page is out of date

A test does the same check, so the pages are correct as long as the tests pass.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import click
import msgspec

from bayplan.app import configured
from bayplan.batch.config.scheduler_conf import load_default_conf
from bayplan.batch.plugins import default_batch_plugins
from bayplan.cli import cli
from bayplan.clock import ManualClock
from bayplan.config import bayplan_settings, reservation_settings
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.feature_gates import FeatureGates
from bayplan.config.reservation_settings import ReservationSettings
from bayplan.framework.api.extension_points import ATTEMPT_ORDER
from bayplan.framework.runtime.bind_request_mutation import BindRequestMutation
from bayplan.plugins import default_plugins
from bayplan.telemetry.access_metrics import AccessMetrics
from bayplan.telemetry.batch_metrics import BatchMetrics
from bayplan.telemetry.binder_metrics import BinderMetrics, register_stale_requests
from bayplan.telemetry.metrics import AnyFamily, MetricsRegistry
from bayplan.telemetry.plugin_timings import PluginTimings
from bayplan.telemetry.process_metrics import LeaderMetrics, RequestMetrics
from bayplan.telemetry.scheduler_metrics import SchedulerMetrics

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
WIDTH = 100
NOTE = "<!-- written by tools/reference.py; change the code, and then call it -->"


def pages() -> dict[str, str]:
    """Every page by its name."""
    return {
        "commands.md": _page("Commands", "Every command as its own `--help` tells it.", _commands()),
        "metrics.md": _page("Metrics", "Names, labels and help are upstream's where upstream has them.", _metrics()),
        "settings.md": _page(
            "Settings", "The keys of the file of `--settings`, a `BayplanConfiguration`.", _settings()
        ),
        "plugins.md": _page("Plugins by name", "What a configuration may name, and where each is asked.", _plugins()),
    }


def _page(title: str, about: str, lines: Iterator[str]) -> str:
    return "\n".join([f"# {title}", "", NOTE, "", about, "", *lines]).rstrip("\n") + "\n"


# commands


def _commands() -> Iterator[str]:
    yield from _command(cli, "bayplan", None)


def _command(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    widths = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    context = command.make_context(name.rpartition(" ")[2], [], parent, resilient_parsing=True, **widths)
    with context:
        text = command.get_help(context)
        yield from (f"## {name}", "", "```text", *(line.rstrip() for line in text.splitlines()), "```", "")
        if isinstance(command, click.Group):
            for each in command.list_commands(context):
                below = command.get_command(context, each)
                assert below is not None
                yield from _command(below, f"{name} {each}", context)


# metrics


def _metrics() -> Iterator[str]:
    scheduler, batch, requests, binder = MetricsRegistry(), MetricsRegistry(), MetricsRegistry(), MetricsRegistry()
    gates = [name for name, _, _ in FeatureGates().all()]
    SchedulerMetrics(scheduler, PluginTimings(), gates=gates)
    RequestMetrics(scheduler)
    LeaderMetrics(scheduler)
    AccessMetrics(scheduler, lambda: 0.0)
    BatchMetrics(batch, lambda: datetime.fromtimestamp(0, UTC))
    BindRequestMutation(ManualClock()).add_to(requests)
    register_stale_requests(requests, int)
    BinderMetrics(binder)
    LeaderMetrics(binder)
    sections = {
        "The pod engine and its process": scheduler,
        "The batch engine": batch,
        "Bind requests, of either engine": requests,
        "The binder": binder,
    }
    for title, registry in sections.items():
        yield from (f"## {title}", "", "| metric | type | labels | what it says |", "|---|---|---|---|")
        for family in sorted(registry, key=lambda each: each.name):
            yield _metric(family)
        yield ""


def _metric(family: AnyFamily) -> str:
    labels = " ".join(f"`{label}`" for label in family.label_names)
    words = family.help_text.replace("|", "\\|").replace("<", "&lt;")
    return f"| `{family.name}` | {family.kind} | {labels} | {words} |"


# settings


def _settings() -> Iterator[str]:
    yield from _keys(bayplan_settings, BayplanSettings())
    yield from ("", "## resourceReservation", "", *_keys(reservation_settings, ReservationSettings()))


def _keys(module: object, defaults: msgspec.Struct) -> Iterator[str]:
    told = _told_of_fields(module, type(defaults).__name__)
    yield from ("| key | default | what it is |", "|---|---|---|")
    shown = msgspec.to_builtins(defaults)
    for key, name in zip(defaults.__struct_encode_fields__, defaults.__struct_fields__, strict=True):
        default = {} if isinstance(getattr(defaults, name), msgspec.Struct) else shown[key]
        yield f"| `{key}` | `{json.dumps(default)}` | {told[name]} |"


def _told_of_fields(module: object, name: str) -> dict[str, str]:
    """The texts under the fields of a class."""
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    body = next(each.body for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)
    pairs = pairwise(body)
    return {
        field.target.id: text.value.value
        for field, text in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


# plugins


def _plugins() -> Iterator[str]:
    registry = default_plugins()
    (profile,) = configured(None, registry).profiles
    enabled = profile.plugins.enabled_names()
    yield from ("## Of the pod engine", "", "| plugin | by default | points |", "|---|---|---|")
    for entry in registry:
        points = " ".join(f"`{point.key}`" for point in ATTEMPT_ORDER if entry.extends(point))
        yield f"| [{entry.name}](../plugins/{entry.name}.md) | {'yes' if entry.name in enabled else 'no'} | {points} |"
    yield from (
        "",
        "## Of the batch engine",
        "",
        "[Plugins of the batch engine](../batch-plugins.md) describes each.",
        "",
    )
    by_default = {option.name for option in load_default_conf().plugins}
    yield from ("| plugin | by default |", "|---|---|")
    for name in sorted(default_batch_plugins()):
        yield f"| `{name}` | {'yes' if name in by_default else 'no'} |"


def main(arguments: list[str]) -> int:
    FOLDER.mkdir(exist_ok=True)
    stale = []
    for name, text in pages().items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{'stale' if '--check' in arguments else 'wrote'} docs/reference/{name}")  # noqa: T201
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
