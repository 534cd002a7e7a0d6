"""Plugins from outside: installed packages (entry points) and folders of Python files.

A file is run once, however many kinds are asked for, and every class of the kind which it defines is taken. A plugin of
the pod engine has a `name` and a method of some extension point; a plugin of the batch engine has a `name` and
`on_session_open`, an action a `name` and `execute`, a plugin of the binder a `name` and `rollback`, or a `pre_bind` or
`post_bind` with as many parameters as the binder has for it, which are more than the pod engine has; where they do not
tell the two apart the class is refused. Files of all kinds may lie in one folder. What cannot be loaded is named with
file, line and remedy; nothing is half registered. A file that others may write is refused, because it runs with the
scheduler's rights.

A file that has changed since it was run is run again, and so is one whose neighbours have: what did not change keeps
its classes, so that whoever compares two registries sees which plugins are new.
"""

from __future__ import annotations

import importlib
import inspect
import os
import stat
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import Enum
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import cache_from_source, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

from bayplan.errors import PluginError, UsageError
from bayplan.framework.api.extension_points import (
    ATTEMPT_ORDER,
    POST_BIND,
    PRE_BIND,
    ExtensionPoint,
)
from bayplan.framework.api.plugin_error import exception_text
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.framework.runtime.plugin_contract import (
    FILE_MODULE_PREFIX,
    METHOD_SIGNATURES,
    MUTATE_BIND_REQUEST,
    accepts_argument_count,
    misspelled_attributes,
    plugin_location,
    signature_text,
)
from bayplan.framework.runtime.registry import Registry


class PluginKind(Enum):
    """What a class from outside is for; the value is the group of its entry points."""

    POD_PLUGIN = "bayplan.plugins"
    BATCH_PLUGIN = "bayplan.batch_plugins"
    ACTION = "bayplan.actions"
    BINDER_PLUGIN = "bayplan.binder_plugins"


_NO_PLUGINS = ("_", "test_", "conftest.py")
"""How files start that may lie beside plugins: the tests of a plugin are best kept next to it."""

_VERSION = "__version_of_file__"

_BINDER_PARAMETERS = ("ctx", "pod", "node", "bind_request", "state")
"""What the binder calls each stage of a plugin with."""
_SHARED_STAGES = (*PRE_BIND.methods, *POST_BIND.methods)
"""What both the pod engine and the binder call so."""


class PluginsFolderError(PluginError, UsageError):
    """What `--plugins-dir` names is none: the call is wrong, and no plugin."""


def is_ignored_file(file: str) -> bool:
    """Whether a file of this name may lie among plugins and is not one."""
    return file.startswith(_NO_PLUGINS)


def with_installed_plugins(registry: Registry, found: Iterable[EntryPoint] | None = None) -> Registry:
    """The registry with the plugins that installed packages announce."""
    return registry.with_plugins(*installed_plugins(PluginKind.POD_PLUGIN, found))


def with_plugins_from(registry: Registry, folder: Path, *, trust_writable: bool = False) -> Registry:
    """The registry with the plugins of every `.py` file of a folder, in the order of the file names."""
    return registry.with_plugins(*plugins_in_folder(folder, PluginKind.POD_PLUGIN, trust_writable=trust_writable))


def installed_plugins(kind: PluginKind, found: Iterable[EntryPoint] | None = None) -> list[Any]:
    """What installed packages announce as being of this kind; whoever takes it in looks closer."""
    loaded = []
    for point in entry_points(group=kind.value) if found is None else found:
        try:
            loaded.append(point.load())
        except PLUGIN_EXCEPTIONS as fault:
            raise PluginError(
                f'entry point "{point.name}" ({point.value}) cannot be loaded: '
                f"{type(fault).__name__}: {exception_text(fault)}; mend or uninstall the package that declares it"
            ) from fault
    return loaded


def plugins_in_folder(folder: Path, kind: PluginKind, *, trust_writable: bool = False) -> list[type[Any]]:
    """The classes of this kind in the `.py` files of a folder, in the order of the file names."""
    if not folder.is_dir():
        raise PluginsFolderError(f"{folder} is no folder; --plugins-dir takes a folder with .py files")
    if not trust_writable:
        _refuse_writable(folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # so that files can import their neighbours
    _unload_changed_helpers(folder)
    try:
        return list(_classes_in(folder, kind, trust_writable=trust_writable))
    finally:
        for neighbour in _helper_modules(folder):
            vars(neighbour).setdefault(_VERSION, _version(Path(str(neighbour.__file__))))


def file_versions(folders: Iterable[Path]) -> tuple[object, ...]:
    """What can be seen of the files of some folders without reading them: equal as long as nothing has changed.

    Who may write them counts: that is mended without touching what they hold."""
    seen: list[object] = []
    for folder in folders:
        seen.append(_mode(folder))
        seen += ((_version(path), _mode(path)) for path in sorted(folder.glob("*.py")))
    return tuple(seen)


def _classes_in(folder: Path, kind: PluginKind, *, trust_writable: bool) -> Iterator[type[Any]]:
    for path in sorted(folder.glob("*.py")):
        if not trust_writable:
            _refuse_writable(path)
        if is_ignored_file(path.name):
            continue
        kinds = [(each, plugin_kind(each)) for each in _classes_of(_load_module(path))]
        for fault in (_unsupported_class_error(each) for each, known in kinds if known is None):
            if fault:
                raise PluginError(fault)
        if not any(known for _, known in kinds):
            raise _no_plugin_error(path, [each for each, _ in kinds])
        yield from (each for each, known in kinds if known is kind)


def _no_plugin_error(path: Path, classes: Iterable[type[Any]]) -> PluginError:
    for each in classes:
        if isinstance(getattr(each, "name", None), str):
            for fault in misspelled_attributes(each):
                return PluginError(f"{path} defines no plugin: {each.__qualname__} {fault}")
    return PluginError(
        f"{path} defines no plugin; a plugin is a class with a `name` and a method such as filter or score, "
        "for the batch engine on_session_open, for an action execute, for the binder pre_bind(self, ctx, ...) "
        "(files that are not plugins start with an underscore or test_)"
    )


def plugin_kind(candidate: type[Any]) -> PluginKind | None:
    """What a class is, by what it has. Batch plugins call their own methods what they like, `score` too."""
    if not isinstance(getattr(candidate, "name", None), str):
        return None
    if callable(getattr(candidate, "on_session_open", None)):
        return PluginKind.BATCH_PLUGIN
    if _serves_the_binder(candidate):
        return PluginKind.BINDER_PLUGIN
    if any(_serves_the_pod_engine(candidate, point) for point in ATTEMPT_ORDER) or callable(
        getattr(candidate, MUTATE_BIND_REQUEST, None)
    ):
        return PluginKind.POD_PLUGIN
    return PluginKind.ACTION if callable(getattr(candidate, "execute", None)) else None


def _serves_the_binder(candidate: type[Any]) -> bool:
    if callable(getattr(candidate, "rollback", None)):
        return True
    return any(_stage_owner(candidate, stage) is PluginKind.BINDER_PLUGIN for stage in _SHARED_STAGES)


def _serves_the_pod_engine(candidate: type[Any], point: ExtensionPoint) -> bool:
    if point not in (PRE_BIND, POST_BIND):
        return point.extended_by(candidate)
    return any(_stage_owner(candidate, stage) is PluginKind.POD_PLUGIN for stage in point.methods)


def _stage_owner(candidate: type[Any], stage: str) -> PluginKind | None:
    """Who can call a stage that both the pod engine and the binder have; None: neither, or nobody can tell.

    How many parameters it has decides. Names do where any number will do, and where it takes as many as the pod engine
    has for it, among them a pod, which nobody would hand to it."""
    method = getattr(candidate, stage, None)
    if not callable(method):
        return None
    try:
        names = inspect.signature(method).parameters
    except (TypeError, ValueError):  # of what is written in C, say
        return PluginKind.POD_PLUGIN
    of_self = inspect.isfunction(inspect.getattr_static(candidate, stage))
    by_binder = accepts_argument_count(method, len(_BINDER_PARAMETERS) + of_self)
    by_engine = accepts_argument_count(method, len(METHOD_SIGNATURES[stage].parameters) + of_self)
    if "bind_request" in names or (by_binder and (not by_engine or "ctx" in names)):
        return PluginKind.BINDER_PLUGIN
    is_told = "cycle" in names if by_binder else "pod" not in names
    return PluginKind.POD_PLUGIN if by_engine and is_told else None


def _unsupported_class_error(candidate: type[Any]) -> str:
    """What is wrong with a class that has a stage and is nobody's plugin; "" where it has none, or wants to be none."""
    stage = next((each for each in _SHARED_STAGES if callable(getattr(candidate, each, None))), None)
    if stage is None or not isinstance(getattr(candidate, "name", None), str):
        return ""
    of_binder, of_engine = (
        f"{stage}(self, {', '.join(hands)})" for hands in (_BINDER_PARAMETERS, METHOD_SIGNATURES[stage].parameters)
    )
    return (
        f'plugin "{candidate.name}" ({plugin_location(candidate)}) has '
        f"{stage}{signature_text(getattr(candidate, stage))}, "
        f"which does not tell who is to call it: the binder calls {of_binder}, the scheduler {of_engine}"
    )


def _refuse_writable(path: Path) -> None:
    """A ConfigMap's folder has mode 777 and is mounted read-only: what nobody can write is as good as what few may."""
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not os.statvfs(path).f_flag & os.ST_RDONLY:
        raise PluginError(
            f"{path} can be written by others (mode {stat.S_IMODE(mode):o}), and it would run with the scheduler's "
            "rights; chmod go-w it, or say --trust-writable-plugins"
        )


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except OSError:  # it went while we looked
        return None


def _version(path: Path) -> tuple[object, ...]:
    """Which version of a file this is. A ConfigMap's files are links into a folder that is replaced: other inodes."""
    try:
        seen = path.stat()
    except OSError:  # it went while we looked
        return (str(path),)
    return str(path), seen.st_mtime_ns, seen.st_size, seen.st_ino, seen.st_dev


def _helper_modules(folder: Path) -> list[ModuleType]:
    """Modules that files of the folder have imported from it by name."""
    files = {str(path) for path in folder.absolute().glob("*.py")}
    return [
        module
        for name, module in list(sys.modules.items())
        if not name.startswith(FILE_MODULE_PREFIX) and getattr(module, "__file__", None) in files
    ]


def _unload_changed_helpers(folder: Path) -> None:
    """Have neighbours imported again if one of them has changed, and all files run again that may have used them."""
    neighbours = _helper_modules(folder)
    if all(vars(each).get(_VERSION) == _version(Path(str(each.__file__))) for each in neighbours):
        return
    importlib.invalidate_caches()
    for each in neighbours:
        del sys.modules[each.__name__]
        with suppress(OSError):  # what was compiled counts as new for a second: too long for who edits and looks
            Path(cache_from_source(str(each.__file__))).unlink()
    for name, module in sys.modules.items():
        if name.startswith(FILE_MODULE_PREFIX) and Path(str(module.__file__)).parent == folder.absolute():
            setattr(module, _VERSION, None)


class _UncachedLoader(SourceFileLoader):
    """Compiles what the file holds now; the cache of compiled files cannot tell two versions of one second apart."""

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002
        return self.source_to_code(self.get_data(self.path), self.path)


def _module_name(path: Path) -> str:
    """The name of a file's module. A file of another folder may be called the same, and neither replaces the other."""
    name, file = FILE_MODULE_PREFIX + path.stem, str(path.absolute())
    known = sys.modules.get(name)
    return name if known is None or known.__file__ == file else f"{name}_{crc32(file.encode()):08x}"


def _load_module(path: Path) -> ModuleType:
    """The module of a file; one that was run before, and has not changed since, is not run again."""
    name = _module_name(path)
    version = _version(path)
    known = sys.modules.get(name)
    if known is not None and getattr(known, _VERSION, None) == version:
        return known
    spec = spec_from_file_location(name, path, loader=_UncachedLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    setattr(module, _VERSION, version)
    sys.modules[name] = module  # dataclasses and pickling look their module up by name
    try:
        spec.loader.exec_module(module)
    except SyntaxError as fault:
        line = f", line {fault.lineno}" if fault.lineno else ""  # a NUL byte is on none
        raise _load_error(name, known, f"{path}{line}: {fault.msg}; the file is not valid Python") from fault
    except PLUGIN_EXCEPTIONS as fault:  # a file that ends with sys.exit() must not end the scheduler
        text = f"{path} failed while it was loaded: {_exception_text(path, fault)}"
        raise _load_error(name, known, text) from fault
    return module


def _exception_text(path: Path, fault: BaseException) -> str:
    """What was raised, and where in the file; an assertion often says nothing itself."""
    lines = [frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if frame.filename == str(path)]
    said = exception_text(fault)
    text = f"{type(fault).__name__}: {said}" if said else type(fault).__name__
    return f"{text} (line {lines[-1]})" if lines else text


def _load_error(name: str, known: ModuleType | None, text: str) -> PluginError:
    """The file cannot be used. Whoever runs the version before goes on with its module."""
    del sys.modules[name]
    if known is not None:
        sys.modules[name] = known
    return PluginError(text)


def _classes_of(module: ModuleType) -> Iterator[type[Any]]:
    """The classes that a file defines itself."""
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield value
