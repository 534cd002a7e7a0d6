"""Plugins from outside: installed packages (entry points) and folders of Python files.

A file is run once and every plugin class that it defines is taken: a class with a `name` and a method of some
extension point. What cannot be loaded is named with file, line and remedy; nothing is half registered. A file that
others may write is refused, because it runs with the scheduler's rights.
"""

from __future__ import annotations

import importlib.util
import stat
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from bayplan.errors import PluginError
from bayplan.framework.points import ATTEMPT_ORDER
from bayplan.framework.registry import MODULE_OF_FILE, Registry

ENTRY_POINT_GROUP = "bayplan.plugins"
_NO_PLUGINS = ("_", "test_", "conftest.py")
"""How files start that may lie beside plugins: the tests of a plugin are best kept next to it."""


def with_installed_plugins(registry: Registry, found: Iterable[EntryPoint] | None = None) -> Registry:
    """The registry with the plugins that installed packages announce."""
    for point in entry_points(group=ENTRY_POINT_GROUP) if found is None else found:
        try:
            plugin = point.load()
        except (Exception, SystemExit) as fault:
            raise PluginError(
                f'entry point "{point.name}" ({point.value}) cannot be loaded: {type(fault).__name__}: {fault}; '
                "mend or uninstall the package that declares it"
            ) from fault
        registry = registry.with_plugins(plugin)
    return registry


def with_plugins_from(registry: Registry, folder: Path, *, trust_writable: bool = False) -> Registry:
    """The registry with the plugins of every `.py` file of a folder, in the order of the file names."""
    if not folder.is_dir():
        raise PluginError(f"{folder} is no folder; --plugins-dir takes a folder with .py files")
    if not trust_writable:
        _refuse_writable(folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # so that files can import their neighbours
    for path in sorted(folder.glob("*.py")):
        if not trust_writable:
            _refuse_writable(path)
        if path.name.startswith(_NO_PLUGINS):
            continue
        plugins = list(_plugins_of(_run(path)))
        if not plugins:
            raise PluginError(
                f"{path} defines no plugin; a plugin is a class with a `name` and a method such as filter or score "
                "(files that are not plugins start with an underscore or test_)"
            )
        registry = registry.with_plugins(*plugins)
    return registry


def _refuse_writable(path: Path) -> None:
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PluginError(
            f"{path} can be written by others (mode {stat.S_IMODE(mode):o}), and it would run with the scheduler's "
            "rights; chmod go-w it, or say --trust-writable-plugins"
        )


def _run(path: Path) -> ModuleType:
    name = MODULE_OF_FILE + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
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


def _plugins_of(module: ModuleType) -> Iterator[type[Any]]:
    for value in vars(module).values():
        if not isinstance(value, type) or value.__module__ != module.__name__:
            continue
        named = isinstance(getattr(value, "name", None), str)
        if named and any(point.extended_by(value) for point in ATTEMPT_ORDER):
            yield value
