"""What plugins and actions declare is what they read, and a file is judged by it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from bayplan.app import build_batch_engine
from bayplan.batch import engine
from bayplan.batch.actions import default_actions
from bayplan.batch.arguments import Arguments
from bayplan.batch.conf import ActionConfiguration, BatchConfiguration, PluginOption
from bayplan.batch.declared import Argument, takes_of
from bayplan.batch.plugins import default_batch_plugins
from bayplan.cache import Cache

PLUGINS, ACTIONS = default_batch_plugins(), default_actions()
GIVEN = {
    "binpack": {"binpack.resources": "x"},
    "network-topology-aware": {"hypernode.binpack.resources": "x"},
    "tdm": {"tdm.revocable-zone.x": "10:00-21:00"},
}
"""What makes a plugin read names that depend on others."""


class Spy(Arguments):
    """Notes which key was asked for, as what, with which default."""

    asked: dict[str, tuple[Any, Any]]

    def __init__(self, values: Any = None, *, owner: str = "") -> None:
        super().__init__(values, owner=owner)
        self.asked = {}

    def __contains__(self, key: str) -> bool:
        self.asked.setdefault(key, (object, None))
        return super().__contains__(key)

    def get_int(self, key: str, default: int = 0) -> int:
        self.asked[key] = (int, default)
        return super().get_int(key, default)

    def get_float(self, key: str, default: float = 0.0) -> float:
        self.asked[key] = (float, default)
        return super().get_float(key, default)

    def get_bool(self, key: str, default: bool = False) -> bool:
        self.asked[key] = (bool, default)
        return super().get_bool(key, default)

    def get_str(self, key: str, default: str = "") -> str:
        self.asked[key] = (str, default)
        return super().get_str(key, default)

    def get(self, key: str, kind: Any) -> Any:
        self.asked[key] = (object, None)
        return super().get(key, kind)


def asked(monkeypatch: pytest.MonkeyPatch, configuration: BatchConfiguration) -> dict[str, tuple[Any, Any]]:
    spies: list[Spy] = []

    def spy(values: Any = None, *, owner: str = "") -> Spy:
        spies.append(Spy(values, owner=owner))
        return spies[-1]

    monkeypatch.setattr(engine, "Arguments", spy)
    monkeypatch.setattr("bayplan.batch.conf.Arguments", spy)
    build_batch_engine(configuration, Cache()).run_session()
    return {key: found for each in spies for key, found in each.asked.items()}


def as_declared(argument: Argument) -> tuple[Any, Any]:
    """What a spy sees of it: durations are texts, and of other kinds the type is not told."""
    kind = str if argument.kind is timedelta else argument.kind
    return (kind, argument.default) if kind in (int, float, bool) else (kind if kind is str else object, None)


def compare(takes: tuple[Argument, ...], seen: dict[str, tuple[Any, Any]]) -> None:
    keys = {f"{each.prefix}x" if each.prefix else each.name: each for each in takes}
    told = {key: (kind, default if kind in (int, float, bool) else None) for key, (kind, default) in seen.items()}
    idle = {key for key, each in keys.items() if each.idle}
    assert {key: value for key, value in told.items() if key not in idle} == {
        key: as_declared(each) for key, each in keys.items() if key not in idle
    }


@pytest.mark.parametrize("name", list(PLUGINS))
def test_a_plugin_reads_what_it_declares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    option = PluginOption(name, arguments=GIVEN.get(name, {})).defaulted()
    compare(takes_of(PLUGINS.get(name)) or (), asked(monkeypatch, BatchConfiguration(("enqueue",), ((option,),))))


@pytest.mark.parametrize("name", list(ACTIONS))
def test_an_action_reads_what_it_declares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = BatchConfiguration((name,), configurations=(ActionConfiguration(name),))
    compare(takes_of(ACTIONS.get(name)) or (), asked(monkeypatch, configuration))
