"""Functions that several commands share: reading files, loading plugins, and an engine for the time of a command."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bayplan.app.configuration import configured, known_plugins
from bayplan.app.scheduler import build_engine
from bayplan.batch.config.scheduler_conf import suggest_remedy
from bayplan.binder.plugin_registry import STAGE as BINDER_STAGE
from bayplan.cache import Cache
from bayplan.errors import ConfigError, UsageError
from bayplan.framework.runtime.registry import Registry
from bayplan.scheduler.engine import PodEngine


def load_plugins(folders: tuple[Path, ...], *, trust_writable: bool) -> Registry:
    return known_plugins(folders, trust_writable=trust_writable)


def read_text(path: Path) -> str:
    """The text of a file; `-` is the standard input."""
    try:
        if str(path) == "-":
            text = sys.stdin.read()
            text.encode()  # invalid UTF-8 may have been decoded to surrogates
            return text
        return path.read_text(encoding="utf-8")
    except OSError as fault:
        raise UsageError(f"cannot read {path}: {fault.strerror}; give a readable file") from None
    except UnicodeError:
        raise UsageError(f"{path} is not UTF-8 text; give a text file") from None


@contextmanager
def open_engine(config: Path | None, registry: Registry, cache: Cache, *, seed: int) -> Iterator[PodEngine]:
    """An engine with the configuration of a file, or with the default one. Its plugins are closed at the end."""
    text = read_text(config) if config is not None else None
    with explain_config_errors(config, registry):
        engine = build_engine(configured(text, registry), registry, cache, seed=seed)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def explain_config_errors(config: Path | str | None, registry: Registry) -> Iterator[None]:
    """A configuration error gets the file name and what to do."""
    try:
        yield
    except ConfigError as fault:
        if fault.stage == BINDER_STAGE:
            raise  # the error names its own file
        place = f"{config}: " if config is not None else ""
        raise ConfigError(f"{place}{_shorten(str(fault))}; {_remedy(fault, registry)}", stage=fault.stage) from None


@contextmanager
def explain_batch_config_errors(place: Path | str, actions: Iterable[str]) -> Iterator[None]:
    """The same for a volcano-scheduler.conf."""
    try:
        yield
    except ConfigError as fault:
        raise ConfigError(f"{place}: {fault}; {suggest_remedy(fault, tuple(actions))}", stage=fault.stage) from None


_UNKNOWN_PLUGIN = re.compile(r'"[^"]*" does not exist')
_MAX_MESSAGE_CHARS = 1000


def _shorten(text: str) -> str:
    """Shorten a message: kube-scheduler quotes a whole file at times."""
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]}…"


def _remedy(fault: ConfigError, registry: Registry) -> str:
    """What to do: messages of kube-scheduler only say what is wrong."""
    if not _UNKNOWN_PLUGIN.search(str(fault)):
        return "see docs/configuration.md"
    names = ", ".join(sorted(entry.name for entry in registry))
    return f"known plugins: {names}, or give --plugins-dir"
