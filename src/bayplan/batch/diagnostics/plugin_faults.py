"""Messages about broken plugins: the plugin, the extension point, the error and the line of code.

Called by sessions when a plugin raises or returns an invalid answer. Messages per plugin and point are limited, because
a plugin can fail on every node of every task.
"""

from __future__ import annotations

import os
import re
import traceback
from collections import Counter
from pathlib import PurePath

from bayplan.errors import PluginError
from bayplan.framework.api.plugin_error import exception_text

MAX_SIMILAR_FAULTS = 5
"""Messages about one plugin at one point; more give no new information."""

_MAX_ANSWER_LENGTH = 80
_REGISTRATION_FILE = os.path.join("session", "registration.py")
"""Misuse is detected there; the reported line is the plugin's."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


_CONSEQUENCES = {
    "on_session_open": "what it registered before stays registered",
    "on_session_close": "the other plugins are closed",
}
"""Consequences at the points that return nothing."""


class InvalidAnswer(Exception):
    """An invalid answer; the message says what it was and what is needed."""

    def __init__(self, answer: object, wanted: str) -> None:
        super().__init__(f"answered {_short_repr(answer)}; {wanted} is needed")


class PluginFaults:
    """The messages of one session."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._counts: Counter[tuple[str, str]] = Counter()

    def record(self, plugin: str, fault: BaseException | str, point: str = "") -> str | None:
        """The message to log; None if it repeats an earlier one or exceeds the limit."""
        where = f" at {point}" if point else ""
        message = f'plugin "{plugin}"{where}: {_describe(fault)}; {_CONSEQUENCES.get(point, "its answer is ignored")}'
        last = f'plugin "{plugin}"{where}: more faults like this are not reported; those answers are ignored, too'
        return self._add_limited(plugin, point, message, last)

    def record_from_plugin(self, plugin: str, fault: str) -> str | None:
        """Record a fault that the plugin itself found, for example in another program."""
        last = f'plugin "{plugin}": more faults like this are not reported'
        return self._add_limited(plugin, "", f'plugin "{plugin}": {fault}', last)

    def _add_limited(self, plugin: str, point: str, message: str, last: str) -> str | None:
        if message in self.messages:
            return None
        self._counts[plugin, point] += 1
        if self._counts[plugin, point] > MAX_SIMILAR_FAULTS + 1:
            return None
        if self._counts[plugin, point] == MAX_SIMILAR_FAULTS + 1:
            message = last
        self.messages.append(message)
        return message


def _describe(fault: BaseException | str) -> str:
    return str(fault) if isinstance(fault, str | InvalidAnswer) else describe_with_location(fault)


def describe_with_location(fault: BaseException) -> str:
    frames = [
        each for each in traceback.extract_tb(fault.__traceback__) if not each.filename.endswith(_REGISTRATION_FILE)
    ]
    place = f" ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    kind = "" if isinstance(fault, PluginError) else f"{type(fault).__name__}: "
    return f"{kind}{exception_text(fault)}{place}"


def _short_repr(answer: object) -> str:
    """A short form of the answer. Memory addresses are removed, so that equal kinds of answers give equal messages."""
    try:
        text = _ADDRESS.sub("", repr(answer))
    except Exception:  # the repr of an invalid answer can raise, too
        text = f"a {type(answer).__name__}"
    return text if len(text) <= _MAX_ANSWER_LENGTH else f"{text[: _MAX_ANSWER_LENGTH - 3]}..."
