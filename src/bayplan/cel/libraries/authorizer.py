"""The authorizer functions of the API server.

No selector has an authorizer, but the functions are declared: a call on an attribute compiles and fails at run time, as
upstream's does.
"""

from __future__ import annotations

from typing import Any

from bayplan.cel.types.declarations import Overload
from bayplan.cel.types.types import BOOL, STRING, CelType, struct

_PREFIX = "kubernetes.authorization."
AUTHORIZER, PATH, GROUP, RESOURCE, DECISION = (
    struct(_PREFIX + name) for name in ("Authorizer", "PathCheck", "GroupCheck", "ResourceCheck", "Decision")
)


def _never(*_: Any) -> Any:
    raise AssertionError("no value of this type exists")


def _method(name: str, overload_id: str, args: tuple[CelType, ...], result: CelType) -> Overload:
    return Overload(name, overload_id, args, result, member=True, run=_never)


OVERLOADS: list[Overload] = [
    _method("path", "authorizer_path", (AUTHORIZER, STRING), PATH),
    _method("check", "pathcheck_check", (PATH, STRING), DECISION),
    _method("check", "resourcecheck_check", (RESOURCE, STRING), DECISION),
    _method("group", "authorizer_group", (AUTHORIZER, STRING), GROUP),
    _method("serviceAccount", "authorizer_serviceaccount", (AUTHORIZER, STRING, STRING), AUTHORIZER),
    _method("resource", "groupcheck_resource", (GROUP, STRING), RESOURCE),
    _method("subresource", "resourcecheck_subresource", (RESOURCE, STRING), RESOURCE),
    _method("namespace", "resourcecheck_namespace", (RESOURCE, STRING), RESOURCE),
    _method("name", "resourcecheck_name", (RESOURCE, STRING), RESOURCE),
    _method("fieldSelector", "authorizer_fieldselector", (RESOURCE, STRING), RESOURCE),
    _method("labelSelector", "authorizer_labelselector", (RESOURCE, STRING), RESOURCE),
    _method("errored", "decision_errored", (DECISION,), BOOL),
    _method("error", "decision_error", (DECISION,), STRING),
    _method("allowed", "decision_allowed", (DECISION,), BOOL),
    _method("reason", "decision_reason", (DECISION,), STRING),
]
