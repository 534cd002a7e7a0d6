"""Errors of the API server, with the `Status` body that kube-apiserver returns.

Code that refuses a request raises a `StatusError`; the HTTP layer sends its body and code. The constructors in this
module hold the messages, so each message is written once. Cost: a few string joins, for refused requests only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.validation.names import path_segment
from bayplan.codec.field_errors import FieldError, aggregate
from bayplan.codec.go_text import quote
from bayplan.errors import BayplanError


class StatusError(BayplanError):
    """A refused request, with the content of its Status."""

    def __init__(self, code: int, reason: str, message: str, details: Tree | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.continue_token = ""
        """Only set by a list whose continue token is too old."""
        self.headers: dict[str, str] = {}
        self.warnings: list[str] = []
        """Warnings collected before the refusal."""

    def body(self) -> Tree:
        """The Status object; `details` is omitted where Kubernetes omits it."""
        metadata = {"continue": self.continue_token} if self.continue_token else {}
        status: Tree = {"kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure"}
        status["message"] = self.message
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


def _details(resource: ServedResource, name: str, **more: Any) -> Tree:
    details: Tree = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    return {**details, "kind": resource.plural, **more}


def not_committed(message: str) -> StatusError:
    """An error of the storage backend: without a reason, as kube-apiserver returns errors of etcd."""
    return StatusError(500, "", message)


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def not_found(resource: ServedResource, name: str) -> StatusError:
    """404, or 400 for a name that no object can have: kube-apiserver refuses it before the lookup."""
    if "/" not in name and (problems := path_segment(name)):
        return bad_request(f"Name parameter invalid: {quote(name)}: {';'.join(problems)}")
    return StatusError(404, "NotFound", f'{resource.qualified} "{name}" not found', _details(resource, name))


def unknown_resource() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(resource: ServedResource, name: str) -> StatusError:
    return StatusError(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', _details(resource, name))


def conflict(resource: ServedResource, name: str, why: str, *, resource_name: str = "") -> StatusError:
    """`resource_name` replaces the resource in the message, for example `pods/binding` or the kind."""
    details = {**_details(resource, name), "kind": resource_name or resource.plural}
    message = f'Operation cannot be fulfilled on {resource_name or resource.qualified} "{name}": {why}'
    return StatusError(409, "Conflict", message, details)


def version_conflict(resource: ServedResource, name: str) -> StatusError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def uid_conflict(resource: ServedResource, namespace: str, name: str, *, requested: str, found: str) -> StatusError:
    place = f"{namespace}/{name}" if namespace else name
    key = f"/registry/{f'{resource.group}/' if resource.custom else ''}{resource.plural}/{place}"
    failed = f"Precondition failed: UID in precondition: {requested}, UID in object meta: {found}"
    why = f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {failed}"
    return conflict(resource, name, why)


def apply_conflict(message: str, causes: list[Tree]) -> StatusError:
    return StatusError(409, "Conflict", message, {"causes": causes})


def forbidden(resource: ServedResource, name: str, why: str, causes: Sequence[Tree] = ()) -> StatusError:
    """Refused by an admission plugin or by RBAC."""
    subject = f'{resource.qualified} "{name}"' if name else resource.qualified
    more = {"causes": list(causes)} if causes else {}
    return StatusError(403, "Forbidden", f"{subject} is forbidden: {why}", _details(resource, name, **more))


def forbidden_url(user: str, verb: str, path: str) -> StatusError:
    return StatusError(403, "Forbidden", f'forbidden: User "{user}" cannot {verb} path "{path}"', {})


def namespace_terminating(resource: ServedResource, name: str, namespace: str) -> StatusError:
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {namespace} is being terminated",
        "field": "metadata.namespace",
    }
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    return forbidden(resource, name, why, [cause])


def invalid(kind: str, group: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    """Validation failed. The message lists all field errors, each text once."""
    causes = [{"reason": each.reason, "message": each.message, "field": each.field} for each in errors]
    details: Tree = {"name": name} if name else {}
    details |= {"group": group} if group else {}
    qualified = f"{kind}.{group}" if group else kind
    details |= {"kind": kind} if kind else {}
    message = f'{qualified} "{name}" is invalid: {aggregate(errors)}'
    return StatusError(422, "Invalid", message, {**details, "causes": causes})


def method_not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, {})


def not_acceptable() -> StatusError:
    kinds = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    return StatusError(406, "NotAcceptable", f"406: Not Acceptable\n\nAvailable representations: {kinds}", {})


def unsupported_patch_type(resource: ServedResource) -> StatusError:
    """The media type of the patch is not supported."""
    if resource.custom:
        kinds = ("json-patch+json", "merge-patch+json", "apply-patch+yaml")
        return unsupported_media_type(", ".join(f"application/{each}" for each in kinds))
    return StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})


def unsupported_media_type(accepted: str) -> StatusError:
    message = "the body of the request was in an unknown format - accepted media types include: " + accepted
    return StatusError(415, "UnsupportedMediaType", message)


def request_too_large(limit: int) -> StatusError:
    message = f"Request entity too large: limit is {limit}"
    return StatusError(413, "RequestEntityTooLarge", message)


def expired(message: str, continue_token: str = "") -> StatusError:
    refusal = StatusError(410, "Expired", message)
    refusal.continue_token = continue_token
    return refusal


def resource_version_too_large(requested: int, current: int) -> StatusError:
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {requested}, current: {current}"
    refusal = StatusError(504, "Timeout", message, details)
    refusal.headers["Retry-After"] = "1"
    return refusal


def too_many_requests(message: str, details: Tree | None = None) -> StatusError:
    return StatusError(429, "TooManyRequests", message, details)


def invalid_json_patch() -> StatusError:
    """An operation of a JSON patch cannot be applied."""
    message = "the server rejected our request due to an error in our request"
    return StatusError(422, "Invalid", message, {})


def internal_error(message: str) -> StatusError:
    """500: an error of Bayplan, or one of the cases in which Kubernetes returns 500."""
    return StatusError(500, "InternalError", message)
