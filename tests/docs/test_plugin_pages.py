"""Every shipped plugin has a page, with correct points, weights, arguments, messages and registered events."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import pytest

from bayplan.config.load import load_default
from bayplan.framework.api.events import EventResource
from bayplan.framework.api.extension_points import ATTEMPT_ORDER
from bayplan.framework.runtime.registry import RegisteredPlugin, Registry
from bayplan.plugins import default_plugins
from docs.fences import ROOT
from support.builders.framework import make_plugin

FOLDER = ROOT / "docs" / "plugins"
NAMES = sorted(page.stem for page in FOLDER.glob("*.md") if page.stem != "index")
SECTIONS = ["What it decides", "Arguments", "Messages", "What wakes a pod", "Cost", "Example"]

WORDS = {
    EventResource.PERSISTENT_VOLUME: "volume",
    EventResource.PERSISTENT_VOLUME_CLAIM: "claim",
    EventResource.RESOURCE_CLAIM: "claim",
}
"""Names of kinds on the pages that differ from the kind's own."""


@cache
def registry() -> Registry:
    return default_plugins()


@cache
def weights() -> dict[str, int]:
    """The default profile's plugins; 0 for those without a weight."""
    (profile,) = load_default(registry().args_kinds).profiles
    return {ref.name: ref.weight for ref in profile.plugins.at("multiPoint").enabled}


def entry_of(name: str) -> RegisteredPlugin:
    entry = registry().get(name)
    assert entry is not None, f"docs/plugins/{name}.md is about a plugin that is not shipped"
    return entry


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def fact(name: str, label: str) -> str | None:
    """The value of one of the bold lines at the top of a page."""
    found = re.search(rf"^- \*\*{label}:\*\* (.+)$", text_of(name), re.MULTILINE)
    return found[1] if found else None


def section(name: str, heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text_of(name), re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def test_every_shipped_plugin_has_a_page() -> None:
    assert sorted(entry.name for entry in registry()) == NAMES


def test_the_overview_lists_the_default_plugins_in_running_order() -> None:
    listed = re.findall(r"^\| \[(\w+)\]", (FOLDER / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == list(weights())


@pytest.mark.parametrize("name", NAMES)
def test_every_page_has_the_same_structure(name: str) -> None:
    headings = re.findall(r"^## (.+)$", text_of(name), re.MULTILINE)
    assert text_of(name).startswith(f"# {name}\n")
    assert headings == [heading for heading in SECTIONS if heading != "Arguments" or entry_of(name).args]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_names_the_points_of_its_plugin(name: str) -> None:
    points = [point.interface.removesuffix("Plugin") for point in ATTEMPT_ORDER if entry_of(name).extends(point)]
    assert fact(name, "Points") == ", ".join(points)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_states_whether_the_default_profile_has_its_plugin(name: str) -> None:
    assert (fact(name, "On by default") == "yes") is (name in weights())


@pytest.mark.parametrize("name", NAMES)
def test_a_page_states_the_weight_of_a_score_plugin(name: str) -> None:
    scores = any(entry_of(name).extends(point) for point in ATTEMPT_ORDER if point.key in ("score", "placementScore"))
    assert fact(name, "Weight") == (str(weights().get(name) or 1) if scores else None)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_lists_every_argument(name: str) -> None:
    args = entry_of(name).args
    assert fact(name, "Arguments") == (f"`{args.kind}`" if args else "none")
    if args:
        documented = {
            path.split(".")[0] for path in re.findall(r"^\| `([\w.]+)`", section(name, "Arguments"), re.MULTILINE)
        }
        assert documented == set(args.struct.__struct_encode_fields__)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_quotes_the_texts_of_its_plugin(name: str) -> None:
    """A constant with a space in it is a message; names of labels and states have none."""
    module = sys.modules[entry_of(name).plugin.__module__]
    texts = [value for key, value in vars(module).items() if key.isupper() and isinstance(value, str) and " " in value]
    assert [text for text in texts if text.strip() not in section(name, "Messages")] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_lists_every_kind_of_object_that_requeues_a_pod(name: str) -> None:
    documented = section(name, "What wakes a pod").lower()
    registrations = getattr(make_plugin(entry_of(name).plugin), "events_to_register", ())
    kinds = {
        WORDS.get(registration.resource, str(registration.resource).rpartition("/")[2]).lower()
        for registration in registrations
    }
    assert {kind for kind in kinds if kind not in documented} == set()


@pytest.mark.parametrize("page", [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.md"))])
def test_pages_are_plain_prose(page: Path) -> None:
    """No line is too long for a readable diff, except in tables."""
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 130 and not line.startswith("|")] == []
