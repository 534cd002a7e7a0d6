"""One exception tree: every error that Bayplan raises on purpose.

"Does not fit" is never one of these; it is a `framework.Status`. An exception here means that a person has to
change something (a file, a flag, a plugin), so each message says what happened and what to do. The command line
turns `BayplanError` into one sentence and the exit code that the class carries; anything else is a bug.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "ApiError",
    "BayplanError",
    "ConfigError",
    "Conflict",
    "Forbidden",
    "Invalid",
    "NotFound",
    "ObjectError",
    "PluginError",
    "ServerError",
    "TimedOut",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "UsageError",
]
"""What scripts and plugins may catch; the others never leave the parts that raise them."""


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


class KubeconfigError(BayplanError):
    """The way to the API server cannot be read: a kubeconfig, a credential or a certificate."""


class LeaseLost(BayplanError):
    """This process may no longer write: somebody else leads, or the last renewal is too old to know."""


class ApiError(BayplanError):
    """The API server refused a request, or could not be asked. `code` is HTTP's, 0 when there was no answer."""

    def __init__(self, message: str, *, code: int = 0, reason: str = "", details: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or message
        """The server's own sentence, without ours round it."""
        self.outcome_unknown = False
        """Whether the request may have taken effect, or may still do so."""


class Unreachable(ApiError):
    """No answer: refused, cut, timed out. `sent` says whether the server may have acted on the request all the same."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.outcome_unknown = sent


class TimedOut(Unreachable):
    """No answer in the time that was given for one."""


class CredentialsUnavailable(Unreachable, KubeconfigError):
    """Nothing was asked, for want of who we are: a credential program failed, or a certificate cannot be read now.

    Whoever runs tries again, as where nobody answers; whoever starts need not, since a person has to mend it.
    """


class UntrustedServer(Unreachable):
    """Who answers cannot prove to be the server that is meant: waiting does not help."""


class Unauthorized(ApiError):
    """Who we are was not accepted."""


class Forbidden(ApiError):
    """We may not do this."""


class NotFound(ApiError):
    """There is no such object, or no such kind."""


class AlreadyExists(ApiError):
    """An object of this name is there."""


class Conflict(ApiError):
    """The object has changed since it was read, or is not in a state for this."""


class Gone(ApiError):
    """The history that was asked for is no longer kept: list anew."""


class Invalid(ApiError):
    """The server understood and refused what the request says."""


class TooManyRequests(ApiError):
    """The server has no time for us now. `retry_after_s` is what it asked for."""

    def __init__(
        self, message: str, *, code: int = 0, reason: str = "", details: str = "", retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message, code=code, reason=reason, details=details)
        self.retry_after_s = retry_after_s


class ServerError(ApiError):
    """The server failed: any other 5xx."""

    def __init__(self, message: str, *, code: int = 0, reason: str = "", details: str = "") -> None:
        super().__init__(message, code=code, reason=reason, details=details)
        self.outcome_unknown = True


class ServingError(BayplanError):
    """The server for health and metrics cannot start: its address, its certificate or an authority for clients."""
