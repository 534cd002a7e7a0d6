"""One exception tree: every error that Bayplan raises on purpose.

"Does not fit" is never one of these; it is a `framework.Status`. An exception here means that a person has to
change something (a file, a flag, a plugin), so each message says what happened and what to do. The command line
turns `BayplanError` into one sentence and the exit code that the class carries; anything else is a bug.
"""

from __future__ import annotations


class BayplanError(Exception):
    """Something a person can mend. `exit_code` is what a command ends with when nobody catches it."""

    exit_code = 1


class UsageError(BayplanError):
    """The command was called in a way that cannot work."""

    exit_code = 2


class ObjectError(BayplanError):
    """An API object, or the file that holds it, cannot be read."""


class ConfigError(BayplanError):
    """A configuration is refused. `stage` says when: decoding, validation or building a profile."""

    def __init__(self, message: str, *, stage: str) -> None:
        super().__init__(message)
        self.stage = stage


class ExpressionError(BayplanError):
    """A CEL expression does not compile or fails while it runs."""


class PluginError(BayplanError):
    """A plugin raised, returned nonsense or cannot be loaded; always names the plugin."""


class CacheError(BayplanError):
    """The cluster model was asked for a transition that its state machine does not have."""
