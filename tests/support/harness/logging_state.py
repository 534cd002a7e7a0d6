"""Restores the logging configuration after each test.

Commands that tests run in this process configure logging, and so do libraries: one `dictConfig` disables every existing
logger, and one leftover handler or level changes what later tests find in `caplog`. Tests run in any order, so such a
failure appears far from its cause. Cost: one pass over the loggers, some tens of microseconds a test.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_State = tuple[int, bool, bool, list[logging.Handler], list[Any]]
_NEW: _State = (logging.NOTSET, False, True, [], [])


@contextmanager
def restore_logging() -> Iterator[None]:
    """Restore the state of every logger; a logger that was created meanwhile gets the initial state."""
    manager = logging.root.manager
    disabled, before = manager.disable, {logger: _state(logger) for logger in _loggers()}
    try:
        yield
    finally:
        if manager.disable != disabled:
            logging.disable(disabled)  # unlike the attribute, the method clears the loggers' cache of enabled levels
        for logger in _loggers():
            known = before.get(logger, _NEW)
            if _state(logger) != known:
                _restore(logger, known)


def _loggers() -> list[logging.Logger]:
    known = logging.root.manager.loggerDict.values()
    return [logging.root, *(each for each in known if isinstance(each, logging.Logger))]


def _state(logger: logging.Logger) -> _State:
    return logger.level, logger.disabled, logger.propagate, [*logger.handlers], [*logger.filters]


def _restore(logger: logging.Logger, state: _State) -> None:
    level, logger.disabled, logger.propagate, logger.handlers[:], logger.filters[:] = state
    logger.setLevel(level)  # clears the cache as well
