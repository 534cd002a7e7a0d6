"""Where does an object describe the pods that are made of it?"""

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
"""Of each kind that has one, by group and kind, the path of its template."""


def pod_template(resource: ServedResource, item: Tree) -> Tree | None:
    """The template of a kind that has one."""
    path = TEMPLATES.get((resource.group, resource.kind))
    return None if path is None or resource.custom else at_path(item, path)


def at_path(item: Tree, path: str) -> Tree:
    """The part of an object at a path; empty where there is none."""
    for step in path.split("."):
        item = item.get(step) or {}
    return item
