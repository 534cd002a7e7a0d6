"""The templates of a job's tasks are judged as an API server judges pod templates, before any pod is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bayplan.admission.webhooks import (
    WEBHOOKS,
    AdmissionRequest,
    AdmissionSettings,
    run_webhook,
)
from bayplan.apiserver.admission.volcano_webhooks import template_faults

Tree = dict[str, Any]
GOOD: Tree = {"spec": {"containers": [{"name": "main", "image": "main"}]}}
JOBS = next(door for door in WEBHOOKS if door.path == "/jobs/validate")


class Around:
    """A cluster with one queue."""

    def queues(self) -> Mapping[str, Tree]:
        return {"default": {"metadata": {"name": "default"}, "status": {"state": "Open"}}}

    def namespace(self, name: str) -> Tree | None:  # noqa: ARG002
        return None

    def template_faults(self, name: str, namespace: str, template: Tree) -> list[str]:
        return template_faults(name, namespace, template)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        pytest.param(GOOD, [], id="good"),
        pytest.param({"spec": {}}, ["template.spec.containers: Required value"], id="no container"),
        pytest.param(
            {"spec": {"containers": [{"name": "Main", "image": "main"}]}},
            ['template.spec.containers[0].name: Invalid value: "Main": '],
            id="a name that is none",
        ),
        pytest.param(
            {"spec": {**GOOD["spec"], "restartPolicy": "Sometimes"}},
            ['template.spec.restartPolicy: Unsupported value: "Sometimes": '],
            id="a policy that is none",
        ),
        pytest.param({"spec": {"containers": "many"}}, ["template: cannot be read: "], id="of another shape"),
    ],
)
def test_what_is_wrong_with_a_template(template: Tree, expected: list[str]) -> None:
    before = repr(template)
    found = template_faults("w", "default", template)
    assert [said[: len(start)] for said, start in zip(found, expected, strict=True)] == expected
    assert repr(template) == before  # judged, not filled in


def judged(*templates: Tree) -> str:
    tasks = [{"name": f"t{at}", "replicas": 1, "template": each} for at, each in enumerate(templates)]
    spec = {"queue": "default", "minAvailable": 1, "tasks": tasks}
    job = {"metadata": {"name": "train", "namespace": "default"}, "spec": spec}
    return run_webhook(JOBS, AdmissionRequest("CREATE", job, None, "train", Around(), AdmissionSettings()))[1]


def test_a_job_is_refused_for_its_second_task() -> None:
    assert judged(GOOD, GOOD) == ""
    assert judged(GOOD, {"spec": {}}) == "spec.task[1].template.spec.containers: Required value."
