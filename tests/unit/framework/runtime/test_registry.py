"""Plugin registry: accepted and refused classes, and discovery of external plugins."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bayplan.errors import PluginError
from bayplan.framework.api.extension_points import FILTER, SCORE
from bayplan.framework.runtime.plugin_discovery import with_installed_plugins, with_plugins_from
from bayplan.framework.runtime.registry import Registry
from bayplan.plugins.inter_pod_affinity.args import ARGS
from support.builders.framework import FakeHandle


class RackAware:
    name = "RackAware"

    def score(self, cycle: Any, node: Any) -> int:
        return 0 if cycle is node else 1


class WithFactory(RackAware):
    name = "WithFactory"

    def __init__(self, args: Any) -> None:
        self.args = args

    @classmethod
    def factory(cls, args: Any, handle: Any) -> WithFactory:
        assert handle is not None
        return cls(args)


def class_with(**members: Any) -> type[Any]:
    return type("Made", (), members)


def method(self: Any, *_: Any) -> None:
    """A method of any extension point."""


# registration


def test_a_registry_is_a_value() -> None:
    empty = Registry()
    one = empty.with_plugins(RackAware)
    assert "RackAware" not in empty
    assert "RackAware" in one
    assert [entry.name for entry in one] == ["RackAware"]
    assert one.get("nobody") is None


def test_plugins_are_built_by_their_factory_or_by_calling_the_class() -> None:
    registry = Registry.of(RackAware, WithFactory)
    handle = FakeHandle()
    plain, built = (registry.entries[name].build("args", handle) for name in ("RackAware", "WithFactory"))
    assert type(plain) is RackAware
    assert built.args == "args"
    assert registry.entries["RackAware"].extends(SCORE)
    assert not registry.entries["RackAware"].extends(FILTER)


def test_only_plugins_with_arguments_have_a_kind() -> None:
    known = class_with(name="Known", filter=method, ARGS=ARGS)
    assert Registry.of(RackAware, known).args_kinds == {"Known": ARGS}


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        pytest.param(class_with(filter=method), "has no `name`", id="no-name"),
        pytest.param(class_with(name="", filter=method), "has no `name`", id="empty-name"),
        pytest.param(class_with(name=7, filter=method), "has no `name`", id="name-is-no-text"),
        pytest.param(RackAware(), "has no `name`", id="an-object-instead-of-its-class"),
        pytest.param(
            class_with(name="Nothing", weigh=method),
            r'plugin "Nothing" .* extends no point; it needs one of: pre_enqueue',
            id="extends-nothing",
        ),
        pytest.param(
            class_with(name="Half", reserve=method),
            r'plugin "Half" .* has reserve but not unreserve',
            id="no-unreserve",
        ),
        pytest.param(
            class_with(name="Half", pre_filter=method, add_pod=method),
            r'plugin "Half" .* has add_pod but not remove_pod',
            id="no-remove-pod",
        ),
        pytest.param(
            class_with(name="Half", pre_filter=method, remove_pod=method),
            r'plugin "Half" .* has remove_pod but not add_pod',
            id="no-add-pod",
        ),
    ],
)
def test_misuse_is_found_at_registration(plugin: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        Registry.of(plugin)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(PluginError, match=r'two plugins have the name "RackAware": .*RackAware and .*Made; rename one'):
        Registry.of(RackAware, class_with(name="RackAware", filter=method))


# installed packages


class FakeEntryPoint(EntryPoint):
    def load(self) -> Any:
        raise ModuleNotFoundError("No module named 'gone'")


def entry_point(value: str) -> EntryPoint:
    return EntryPoint(name="mine", value=value, group="bayplan.plugins")


def test_installed_plugins_are_registered_in_the_same_way() -> None:
    found = [entry_point("bayplan.plugins.node_name:NodeName")]
    assert "NodeName" in with_installed_plugins(Registry(), found)


def test_nothing_installed_changes_nothing() -> None:
    assert with_installed_plugins(Registry.of(RackAware), []) == Registry.of(RackAware)


@pytest.mark.parametrize(
    ("point", "message"),
    [
        pytest.param(
            FakeEntryPoint("mine", "gone:Plugin", "bayplan.plugins"),
            r'entry point "mine" \(gone:Plugin\) cannot be loaded: ModuleNotFoundError: No module named .gone.; '
            "repair or uninstall",
            id="import-fails",
        ),
        pytest.param(entry_point("bayplan.errors:Nobody"), "cannot be loaded: AttributeError", id="no-such-class"),
        pytest.param(entry_point("bayplan.errors:BayplanError"), "has no `name`", id="not-a-plugin"),
    ],
)
def test_a_broken_package_is_named(point: EntryPoint, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        with_installed_plugins(Registry(), [point])


# folders

GOOD = "class Mine:\n    name = 'Mine'\n\n    def filter(self, cycle, node):\n        return None\n"

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        return path

    return written


def test_every_plugin_of_a_folder_is_registered(tmp_path: Path, write: Write) -> None:
    write("b.py", GOOD)
    write("a.py", GOOD.replace("Mine", "Other") + "\nclass NoPlugin:\n    pass\n")
    write("_shared.py", "raise RuntimeError('never run')")
    write("notes.txt", "not Python")
    assert list(with_plugins_from(Registry(), tmp_path).entries) == ["Other", "Mine"]


def test_an_imported_class_is_not_a_plugin_of_the_file(tmp_path: Path, write: Write) -> None:
    write("a.py", "from bayplan.plugins.node_name import NodeName\n" + GOOD)
    assert list(with_plugins_from(Registry(), tmp_path).entries) == ["Mine"]


def test_dataclasses_in_plugin_files_work(tmp_path: Path, write: Write) -> None:
    write("a.py", "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\n" + GOOD)
    assert "Mine" in with_plugins_from(Registry(), tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("class Mine:\n  name = = 1\n", r"mine\.py, line 2: .*; the file is not valid Python", id="syntax"),
        pytest.param(
            "1 / 0\n", r"mine\.py failed while it was loaded: ZeroDivisionError: division by zero", id="raises"
        ),
        pytest.param("import sys\nsys.exit(3)\n", r"mine\.py failed while it was loaded: SystemExit: 3", id="exits"),
        pytest.param("x = 1\nassert x == 2\n", r"was loaded: AssertionError \(line 2\)$", id="asserts"),
        pytest.param("import missing_module\n", r"mine\.py failed .*ModuleNotFoundError", id="import"),
        pytest.param("x = 1\n", r"mine\.py defines no plugin; .*start with an underscore", id="no-plugin"),
        pytest.param("", r"mine\.py defines no plugin", id="empty"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_named(tmp_path: Path, write: Write, text: str, message: str) -> None:
    write("mine.py", text)
    with pytest.raises(PluginError, match=message):
        with_plugins_from(Registry(), tmp_path)


@pytest.mark.parametrize("mode", [0o664, 0o646], ids=oct)
def test_a_file_that_other_users_can_write_is_refused(tmp_path: Path, write: Write, mode: int) -> None:
    write("mine.py", GOOD).chmod(mode)
    with pytest.raises(PluginError, match=rf"mine\.py is writable by group or other users \(mode {mode:o}\)"):
        with_plugins_from(Registry(), tmp_path)
    assert "Mine" in with_plugins_from(Registry(), tmp_path, trust_writable=True)


def test_a_read_only_mount_may_have_any_mode(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet gives the folder of a ConfigMap mode 777, and mounts it read-only."""
    write("mine.py", GOOD)
    tmp_path.chmod(0o777)
    with pytest.raises(PluginError, match=r"is writable by group or other users \(mode 777\)"):
        with_plugins_from(Registry(), tmp_path)
    read_only = SimpleNamespace(f_flag=os.ST_RDONLY)
    monkeypatch.setattr(os, "statvfs", lambda _: read_only)
    assert "Mine" in with_plugins_from(Registry(), tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="nowhere is not a folder; --plugins-dir takes a folder"):
        with_plugins_from(Registry(), tmp_path / "nowhere")
