"""Exception tree: every error that Bayplan raises on purpose.

"Does not fit" is never an exception; it is a `framework.Status`. An exception means that the user has to change
something (a file, a flag, a plugin), so each message says what happened and what to do. The command line prints a
`BayplanError` as one sentence and exits with the code of its class; any other exception is a bug.
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
"""Errors that scripts and plugins may catch. The other classes stay inside the packages that raise them."""


class BayplanError(Exception):
    """An error that the user can fix. `exit_code` is the exit code of a command that does not catch it."""

    exit_code = 1


class UsageError(BayplanError):
    exit_code = 2


class ObjectError(BayplanError):
    """An API object, or the file that holds it, cannot be read."""


class ConfigError(BayplanError):
    """A configuration is invalid. `stage` says when it was found: decoding, validation or building a profile."""

    def __init__(self, message: str, *, stage: str) -> None:
        super().__init__(message)
        self.stage = stage


class ExpressionError(BayplanError):
    """A CEL expression does not compile or fails while it runs."""


class PluginError(BayplanError):
    """A plugin raised, returned an invalid value or cannot be loaded; the message always names the plugin."""


class CacheError(BayplanError):
    """The cache was asked for a transition that its state machine does not have."""


class KubeconfigError(BayplanError):
    """The connection to the API server cannot be configured: a kubeconfig, a credential or a certificate is
    unreadable."""


class LeaseLost(BayplanError):
    """This process may no longer write: another process leads, or the last renewal is too old to be sure."""


class ApiError(BayplanError):
    """The API server refused a request or did not answer. `code` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, *, code: int = 0, reason: str = "", details: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or message
        """The message of the server, without the text that Bayplan adds."""
        self.outcome_unknown = False
        """Whether the request may have taken effect, or may still take effect."""


class Unreachable(ApiError):
    """No answer: refused, cut or timed out. `sent` says whether the server may have acted on the request."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.outcome_unknown = sent


class TimedOut(Unreachable):
    """No answer within the request's time limit."""


class CredentialsUnavailable(Unreachable, KubeconfigError):
    """No request was sent, because a credential program failed or a certificate cannot be read now.

    A running process retries, as for an unreachable server. A process that starts does not: a person has to fix it.
    """


class UntrustedServer(Unreachable):
    """The server cannot prove its identity. Retrying does not help."""


class Unauthorized(ApiError):
    """The API server did not accept the credentials."""


class Forbidden(ApiError):
    """The user is not permitted to do this."""


class NotFound(ApiError):
    """The object, or its resource type, does not exist."""


class AlreadyExists(ApiError):
    """An object of this name exists already."""


class Conflict(ApiError):
    """The object has changed since it was read, or its state does not allow the request."""


class Gone(ApiError):
    """The requested resource version is no longer available: list again."""


class Invalid(ApiError):
    """The server understood the request and rejected its content."""


class TooManyRequests(ApiError):
    """The server is overloaded. `retry_after_s` is the delay that it asks for."""

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
    """The server for health and metrics cannot start: its address, certificate or client authority is unusable."""
