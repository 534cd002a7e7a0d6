"""Logging as kube-scheduler has it: klog's text format, or JSON, with `-v` levels.

    log = StructuredLog(__name__)
    log.info("Successfully bound pod to node", v=2, pod=ObjectRef("default/web"), node="n1")

All records go through the loggers of the standard library, so messages of plugins and libraries are included and look
like klog's unstructured ones. A disabled level costs a fifth of a microsecond. Credentials in a line are redacted:
Bayplan writes none, but messages of libraries may contain some.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, TextIO

from bayplan.clock import Clock
from bayplan.codec.go_text import go_value, json_string, json_text, quote
from bayplan.errors import UsageError

TEXT, JSON = "text", "json"
OUTCOME = 2
"""The verbosity from which on every placed or rejected pod has a log line, as upstream has it."""

_VERBOSE_DEBUG = 4
"""The verbosity that the standard library's DEBUG stands for: details from libraries."""

_SEVERITY = ((logging.CRITICAL, "F"), (logging.ERROR, "E"), (logging.WARNING, "W"))
_REDACTED = "<redacted>"
_CREDENTIAL = re.compile(r"(?i)(\bbearer\s+|\bauthorization:\s*basic\s+)[\w.~+/=-]{8,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")
_EMPTY: Mapping[str, object] = {}


def logging_level(verbosity: int) -> int:
    """The level of the standard library for a verbosity: INFO is 0, DEBUG is 4, higher verbosities lie below."""
    if verbosity < _VERBOSE_DEBUG:
        return logging.INFO - max(0, verbosity)
    return max(1, logging.DEBUG - (verbosity - _VERBOSE_DEBUG))


def klog_verbosity(level: int) -> int:
    if level > logging.DEBUG:
        return max(0, min(logging.INFO - level, _VERBOSE_DEBUG - 1))
    return _VERBOSE_DEBUG + logging.DEBUG - level


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An object by its `namespace/name`, or by its name alone; JSON has them as two members."""

    key: str

    def __str__(self) -> str:
        return self.key

    def tree(self) -> dict[str, str]:
        namespace, slash, name = self.key.rpartition("/")
        return {"name": name, "namespace": namespace} if slash else {"name": name}


class StructuredLog:
    """A logger of constant messages with key-value pairs."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def enabled(self, v: int) -> bool:
        return self._logger.isEnabledFor(logging_level(v))

    def info(self, message: str, /, *, v: int = 0, **values: object) -> None:
        level = logging_level(v)
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", message, extra={"values": values}, stacklevel=2)

    def warning(self, message: str, /, **values: object) -> None:
        self._logger.warning("%s", message, extra={"values": values}, stacklevel=2)

    def error(self, fault: BaseException | str | None, message: str, /, **values: object) -> None:
        known = {"err": str(fault), **values} if fault is not None else values
        self._logger.error("%s", message, extra={"values": known}, stacklevel=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """`--logging-format`, `-v`, `--vmodule` and the split of streams."""

    format: str = TEXT
    verbosity: int = 0
    vmodule: str = ""
    """Verbosity of single files: `queue=5,cache*=4`."""
    split_stream: bool = False
    """Whether records below ERROR go to the standard output."""


class LogControl:
    """The logging of this process, from `start_logs` to `close`."""

    def __init__(self, handlers: Sequence[_Handler], options: LogOptions) -> None:
        self._handlers = handlers
        self._modules = _modules(options.vmodule)
        self._before = logging.root.level
        self.set_verbosity(options.verbosity)
        for handler in handlers:
            logging.root.addHandler(handler)

    def set_verbosity(self, verbosity: int) -> None:
        """Set the verbosity; files in `--vmodule` keep their own."""
        most = max([verbosity, *(each for _, each in self._modules)])
        logging.root.setLevel(logging_level(most))
        for handler in self._handlers:
            handler.limit(verbosity, self._modules)

    def close(self) -> None:
        for handler in self._handlers:
            logging.root.removeHandler(handler)
        logging.root.setLevel(self._before)


def start_logs(
    options: LogOptions,
    clock: Clock,
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    zone: tzinfo | None = None,
) -> LogControl:
    """Write the logs of this process, by default to the standard error. `zone`: by default the machine's."""
    if options.format not in (TEXT, JSON):
        raise UsageError(f"--logging-format {options.format!r} is unknown; use {TEXT} or {JSON}")
    if options.verbosity < 0:
        raise UsageError(f"-v {options.verbosity} is negative; use 0 or more")
    formatter: logging.Formatter = _JsonLines(clock) if options.format == JSON else _KlogLines(clock, zone)
    errors = _Handler(err or sys.stderr, formatter)
    if not options.split_stream:
        return LogControl([errors], options)
    errors.setLevel(logging.ERROR)
    rest = _Handler(out or sys.stdout, formatter, below=logging.ERROR)
    return LogControl([errors, rest], options)


class _Handler(logging.StreamHandler[TextIO]):
    def __init__(self, stream: TextIO, formatter: logging.Formatter, *, below: int = sys.maxsize) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self._below = below
        self._verbosity = 0
        self._modules: Sequence[tuple[str, int]] = ()

    def limit(self, verbosity: int, modules: Sequence[tuple[str, int]]) -> None:
        self._verbosity, self._modules = verbosity, modules

    def filter(self, record: logging.LogRecord) -> Any:
        if record.levelno >= self._below:
            return False
        if record.levelno >= logging.INFO:
            return super().filter(record)
        file = PurePath(record.pathname).stem
        allowed = next((each for pattern, each in self._modules if fnmatchcase(file, pattern)), self._verbosity)
        return klog_verbosity(record.levelno) <= allowed and super().filter(record)


def _modules(vmodule: str) -> list[tuple[str, int]]:
    found = []
    for part in filter(None, vmodule.split(",")):
        pattern, equals, level = part.partition("=")
        if not pattern or not equals or not level.isdecimal():
            raise UsageError(f"--vmodule: {part!r} is invalid; use a file name and a level, as in queue=5")
        found.append((pattern, int(level)))
    return found


def redact(text: str) -> str:
    """The text with credentials redacted."""
    if "eyJ" not in text and "earer" not in text and "asic" not in text:
        return text
    return _CREDENTIAL.sub(lambda found: (found[1] or "") + _REDACTED, text)


def _values(record: logging.LogRecord) -> Mapping[str, object] | None:
    """The key-value pairs of a structured message; None for a plain one."""
    found: Mapping[str, object] | None = getattr(record, "values", None)
    return found


class _KlogLines(logging.Formatter):
    """`Lmmdd hh:mm:ss.uuuuuu threadid file:line] message`."""

    def __init__(self, clock: Clock, zone: tzinfo | None) -> None:
        super().__init__()
        self._clock = clock
        self._zone = zone

    def format(self, record: logging.LogRecord) -> str:
        values = _values(record)
        line = _indented(record.getMessage()) if values is None else _structured(record.getMessage(), values)
        if record.exc_info:
            line = f"{line}\n\t{_indented(self.formatException(record.exc_info))}"
        return redact(self._head(record, self._clock.now().astimezone(self._zone)) + line)

    @staticmethod
    def _head(record: logging.LogRecord, now: datetime) -> str:
        severity = next((letter for level, letter in _SEVERITY if record.levelno >= level), "I")
        file = PurePath(record.pathname).name
        return f"{severity}{now:%m%d %H:%M:%S.%f} {os.getpid():7d} {file}:{record.lineno}] "


def _indented(text: str) -> str:
    """Indent continuation lines, so that a value with a newline cannot forge a log line."""
    return text.replace("\r", "\\r").replace("\n", "\n\t")


def _structured(message: str, values: Mapping[str, object]) -> str:
    return " ".join([quote(message), *(f"{key}{_assigned(value)}" for key, value in values.items())])


def _assigned(value: object) -> str:
    if isinstance(value, (str, ObjectRef, BaseException)):
        text = str(value)
        if "\n" not in text:
            return f"={quote(text)}"
        lines = text.removesuffix("\n").split("\n")
        return "=<\n" + "".join(f"\t{line}\n" for line in lines) + " >"
    return f"={_plain(value)}"


def _plain(value: object) -> str:
    if isinstance(value, (bool, int, float)):
        return go_value(value)
    return _json(value)


def _json(value: object) -> str:
    """Any value as JSON. A value that JSON cannot represent is written as a string."""
    if isinstance(value, ObjectRef):
        return json_text(value.tree())
    try:
        return json_text(value)
    except (TypeError, ValueError):
        return json_string(str(value))


class _JsonLines(logging.Formatter):
    """One object a line: ts in milliseconds, caller, msg, v, then the values."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def format(self, record: logging.LogRecord) -> str:
        path = PurePath(record.pathname)
        members = [
            f'"ts":{round(self._clock.now().timestamp() * 1e3, 4)}',
            f'"caller":{json_string(f"{path.parent.name}/{path.name}:{record.lineno}")}',
            f'"msg":{json_string(record.getMessage())}',
        ]
        members += [f'"v":{klog_verbosity(record.levelno)}'] if record.levelno < logging.ERROR else []
        members += [f"{json_string(key)}:{_json(value)}" for key, value in (_values(record) or _EMPTY).items()]
        members += [f'"stacktrace":{json_string(self.formatException(record.exc_info))}'] if record.exc_info else []
        return redact("{" + ",".join(members) + "}")
