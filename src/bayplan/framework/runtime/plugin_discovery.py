"""Discovery of external plugins: installed packages (entry points) and folders of Python files.

A file is executed once for all kinds of plugin. Every class in it that is a plugin of the requested kind is returned. A
plugin of the pod engine has a `name` and a method of an extension point. A plugin of the batch engine has a `name` and
`on_session_open`, an action a `name` and `execute`. A plugin of the binder has a `name` and `rollback`, or a `pre_bind`
or `post_bind` with the binder's number of parameters, which is larger than that of the pod engine. A class for which
the parameters do not decide is refused. One folder may hold files of all kinds. Errors name file, line and remedy, and
nothing is registered in part. A file that other users can write is refused, because it runs with the scheduler's
rights.

A file that changed since it was executed is executed again, and so is a file whose helper modules changed. An unchanged
file keeps its classes, so a comparison of two registries shows the new plugins.
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
from bayplan.framework.api.extension_points import ATTEMPT_ORDER, POST_BIND, PRE_BIND, ExtensionPoint
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
    """Kind of an external class. The value is the group of its entry points."""

    POD_PLUGIN = "bayplan.plugins"
    BATCH_PLUGIN = "bayplan.batch_plugins"
    ACTION = "bayplan.actions"
    BINDER_PLUGIN = "bayplan.binder_plugins"


_NO_PLUGINS = ("_", "test_", "conftest.py")
"""Prefixes of files that may be in a plugin folder and are not plugins. Tests of a plugin can lie next to it."""

_VERSION = "__version_of_file__"

_BINDER_PARAMETERS = ("ctx", "pod", "node", "bind_request", "state")
"""Arguments with which the binder calls each stage of a plugin."""
_SHARED_STAGES = (*PRE_BIND.methods, *POST_BIND.methods)
"""Methods that both the pod engine and the binder call."""


class PluginsFolderError(PluginError, UsageError):
    """The value of `--plugins-dir` is not a folder: a usage error, not an error of a plugin."""


def is_ignored_file(file: str) -> bool:
    """Whether a file of this name may be in a plugin folder and is not a plugin."""
    return file.startswith(_NO_PLUGINS)


def with_installed_plugins(registry: Registry, found: Iterable[EntryPoint] | None = None) -> Registry:
    """Return the registry with the plugins that installed packages declare."""
    return registry.with_plugins(*installed_plugins(PluginKind.POD_PLUGIN, found))


def with_plugins_from(registry: Registry, folder: Path, *, trust_writable: bool = False) -> Registry:
    """Return the registry with the plugins of every `.py` file of a folder, in the order of the file names."""
    return registry.with_plugins(*plugins_in_folder(folder, PluginKind.POD_PLUGIN, trust_writable=trust_writable))


def installed_plugins(kind: PluginKind, found: Iterable[EntryPoint] | None = None) -> list[Any]:
    """Return the objects that installed packages declare as this kind. The caller checks them."""
    loaded = []
    for point in entry_points(group=kind.value) if found is None else found:
        try:
            loaded.append(point.load())
        except PLUGIN_EXCEPTIONS as fault:
            raise PluginError(
                f'entry point "{point.name}" ({point.value}) cannot be loaded: '
                f"{type(fault).__name__}: {exception_text(fault)}; repair or uninstall the package that declares it"
            ) from fault
    return loaded


def plugins_in_folder(folder: Path, kind: PluginKind, *, trust_writable: bool = False) -> list[type[Any]]:
    """Return the classes of this kind in the `.py` files of a folder, in the order of the file names."""
    if not folder.is_dir():
        raise PluginsFolderError(f"{folder} is not a folder; --plugins-dir takes a folder with .py files")
    if not trust_writable:
        _refuse_writable(folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # files can import their neighbors
    _unload_changed_helpers(folder)
    try:
        return list(_classes_in(folder, kind, trust_writable=trust_writable))
    finally:
        for helper in _helper_modules(folder):
            vars(helper).setdefault(_VERSION, _version(Path(str(helper.__file__))))


def file_versions(folders: Iterable[Path]) -> tuple[object, ...]:
    """Return the versions of the files in some folders without reading them. Equal if nothing has changed.

    File modes count: a user can fix a mode without a change of the content.
    """
    versions: list[object] = []
    for folder in folders:
        versions.append(_mode(folder))
        versions += ((_version(path), _mode(path)) for path in sorted(folder.glob("*.py")))
    return tuple(versions)


def _classes_in(folder: Path, kind: PluginKind, *, trust_writable: bool) -> Iterator[type[Any]]:
    for path in sorted(folder.glob("*.py")):
        if not trust_writable:
            _refuse_writable(path)
        if is_ignored_file(path.name):
            continue
        kinds = [(each, plugin_kind(each)) for each in _defined_classes(_load_module(path))]
        for fault in (_unsupported_class_error(each) for each, kind_found in kinds if kind_found is None):
            if fault:
                raise PluginError(fault)
        if not any(kind_found for _, kind_found in kinds):
            raise _no_plugin_error(path, [each for each, _ in kinds])
        yield from (each for each, kind_found in kinds if kind_found is kind)


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
    """Return the kind of a class, by its attributes. Batch plugins may have methods of any name, `score` too."""
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
    return any(_stage_caller(candidate, stage) is PluginKind.BINDER_PLUGIN for stage in _SHARED_STAGES)


def _serves_the_pod_engine(candidate: type[Any], point: ExtensionPoint) -> bool:
    if point not in (PRE_BIND, POST_BIND):
        return point.extended_by(candidate)
    return any(_stage_caller(candidate, stage) is PluginKind.POD_PLUGIN for stage in point.methods)


def _stage_caller(candidate: type[Any], stage: str) -> PluginKind | None:
    """Return the engine that can call a stage which both the pod engine and the binder have. None: neither or unknown.

    The number of parameters decides. Names decide for variable parameters, and for a method that fits the pod engine
    but has a parameter `pod`, which the pod engine does not pass.
    """
    method = getattr(candidate, stage, None)
    if not callable(method):
        return None
    try:
        names = inspect.signature(method).parameters
    except (TypeError, ValueError):  # for example a function written in C
        return PluginKind.POD_PLUGIN
    has_self = inspect.isfunction(inspect.getattr_static(candidate, stage))
    by_binder = accepts_argument_count(method, len(_BINDER_PARAMETERS) + has_self)
    by_engine = accepts_argument_count(method, len(METHOD_SIGNATURES[stage].parameters) + has_self)
    if "bind_request" in names or (by_binder and (not by_engine or "ctx" in names)):
        return PluginKind.BINDER_PLUGIN
    is_engine_call = "cycle" in names if by_binder else "pod" not in names
    return PluginKind.POD_PLUGIN if by_engine and is_engine_call else None


def _unsupported_class_error(candidate: type[Any]) -> str:
    """Return the error of a class with a stage that neither engine can call.

    Empty: no stage, or not meant as a plugin.
    """
    stage = next((each for each in _SHARED_STAGES if callable(getattr(candidate, each, None))), None)
    if stage is None or not isinstance(getattr(candidate, "name", None), str):
        return ""
    binder_call, engine_call = (
        f"{stage}(self, {', '.join(parameters)})"
        for parameters in (_BINDER_PARAMETERS, METHOD_SIGNATURES[stage].parameters)
    )
    return (
        f'plugin "{candidate.name}" ({plugin_location(candidate)}) has '
        f"{stage}{signature_text(getattr(candidate, stage))}, "
        f"which fits neither engine: the binder calls {binder_call}, the scheduler {engine_call}; change the parameters"
    )


def _refuse_writable(path: Path) -> None:
    """Refuse a path that other users can write. A read-only mount is accepted: a ConfigMap's folder has mode 777."""
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not os.statvfs(path).f_flag & os.ST_RDONLY:
        raise PluginError(
            f"{path} is writable by group or other users (mode {stat.S_IMODE(mode):o}) and would run with the "
            "scheduler's rights; run `chmod go-w` on it, or use --trust-writable-plugins"
        )


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except OSError:  # deleted meanwhile
        return None


def _version(path: Path) -> tuple[object, ...]:
    """Return the version of a file.

    Files of a ConfigMap are links into a folder that is replaced: the inode changes.
    """
    try:
        status = path.stat()
    except OSError:  # deleted meanwhile
        return (str(path),)
    return str(path), status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


def _helper_modules(folder: Path) -> list[ModuleType]:
    files = {str(path) for path in folder.absolute().glob("*.py")}
    return [
        module
        for name, module in list(sys.modules.items())
        if not name.startswith(FILE_MODULE_PREFIX) and getattr(module, "__file__", None) in files
    ]


def _unload_changed_helpers(folder: Path) -> None:
    """Unload all helper modules if one of them has changed, and mark all files of the folder for another execution."""
    helpers = _helper_modules(folder)
    if all(vars(each).get(_VERSION) == _version(Path(str(each.__file__))) for each in helpers):
        return
    importlib.invalidate_caches()
    for each in helpers:
        del sys.modules[each.__name__]
        # the bytecode cache compares times in seconds, too coarse for a file that is edited and loaded again
        with suppress(OSError):
            Path(cache_from_source(str(each.__file__))).unlink()
    for name, module in sys.modules.items():
        if name.startswith(FILE_MODULE_PREFIX) and Path(str(module.__file__)).parent == folder.absolute():
            setattr(module, _VERSION, None)


class _UncachedLoader(SourceFileLoader):
    """Compiles the current content. The bytecode cache cannot distinguish two versions of the same second."""

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002
        return self.source_to_code(self.get_data(self.path), self.path)


def _module_name(path: Path) -> str:
    """Return a unique module name: files of other folders may have the same name."""
    name, file = FILE_MODULE_PREFIX + path.stem, str(path.absolute())
    loaded = sys.modules.get(name)
    return name if loaded is None or loaded.__file__ == file else f"{name}_{crc32(file.encode()):08x}"


def _load_module(path: Path) -> ModuleType:
    """Return the module of a file. An unchanged file is not executed again."""
    name = _module_name(path)
    version = _version(path)
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, _VERSION, None) == version:
        return loaded
    spec = spec_from_file_location(name, path, loader=_UncachedLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    setattr(module, _VERSION, version)
    sys.modules[name] = module  # dataclasses and pickling look their module up by name
    try:
        spec.loader.exec_module(module)
    except SyntaxError as fault:
        line = f", line {fault.lineno}" if fault.lineno else ""  # a NUL byte has no line
        raise _load_error(name, loaded, f"{path}{line}: {fault.msg}; the file is not valid Python") from fault
    except PLUGIN_EXCEPTIONS as fault:  # a file that ends with sys.exit() must not end the scheduler
        text = f"{path} failed while it was loaded: {_exception_text(path, fault)}"
        raise _load_error(name, loaded, text) from fault
    return module


def _exception_text(path: Path, fault: BaseException) -> str:
    """Return the exception's text and its line in the file. An assertion often has no text."""
    lines = [frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if frame.filename == str(path)]
    said = exception_text(fault)
    text = f"{type(fault).__name__}: {said}" if said else type(fault).__name__
    return f"{text} (line {lines[-1]})" if lines else text


def _load_error(name: str, loaded: ModuleType | None, text: str) -> PluginError:
    """Build the error of a file that cannot be loaded. The previous version of its module stays."""
    del sys.modules[name]
    if loaded is not None:
        sys.modules[name] = loaded
    return PluginError(text)


def _defined_classes(module: ModuleType) -> Iterator[type[Any]]:
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield value
