"""Third-party batch plugins and actions: from folders and installed packages, beside those of the pod engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bayplan.app import batch_configured, known_actions, known_batch_plugins, known_plugins
from bayplan.batch.actions import default_actions
from bayplan.batch.config.scheduler_conf import BUILT_IN_ACTIONS, load_default_conf
from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.registry import ActionSet, BatchPluginSet
from bayplan.errors import ConfigError, PluginError
from bayplan.framework.runtime.plugin_discovery import PluginKind, installed_plugins, plugin_kind

POD = "class Pod:\n    name = 'Pod'\n    def filter(self, cycle, node):\n        return None\n"
BATCH = "class Mine:\n    name = 'mine'\n    def on_session_open(self, session):\n        pass\n"
ACTION = """
class Tidy:
    name = 'tidy'
    def initialize(self): pass
    def execute(self, session): pass
    def uninitialize(self): pass
"""

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        return path

    return write_file


def new(known: Any, shipped: Any) -> list[str]:
    return [name for name in known if name not in shipped]


VOLCANO_S_PLUGINS = """
binpack capacity cdp conformance deviceshare drf extender gang
network-topology-aware nodegroup nodeorder numa-aware overcommit pdb predicates priority
proportion rescheduling resource-strategy-fit resourcequota sla task-topology tdm usage
"""


def test_built_in_plugins_and_actions_are_volcanos() -> None:
    assert sorted(default_batch_plugins()) == VOLCANO_S_PLUGINS.split()
    assert {each.name for each in load_default_conf().plugins} <= set(default_batch_plugins())
    assert tuple(default_actions()) == BUILT_IN_ACTIONS


def test_one_folder_can_contain_all_kinds(tmp_path: Path, write: Write) -> None:
    write("a.py", POD + BATCH)
    write("b.py", ACTION)
    assert new(known_batch_plugins([tmp_path]), default_batch_plugins()) == ["mine"]
    assert new(known_actions([tmp_path]), default_actions()) == ["tidy"]
    assert "Pod" in known_plugins([tmp_path])
    assert "mine" not in known_plugins([tmp_path])


def test_a_file_is_loaded_once_until_it_changes(tmp_path: Path, write: Write) -> None:
    path = write(
        "once.py", "from pathlib import Path\nPath(__file__).with_suffix('.log').open('a').write('.')\n" + BATCH
    )
    first, _ = known_batch_plugins([tmp_path]), known_actions([tmp_path])
    assert known_batch_plugins([tmp_path]).get("mine") is first.get("mine")
    assert path.with_suffix(".log").read_text() == "."
    write("once.py", path.read_text() + "\n\n# changed\n")
    known_batch_plugins([tmp_path])
    assert path.with_suffix(".log").read_text() == ".."


def test_a_configuration_can_use_third_party_actions(tmp_path: Path, write: Write) -> None:
    write("tidy.py", ACTION)
    actions = known_actions([tmp_path])
    assert batch_configured("actions: allocate, tidy", actions).actions == ("allocate", "tidy")
    with pytest.raises(ConfigError, match="failed to find Action  tidy"):
        batch_configured("actions: allocate, tidy")
    assert batch_configured(None, actions).actions == ("enqueue", "allocate", "backfill")


def test_every_set_of_actions_has_its_own_objects(tmp_path: Path, write: Write) -> None:
    write("tidy.py", ACTION)
    assert known_actions([tmp_path]).get("tidy") is not known_actions([tmp_path]).get("tidy")


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        pytest.param({"name": "x", "filter": print}, PluginKind.POD_PLUGIN, id="pod"),
        pytest.param({"name": "x", "on_session_open": print}, PluginKind.BATCH_PLUGIN, id="batch"),
        pytest.param({"name": "x", "on_session_open": print, "score": print}, PluginKind.BATCH_PLUGIN, id="own-score"),
        pytest.param({"name": "x", "execute": print}, PluginKind.ACTION, id="action"),
        pytest.param({"name": "x"}, None, id="nothing"),
        pytest.param({"name": 1, "execute": print}, None, id="no-name"),
    ],
)
def test_plugin_kinds(members: dict[str, Any], kind: PluginKind | None) -> None:
    assert plugin_kind(type("Made", (), members)) is kind


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("x = 1\n", r"mine\.py defines no plugin; .*on_session_open, for an action execute", id="nothing"),
        pytest.param(
            BATCH.replace("mine", "gang"), 'two batch plugins are called "gang": .*GangPlugin and Mine in ', id="twin"
        ),
        pytest.param(
            BATCH + "    def on_session_closed(self, session): pass\n",
            r'batch plugin "mine" \(Mine in .*mine\.py\) has a method on_session_closed; is on_session_close meant\?',
            id="misspelt",
        ),
    ],
)
def test_an_invalid_batch_plugin_is_rejected(tmp_path: Path, write: Write, text: str, words: str) -> None:
    write("mine.py", text)
    with pytest.raises(PluginError, match=words):
        known_batch_plugins([tmp_path])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(ACTION.replace("tidy", "allocate"), 'two actions are called "allocate": .*Tidy in ', id="twin"),
        pytest.param(
            ACTION.replace("uninitialize", "finish"),
            r'action "tidy" \(Tidy in .*\) has no uninitialize\(\); it needs',
            id="part",
        ),
        pytest.param(
            ACTION + "    def __init__(self, x): pass\n",
            'action "tidy" .* cannot be created: TypeError: .*without arg',
            id="args",
        ),
    ],
)
def test_an_invalid_action_is_rejected(tmp_path: Path, write: Write, text: str, words: str) -> None:
    write("mine.py", text)
    with pytest.raises(PluginError, match=words):
        known_actions([tmp_path])


def test_a_plugin_without_a_name_is_rejected() -> None:
    with pytest.raises(PluginError, match=r"has no `name`; batch plugin classes set one, as in name = 'costaware'"):
        BatchPluginSet([lambda _: None])  # type: ignore[list-item]
    with pytest.raises(PluginError, match="Nameless has no `name`; action classes set one"):
        ActionSet().with_classes(type("Nameless", (), {}))


# Installed packages


def entry_point(value: str, kind: PluginKind) -> EntryPoint:
    return EntryPoint(name="mine", value=value, group=kind.value)


def test_groups_of_entry_points() -> None:
    assert {kind: kind.value for kind in PluginKind} == {
        PluginKind.POD_PLUGIN: "bayplan.plugins",
        PluginKind.BATCH_PLUGIN: "bayplan.batch_plugins",
        PluginKind.ACTION: "bayplan.actions",
        PluginKind.BINDER_PLUGIN: "bayplan.binder_plugins",
    }


def test_plugins_and_actions_of_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    announced = {
        PluginKind.BATCH_PLUGIN.value: [entry_point("batch_outsider:Mine", PluginKind.BATCH_PLUGIN)],
        PluginKind.ACTION.value: [entry_point("batch_outsider:Tidy", PluginKind.ACTION)],
    }
    module = ModuleType("batch_outsider")
    exec(BATCH + ACTION, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(
        "bayplan.framework.runtime.plugin_discovery.entry_points", lambda *, group: announced.get(group, [])
    )
    assert new(known_batch_plugins(), default_batch_plugins()) == ["mine"]
    assert new(known_actions(), default_actions()) == ["tidy"]


def test_a_broken_package_is_reported() -> None:
    point = entry_point("bayplan.errors:Missing", PluginKind.ACTION)
    with pytest.raises(
        PluginError, match=r'entry point "mine" \(bayplan.errors:Missing\) cannot be loaded: AttributeError'
    ):
        installed_plugins(PluginKind.ACTION, [point])
