"""How does the API server say no? Every refusal, as the `Status` body that Kubernetes would send.

Whatever cannot be done raises a `Refusal`; the HTTP layer sends its body with its code. The constructors hold the
wording, so that no other file spells a message twice. Cost: a few string joins, on the way out only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bayplan.apiserver.resources.kinds import Resource, Tree
from bayplan.apiserver.validation.names import path_segment
from bayplan.codec.go_text import quote
from bayplan.errors import BayplanError


class Fault(Protocol):
    """What is wrong with one field: `rules.field_errors.FieldError` is one."""

    @property
    def field(self) -> str:
        """`spec.containers[0].image`."""
        ...

    @property
    def reason(self) -> str:
        """`FieldValueRequired` and its sisters."""
        ...

    @property
    def message(self) -> str:
        """`Required value: ...`, without the field."""
        ...


class Refusal(BayplanError):
    """A request that is refused, with everything that its Status says."""

    def __init__(self, code: int, reason: str, message: str, details: Tree | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.continue_token = ""
        """Only a list whose continuation is too old has one."""
        self.headers: dict[str, str] = {}
        self.warnings: list[str] = []
        """What there was to be said before it was refused."""

    def body(self) -> Tree:
        """The Status object; `details` is left out where Kubernetes leaves it out."""
        metadata = {"continue": self.continue_token} if self.continue_token else {}
        status: Tree = {"kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure"}
        status["message"] = self.message
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


def _details(resource: Resource, name: str, **more: Any) -> Tree:
    details: Tree = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    return {**details, "kind": resource.plural, **more}


def not_committed(message: str) -> Refusal:
    """As kube-apiserver passes on an error of etcd, such as `mvcc: database space exceeded`: without a reason."""
    return Refusal(500, "", message)


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def unauthorized() -> Refusal:
    return Refusal(401, "Unauthorized", "Unauthorized")


def not_found(resource: Resource, name: str) -> Refusal:
    """Of what nothing can be called the reference says so, and does not look."""
    if "/" not in name and (problems := path_segment(name)):
        return bad_request(f"Name parameter invalid: {quote(name)}: {';'.join(problems)}")
    return Refusal(404, "NotFound", f'{resource.qualified} "{name}" not found', _details(resource, name))


def no_such_resource() -> Refusal:
    return Refusal(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(resource: Resource, name: str) -> Refusal:
    return Refusal(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', _details(resource, name))


def conflict(resource: Resource, name: str, why: str, *, called: str = "") -> Refusal:
    """`called` is for messages that name the resource in another way: `pods/binding`, or the Kind."""
    details = {**_details(resource, name), "kind": called or resource.plural}
    message = f'Operation cannot be fulfilled on {called or resource.qualified} "{name}": {why}'
    return Refusal(409, "Conflict", message, details)


def modified(resource: Resource, name: str) -> Refusal:
    """The resourceVersion that was sent is not the newest one."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def other_uid(resource: Resource, namespace: str, name: str, *, asked: str, found: str) -> Refusal:
    """Another object of this name is meant."""
    place = f"{namespace}/{name}" if namespace else name
    key = f"/registry/{f'{resource.group}/' if resource.custom else ''}{resource.plural}/{place}"
    failed = f"Precondition failed: UID in precondition: {asked}, UID in object meta: {found}"
    why = f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {failed}"
    return conflict(resource, name, why)


def apply_conflict(message: str, causes: list[Tree]) -> Refusal:
    return Refusal(409, "Conflict", message, {"causes": causes})


def forbidden(resource: Resource, name: str, why: str, causes: Sequence[Tree] = ()) -> Refusal:
    """Refused by an admission rule or by RBAC."""
    subject = f'{resource.qualified} "{name}"' if name else resource.qualified
    more = {"causes": list(causes)} if causes else {}
    return Refusal(403, "Forbidden", f"{subject} is forbidden: {why}", _details(resource, name, **more))


def forbidden_path(user: str, verb: str, path: str) -> Refusal:
    return Refusal(403, "Forbidden", f'forbidden: User "{user}" cannot {verb} path "{path}"', {})


def terminating(resource: Resource, name: str, namespace: str) -> Refusal:
    """Nothing new in a namespace that is being deleted."""
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {namespace} is being terminated",
        "field": "metadata.namespace",
    }
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    return forbidden(resource, name, why, [cause])


def invalid(kind: str, group: str, name: str, faults: Sequence[Fault]) -> Refusal:
    """Validation failed. All of the faults are told, each text once."""
    texts = list(dict.fromkeys(f"{fault.field}: {fault.message}" for fault in faults))
    told = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    causes = [{"reason": each.reason, "message": each.message, "field": each.field} for each in faults]
    details: Tree = {"name": name} if name else {}
    details |= {"group": group} if group else {}
    called = f"{kind}.{group}" if group else kind
    details |= {"kind": kind} if kind else {}
    return Refusal(422, "Invalid", f'{called} "{name}" is invalid: {told}', {**details, "causes": causes})


def method_not_allowed() -> Refusal:
    message = "the server does not allow this method on the requested resource"
    return Refusal(405, "MethodNotAllowed", message, {})


def not_acceptable() -> Refusal:
    kinds = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    return Refusal(406, "NotAcceptable", f"406: Not Acceptable\n\nAvailable representations: {kinds}", {})


def no_such_patch(resource: Resource) -> Refusal:
    """A patch of a media type that is none of those that there are."""
    if resource.custom:
        kinds = ("json-patch+json", "merge-patch+json", "apply-patch+yaml")
        return unsupported_media_type(", ".join(f"application/{each}" for each in kinds))
    return Refusal(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})


def unsupported_media_type(accepted: str) -> Refusal:
    message = "the body of the request was in an unknown format - accepted media types include: " + accepted
    return Refusal(415, "UnsupportedMediaType", message)


def too_large(limit: int) -> Refusal:
    message = f"Request entity too large: limit is {limit}"
    return Refusal(413, "RequestEntityTooLarge", message)


def expired(message: str, continue_token: str = "") -> Refusal:
    refusal = Refusal(410, "Expired", message)
    refusal.continue_token = continue_token
    return refusal


def too_large_version(asked: int, current: int) -> Refusal:
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    refusal = Refusal(504, "Timeout", message, details)
    refusal.headers["Retry-After"] = "1"
    return refusal


def too_many_requests(message: str, details: Tree | None = None) -> Refusal:
    return Refusal(429, "TooManyRequests", message, details)


def patch_rejected() -> Refusal:
    """A JSON patch whose operations cannot be done."""
    message = "the server rejected our request due to an error in our request"
    return Refusal(422, "Invalid", message, {})


def internal(message: str) -> Refusal:
    """A 500: something of ours, or one of the cases where Kubernetes answers so."""
    return Refusal(500, "InternalError", message)
