"""`docs/batch-plugins.md` is the reference of the batch plugins: each has a section with its points and arguments."""

from __future__ import annotations

import inspect
import re
import sys
from datetime import timedelta
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin

import pytest

from bayplan.app import build_batch_engine
from bayplan.batch import BatchConfiguration, PluginOption
from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.plugins.extender.plugin import ExtenderPlugin
from bayplan.cache import Cache
from docs.fences import ROOT

PLUGINS = default_batch_plugins()
NAMES = list(PLUGINS)
WORDS = {int: "whole number", float: "number", bool: "boolean", str: "text", timedelta: "duration", list: "list"}


@cache
def sections() -> dict[str, str]:
    page = (ROOT / "docs" / "batch-plugins.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))


@cache
def registered() -> dict[str, list[str]]:
    """Registered extension points of each plugin without arguments."""
    tier = tuple(PluginOption(name).with_default_flags() for name in NAMES)
    with build_batch_engine(BatchConfiguration(tiers=(tier,)), Cache()).session() as session:
        return {name: session.points_of(name) for name in NAMES}


def plugin(name: str) -> Any:
    return PLUGINS.get(name)


def fact(name: str, label: str) -> str:
    found = re.search(rf"^- \*\*{label}:\*\* (.+?)(?=^- |^$)", sections()[name], re.MULTILINE | re.DOTALL)
    assert found is not None, f"{name} has no entry {label}"
    return found[1]


def type_word(argument: Argument) -> str:
    kind = get_args(argument.kind)[0] if isinstance(argument.kind, UnionType) else argument.kind
    return "any" if argument.no_effect_reason else WORDS.get(get_origin(kind) or kind, "map")


def test_every_shipped_plugin_has_a_section() -> None:
    assert list(sections()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_section_names_the_points_where_its_plugin_registers(name: str) -> None:
    source = inspect.getsource(sys.modules[plugin(name).__module__])
    called = re.findall(r"\.add_(\w+?)(?:_nodes)?_(?:fns?|factory|handler)\(", source)
    points = {"events" if each == "event" else each for each in called}
    assert set(re.findall(r"`(\w+)`", fact(name, "Points"))) == points
    assert {*registered()[name], *getattr(plugin(name), "also_at", ())} == points  # as shown by `plugin list`
    assert fact(name, "Note").strip()


@pytest.mark.parametrize("name", NAMES)
def test_a_section_lists_every_argument_with_its_type(name: str) -> None:
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ", sections()[name].partition("### ")[0], re.MULTILINE)
    assert rows == [(each.name, type_word(each)) for each in plugin(name).takes]


@pytest.mark.parametrize("name", NAMES)
def test_a_section_lists_the_defaults(name: str) -> None:
    rows = dict(re.findall(r"^\| `([^`]+)` \| [^|]+ \| ([^|]+) \| ", sections()[name], re.MULTILINE))
    defaults = {each.name: each.default for each in plugin(name).takes if each.default not in (None, "")}
    listed = {key: f"`{str(value).lower() if isinstance(value, bool) else value}`" for key, value in defaults.items()}
    assert {key: rows[key] for key in listed} == listed


def test_the_extender_lists_the_keys_of_its_bodies() -> None:
    bodies = inspect.getsource(sys.modules[ExtenderPlugin.__module__.removesuffix("plugin") + "bodies"])
    listed = set(re.findall(r"`(\w+)`", sections()["extender"]))
    assert set(re.findall(r'^ +"([A-Z]\w+)":', bodies, re.MULTILINE)) - listed == set()
