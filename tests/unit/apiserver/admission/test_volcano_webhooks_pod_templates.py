"""Task templates of a Volcano job are validated like pod templates before any pod is created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bayplan.admission.webhooks import WEBHOOKS, AdmissionRequest, AdmissionSettings, run_webhook
from bayplan.apiserver.admission.volcano_webhooks import template_errors

Tree = dict[str, Any]
GOOD: Tree = {"spec": {"containers": [{"name": "main", "image": "main"}]}}
JOBS = next(webhook for webhook in WEBHOOKS if webhook.path == "/jobs/validate")


class Context:
    """An admission context with one queue."""

    def queues(self) -> Mapping[str, Tree]:
        return {"default": {"metadata": {"name": "default"}, "status": {"state": "Open"}}}

    def namespace(self, name: str) -> Tree | None:  # noqa: ARG002
        return None

    def template_errors(self, name: str, namespace: str, template: Tree) -> list[str]:
        return template_errors(name, namespace, template)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        pytest.param(GOOD, [], id="good"),
        pytest.param({"spec": {}}, ["template.spec.containers: Required value"], id="no container"),
        pytest.param(
            {"spec": {"containers": [{"name": "Main", "image": "main"}]}},
            ['template.spec.containers[0].name: Invalid value: "Main": '],
            id="an invalid name",
        ),
        pytest.param(
            {"spec": {**GOOD["spec"], "restartPolicy": "Sometimes"}},
            ['template.spec.restartPolicy: Unsupported value: "Sometimes": '],
            id="an invalid policy",
        ),
        pytest.param({"spec": {"containers": "many"}}, ["template: cannot be read: "], id="a field of the wrong type"),
    ],
)
def test_template_errors(template: Tree, expected: list[str]) -> None:
    before = repr(template)
    found = template_errors("w", "default", template)
    assert [message[: len(start)] for message, start in zip(found, expected, strict=True)] == expected
    assert repr(template) == before  # validated, not defaulted


def job_error(*templates: Tree) -> str:
    tasks = [{"name": f"t{index}", "replicas": 1, "template": each} for index, each in enumerate(templates)]
    spec = {"queue": "default", "minAvailable": 1, "tasks": tasks}
    job = {"metadata": {"name": "train", "namespace": "default"}, "spec": spec}
    return run_webhook(JOBS, AdmissionRequest("CREATE", job, None, "train", Context(), AdmissionSettings()))[1]


def test_a_job_is_refused_for_an_invalid_second_task() -> None:
    assert job_error(GOOD, GOOD) == ""
    assert job_error(GOOD, {"spec": {}}) == "spec.task[1].template.spec.containers: Required value."
