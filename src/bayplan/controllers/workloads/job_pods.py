"""Pods of a Job: the template, the tracking finalizer and, in Indexed mode, the completion index. Pure functions."""

from __future__ import annotations

from typing import Any

from bayplan.controllers.core.api_types import JOBS, Tree, UntypedObject
from bayplan.controllers.core.owner_refs import generated_prefix, owner_reference, pod_from_template
from bayplan.controllers.workloads.job_status import INDEX, INDEX_FAILURES, TRACKING

_VARIABLE = "JOB_COMPLETION_INDEX"
_NAME_BYTES = 63 - len("-abcde")


def job_pod(job: UntypedObject, *, index: int | None = None, failures: int | None = None) -> Tree:
    """Build a pod of a job. `failures`: previous failures of the pods of this index."""
    template: Tree = job.spec.get("template") or {}
    prefix = (
        generated_prefix(job.name) if index is None else f"{job.name[: _NAME_BYTES - len(str(index)) - 1]}-{index}-"
    )
    body = pod_from_template(template, owner_reference(JOBS, job), generate=prefix)
    meta = body["metadata"]
    meta["finalizers"] = [*meta.get("finalizers", ()), TRACKING]
    if index is None:
        return body
    number = str(index)
    meta["annotations"] = {**meta.get("annotations", {}), INDEX: number}
    if failures is not None:
        meta["annotations"][INDEX_FAILURES] = str(failures)
    meta["labels"] = {**meta.get("labels", {}), INDEX: number}
    spec: dict[str, Any] = {**body["spec"]}
    spec.setdefault("hostname", f"{job.name}-{index}")
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [_with_index_variable(each) for each in spec[field]]
    return {**body, "spec": spec}


def _with_index_variable(container: Tree) -> Tree:
    env = container.get("env") or []
    if any(each["name"] == _VARIABLE for each in env):
        return container
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    return {**container, "env": [*env, {"name": _VARIABLE, "valueFrom": source}]}
