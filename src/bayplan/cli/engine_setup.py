"""What several verbs share: options, how files are read, and an engine that is closed when the verb is done."""

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
    """The text of a file; standard input for `-`."""
    try:
        if str(path) == "-":
            text = sys.stdin.read()
            text.encode()  # what is no UTF-8 may have been let in under the names of bytes
            return text
        return path.read_text(encoding="utf-8")
    except OSError as fault:
        raise UsageError(f"{path} cannot be read: {fault.strerror}") from None
    except UnicodeError:
        raise UsageError(f"{path} is not text") from None


@contextmanager
def open_engine(config: Path | None, registry: Registry, cache: Cache, *, seed: int) -> Iterator[PodEngine]:
    """An engine with the configuration of a file, or with the default one; what its plugins hold is released."""
    text = read_text(config) if config is not None else None
    with explain_config_errors(config, registry):
        engine = build_engine(configured(text, registry), registry, cache, seed=seed)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def explain_config_errors(config: Path | str | None, registry: Registry) -> Iterator[None]:
    """Whatever is wrong with the configuration is told with the file and what to do about it."""
    try:
        yield
    except ConfigError as fault:
        if fault.stage == BINDER_STAGE:
            raise  # it stands in another file, which it names
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
    """kube-scheduler quotes a whole file at times."""
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]}…"


def _remedy(fault: ConfigError, registry: Registry) -> str:
    """kube-scheduler's words say what is wrong and never what to do about it."""
    if not _UNKNOWN_PLUGIN.search(str(fault)):
        return "see docs/configuration.md"
    names = ", ".join(sorted(entry.name for entry in registry))
    return f"known plugins: {names}, or give --plugins-dir"
