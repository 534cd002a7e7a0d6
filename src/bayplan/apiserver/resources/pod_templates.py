"""Path of the pod template in the kinds that have one."""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.apiserver.resources.kinds import ServedResource, Tree

TEMPLATES: Mapping[tuple[str, str], str] = {
    ("", "PodTemplate"): "template",
    ("", "ReplicationController"): "spec.template",
    ("apps", "DaemonSet"): "spec.template",
    ("apps", "Deployment"): "spec.template",
    ("apps", "ReplicaSet"): "spec.template",
    ("apps", "StatefulSet"): "spec.template",
    ("batch", "CronJob"): "spec.jobTemplate.spec.template",
    ("batch", "Job"): "spec.template",
}
"""Path of the pod template by group and kind."""


def pod_template(resource: ServedResource, item: Tree) -> Tree | None:
    """The pod template of an object; None if its kind has none."""
    path = TEMPLATES.get((resource.group, resource.kind))
    return None if path is None or resource.custom else at_path(item, path)


def at_path(item: Tree, path: str) -> Tree:
    """The value at a path; empty if it is missing."""
    for step in path.split("."):
        item = item.get(step) or {}
    return item
