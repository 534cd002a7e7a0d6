"""A test leaves logging as it found it, whatever it has run.

Commands that tests run in this process start logs, and libraries configure them: one `dictConfig` switches off every
logger that exists, and one forgotten handler or level changes what later tests find in `caplog`. Tests come in any
order, so such a failure shows far from its cause. Cost: a look at every logger, some tens of microseconds a test.
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
    """Every logger is afterwards what it was before; one that came meanwhile is as it comes."""
    manager = logging.root.manager
    disabled, before = manager.disable, {logger: _state(logger) for logger in _loggers()}
    try:
        yield
    finally:
        if manager.disable != disabled:
            logging.disable(disabled)  # which, unlike the attribute, has loggers forget for which levels they were on
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
    logger.setLevel(level)  # likewise
