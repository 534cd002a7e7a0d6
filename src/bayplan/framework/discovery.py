"""Plugins from outside: installed packages (entry points) and folders of Python files.

A file is run once, however many kinds are asked for, and every class of the kind which it defines is taken. A plugin of
the pod engine has a `name` and a method of some extension point; a plugin of the batch engine has a `name` and
`on_session_open`, an action a `name` and `execute`. Files of all kinds may lie in one folder. What cannot be loaded is
named with file, line and remedy; nothing is half registered. A file that others may write is refused, because it runs
with the scheduler's rights.
"""

from __future__ import annotations

import importlib.util
import stat
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from bayplan.errors import PluginError
from bayplan.framework.contract import MODULE_OF_FILE, misspelt
from bayplan.framework.points import ATTEMPT_ORDER
from bayplan.framework.registry import Registry


class Kind(Enum):
    """What a class from outside is for; the value is the group of its entry points."""

    POD_PLUGIN = "bayplan.plugins"
    BATCH_PLUGIN = "bayplan.batch_plugins"
    ACTION = "bayplan.actions"


_NO_PLUGINS = ("_", "test_", "conftest.py")
"""How files start that may lie beside plugins: the tests of a plugin are best kept next to it."""

_VERSION = "__version_of_file__"


def with_installed_plugins(registry: Registry, found: Iterable[EntryPoint] | None = None) -> Registry:
    """The registry with the plugins that installed packages announce."""
    return registry.with_plugins(*installed(Kind.POD_PLUGIN, found))


def with_plugins_from(registry: Registry, folder: Path, *, trust_writable: bool = False) -> Registry:
    """The registry with the plugins of every `.py` file of a folder, in the order of the file names."""
    return registry.with_plugins(*found_in(folder, Kind.POD_PLUGIN, trust_writable=trust_writable))


def installed(kind: Kind, found: Iterable[EntryPoint] | None = None) -> list[Any]:
    """What installed packages announce as being of this kind; whoever takes it in looks closer."""
    loaded = []
    for point in entry_points(group=kind.value) if found is None else found:
        try:
            loaded.append(point.load())
        except (Exception, SystemExit) as fault:
            raise PluginError(
                f'entry point "{point.name}" ({point.value}) cannot be loaded: {type(fault).__name__}: {fault}; '
                "mend or uninstall the package that declares it"
            ) from fault
    return loaded


def found_in(folder: Path, kind: Kind, *, trust_writable: bool = False) -> list[type[Any]]:
    """The classes of this kind in the `.py` files of a folder, in the order of the file names."""
    if not folder.is_dir():
        raise PluginError(f"{folder} is no folder; --plugins-dir takes a folder with .py files")
    if not trust_writable:
        _refuse_writable(folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # so that files can import their neighbours
    found: list[type[Any]] = []
    for path in sorted(folder.glob("*.py")):
        if not trust_writable:
            _refuse_writable(path)
        if path.name.startswith(_NO_PLUGINS):
            continue
        kinds = [(each, kind_of(each)) for each in _classes_of(_run(path))]
        if not any(known for _, known in kinds):
            raise _no_plugin(path, [each for each, _ in kinds])
        found += [each for each, known in kinds if known is kind]
    return found


def _no_plugin(path: Path, classes: Iterable[type[Any]]) -> PluginError:
    for each in classes:
        if isinstance(getattr(each, "name", None), str):
            for fault in misspelt(each):
                return PluginError(f"{path} defines no plugin: {each.__qualname__} {fault}")
    return PluginError(
        f"{path} defines no plugin; a plugin is a class with a `name` and a method such as filter or score, "
        "for the batch engine on_session_open, for an action execute "
        "(files that are not plugins start with an underscore or test_)"
    )


def kind_of(candidate: type[Any]) -> Kind | None:
    """What a class is, by what it has. Batch plugins call their own methods what they like, `score` too."""
    if not isinstance(getattr(candidate, "name", None), str):
        return None
    if callable(getattr(candidate, "on_session_open", None)):
        return Kind.BATCH_PLUGIN
    if any(point.extended_by(candidate) for point in ATTEMPT_ORDER):
        return Kind.POD_PLUGIN
    return Kind.ACTION if callable(getattr(candidate, "execute", None)) else None


def _refuse_writable(path: Path) -> None:
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PluginError(
            f"{path} can be written by others (mode {stat.S_IMODE(mode):o}), and it would run with the scheduler's "
            "rights; chmod go-w it, or say --trust-writable-plugins"
        )


def _run(path: Path) -> ModuleType:
    """The module of a file; one that was run before, and has not changed since, is not run again."""
    name = MODULE_OF_FILE + path.stem
    version = (str(path), path.stat().st_mtime_ns, path.stat().st_size)
    known = sys.modules.get(name)
    if known is not None and getattr(known, _VERSION, None) == version:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    setattr(module, _VERSION, version)
    sys.modules[name] = module  # dataclasses and pickling look their module up by name
    try:
        spec.loader.exec_module(module)
    except SyntaxError as fault:
        del sys.modules[name]
        raise PluginError(f"{path}, line {fault.lineno}: {fault.msg}; the file is not valid Python") from fault
    except (Exception, SystemExit) as fault:  # a file that ends with sys.exit() must not end the scheduler
        del sys.modules[name]
        raise PluginError(f"{path} failed while it was loaded: {type(fault).__name__}: {fault}") from fault
    return module


def _classes_of(module: ModuleType) -> Iterator[type[Any]]:
    """The classes that a file defines itself."""
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield value
