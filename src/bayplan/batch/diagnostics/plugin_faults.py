"""What a person reads about a plugin that broke: who, where, what it said or did, and the line of its code.

Asked by sessions when a plugin raises or answers nonsense. Sentences about one plugin at one point are few: a plugin
that fails on every node of every task is told about some of them and then about no more.
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
"""So many sentences about one plugin at one point; more tell nobody anything new."""

_MAX_ANSWER_LENGTH = 80
_REGISTRATION_FILE = os.path.join("batch", "registration.py")
"""Where misuse is found; the line that is to be mended is the plugin's."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


_CONSEQUENCES = {
    "on_session_open": "what it has registered before counts",
    "on_session_close": "the others are closed all the same",
}
"""What follows at the points where nothing is answered."""


class InvalidAnswer(Exception):
    """An answer that nothing can be done with; the sentence says what it was and what is needed."""

    def __init__(self, answer: object, wanted: str) -> None:
        super().__init__(f"answered {_short_repr(answer)}; {wanted} is needed")


class PluginFaults:
    """The sentences of one session."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._alike: Counter[tuple[str, str]] = Counter()

    def record(self, plugin: str, what: BaseException | str, point: str = "") -> str | None:
        """The sentence, if it is worth telling: neither told before nor one too many."""
        where = f" at {point}" if point else ""
        sentence = f'plugin "{plugin}"{where}: {_describe(what)}; {_CONSEQUENCES.get(point, "its answer is left out")}'
        last = f'plugin "{plugin}"{where}: more of the like, which is not told; those answers are left out too'
        return self._add_limited(plugin, point, sentence, last)

    def record_from_plugin(self, plugin: str, what: str) -> str | None:
        """The same for something that a plugin has found out itself, about others."""
        last = f'plugin "{plugin}": more of the like, which is not told'
        return self._add_limited(plugin, "", f'plugin "{plugin}": {what}', last)

    def _add_limited(self, plugin: str, point: str, sentence: str, last: str) -> str | None:
        if sentence in self.messages:
            return None
        self._alike[plugin, point] += 1
        if self._alike[plugin, point] > MAX_SIMILAR_FAULTS + 1:
            return None
        if self._alike[plugin, point] == MAX_SIMILAR_FAULTS + 1:
            sentence = last
        self.messages.append(sentence)
        return sentence


def _describe(what: BaseException | str) -> str:
    return str(what) if isinstance(what, str | InvalidAnswer) else describe_with_location(what)


def describe_with_location(what: BaseException) -> str:
    """What was raised, and the line where."""
    frames = [
        each for each in traceback.extract_tb(what.__traceback__) if not each.filename.endswith(_REGISTRATION_FILE)
    ]
    place = f" ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    kind = "" if isinstance(what, PluginError) else f"{type(what).__name__}: "
    return f"{kind}{exception_text(what)}{place}"


def _short_repr(answer: object) -> str:
    """The answer in short, and the same words for the same kind of answer: addresses tell nobody anything."""
    try:
        text = _ADDRESS.sub("", repr(answer))
    except Exception:  # whoever answers nonsense may also have no words for it
        text = f"a {type(answer).__name__}"
    return text if len(text) <= _MAX_ANSWER_LENGTH else f"{text[: _MAX_ANSWER_LENGTH - 3]}..."
