"""Errors of the API server: `Status` objects as typed exceptions."""

from __future__ import annotations

import msgspec

from bayplan.client.http.connection import HttpResponse
from bayplan.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)


class StatusCause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    kind: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class ApiStatus(msgspec.Struct, frozen=True):
    """`v1 Status`: body of every refusal, and object of a watch's ERROR event."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


_BY_CODE: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}


def read_status(body: bytes) -> ApiStatus | None:
    """Decode the Status of a body. Returns None for other text, as proxies and panics send it."""
    try:
        return msgspec.json.decode(body, type=ApiStatus)
    except msgspec.DecodeError:
        return None


def response_error(request: str, answer: HttpResponse) -> ApiError:
    """Build the exception for a response of 400 or above. `request`: method and path; its query is left out."""
    status = read_status(answer.body) or ApiStatus(message=answer.body[:200].decode("utf-8", "replace").strip())
    return status_error(request, msgspec.structs.replace(status, code=answer.status), retry_after(answer))


def status_error(request: str, status: ApiStatus, retry_after_s: float = 0.0) -> ApiError:
    text = f"{request.partition('?')[0]}: {status.code} {status.reason or 'refused'}: {status.message or 'no message'}"
    attributes = {"code": status.code, "reason": status.reason, "details": status.message}
    if status.code == 429:
        return TooManyRequests(text, retry_after_s=retry_after_s or _retry_after_seconds(status), **attributes)  # type: ignore[arg-type]
    kind = _BY_CODE.get(status.code, ServerError if status.code >= 500 else ApiError)
    if status.reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(text, **attributes)  # type: ignore[arg-type]


def retry_after(answer: HttpResponse) -> float:
    """Seconds to wait before a retry, from Retry-After; 0 when the server sent none."""
    text = answer.head.get("retry-after")
    return float(text) if text.isdecimal() else 0.0


def is_version_too_large(error: ApiError) -> bool:
    """Whether the server's watch cache has not reached the requested resourceVersion yet."""
    return error.code == 504 and "too large resource version" in error.details.lower()


def _retry_after_seconds(status: ApiStatus) -> float:
    return float(status.details.retry_after_seconds) if status.details is not None else 0.0
