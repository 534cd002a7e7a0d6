"""Rules for CertificateSigningRequests: the requesting user, approval and validation.

A request records its user and its purpose, which never change. Only the `approval` subresource approves or denies it.
Bayplan signs nothing. Cost: one parse of the request at create.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.metadata import check_metadata
from bayplan.codec.field_errors import FieldErrorList

DECISIONS = ("Approved", "Denied")
_PERMANENT_CONDITIONS = (*DECISIONS, "Failed")
_LEGACY = "kubernetes.io/legacy-unknown"
_MIN_EXPIRATION_S = 600
_USAGES = (
    *("any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment"),
    *("decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel"),
    *("ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime"),
    *("server auth", "signing", "timestamping"),
)


def prepare_create(item: Tree, user: Tree) -> None:
    """Set the requesting user and clear the status of a new request. `user` has the form of a TokenReview's user."""
    spec = item["spec"]
    for name in ("username", "uid", "groups", "extra"):
        spec.pop(name, None)
        if user.get(name):
            spec[name] = user[name]
    item["status"] = {}


def prepare_update(item: Tree, old: Tree, subresource: str, now: str) -> None:
    """Undo what the write may not change: the spec always, approval conditions unless `subresource` is `approval`."""
    item["spec"] = old["spec"]
    before = old.get("status") or {}
    if not subresource:
        item["status"] = before
        return
    status = item.get("status") or {}
    known = before.get("conditions") or []
    conditions = [_set_times(each, known, now) for each in status.get("conditions") or ()]
    if subresource == "status":
        conditions = _restore_decisions(conditions, known)
    base = status if subresource == "status" else before
    item["status"] = {key: value for key, value in base.items() if key != "conditions"}
    if conditions:
        item["status"]["conditions"] = conditions


def _set_times(condition: Tree, known: list[Tree], now: str) -> Tree:
    """The condition with the times that the client left out."""
    same = next(
        (
            each
            for each in known
            if _sort_conditions(each) == _sort_conditions(condition) and each.get("lastTransitionTime")
        ),
        {},
    )
    return {
        **condition,
        "lastUpdateTime": condition.get("lastUpdateTime") or now,
        "lastTransitionTime": condition.get("lastTransitionTime") or same.get("lastTransitionTime") or now,
    }


def _sort_conditions(condition: Tree) -> tuple[Any, Any]:
    return condition.get("type"), condition.get("status")


def _restore_decisions(conditions: list[Tree], known: list[Tree]) -> list[Tree]:
    """The new conditions with the old approval conditions, when there are as many of each type."""
    restored = list(conditions)
    for kind in DECISIONS:
        new = [index for index, each in enumerate(restored) if each.get("type") == kind]
        old = [each for each in known if each.get("type") == kind]
        if len(new) == len(old):
            for index, each in zip(new, old, strict=True):
                restored[index] = each
    return restored


# Validation.


def validate_csr(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], lambda _: (), namespaced=False)
    spec = item["spec"]
    if (why := _pem_request_error(spec.get("request"))) is not None:
        out.invalid("spec.request", spec.get("request"), why)
    usages = spec.get("usages") or []
    if not usages:
        out.required("spec.usages")
    for index, usage in enumerate(usages):
        if usage not in _USAGES:
            out.unsupported(f"spec.usages[{index}]", usage, _USAGES)
    for index, usage in enumerate(usages):
        if usage in usages[:index]:
            out.duplicate(f"spec.usages[{index}]", usage)
    _check_signer(out, spec.get("signerName", ""))
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < _MIN_EXPIRATION_S:
        why = "may not specify a duration less than 600 seconds (10 minutes)"
        out.invalid("spec.expirationSeconds", seconds, why)


def validate_csr_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    _check_decisions(out, item, old, approving=False)


def validate_approval(out: FieldErrorList, item: Tree, old: Tree) -> None:
    _check_decisions(out, item, old, approving=True)


def _check_decisions(out: FieldErrorList, item: Tree, old: Tree, *, approving: bool) -> None:
    path = "status.conditions"
    new_conditions, old_conditions = (list((each.get("status") or {}).get("conditions") or ()) for each in (item, old))
    types = [each.get("type", "") for each in new_conditions]
    for index, each in enumerate(new_conditions):
        allowed = ("True",) if types[index] in _PERMANENT_CONDITIONS else ("False", "True", "Unknown")
        if not each.get("status"):
            out.required(f"{path}[{index}].status")
        elif each["status"] not in allowed:
            out.unsupported(f"{path}[{index}].status", each["status"], allowed)
        if types[index] in DECISIONS and set(DECISIONS) <= set(types[: index + 1]):
            out.invalid(path, types[index], "Approved and Denied conditions are mutually exclusive")
        if types[index] in types[:index]:
            out.duplicate(f"{path}[{index}].type", types[index])
    for kind in _PERMANENT_CONDITIONS:
        before, now = (sum(each.get("type") == kind for each in listed) for listed in (old_conditions, new_conditions))
        if now < before:
            out.forbidden(path, f'updates may not remove a condition of type "{kind}"')
        elif now > before and not approving and kind in DECISIONS:
            out.forbidden(path, f'updates may not add a condition of type "{kind}"')


def _pem_request_error(text: str | None) -> str | None:
    """The parse error of the PEM text; None for a valid certificate request."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        pem = b64decode(text or "")
    except (Base64Error, ValueError):
        pem = b""
    if b"-----BEGIN CERTIFICATE REQUEST-----" not in pem:
        return "PEM block type must be CERTIFICATE REQUEST"
    try:
        request = x509.load_pem_x509_csr(pem)
    except ValueError as fault:
        return str(fault)
    except InvalidSignature:
        return "x509: the signature is invalid"
    return None if request.is_signature_valid else "x509: the signature is invalid"


def _check_signer(out: FieldErrorList, name: str) -> None:
    path = "spec.signerName"
    domain, slash, rest = name.partition("/")
    if name == _LEGACY:
        out.invalid(path, name, "the legacy signerName is not allowed via this API version")
    elif not name:
        out.required(path)
    elif not slash or not domain or not rest:
        out.invalid(path, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
