"""How do messages show a whole pod, or the difference of two? With the names of the server's own structs.

Asked only when an update is refused.
"""

from __future__ import annotations

from typing import Any

from bayplan.cluster.kinds import Tree


def template_form(template: Tree) -> Any:
    """The template as it is shown when it may not change."""
    return {**(template.get("metadata") or {}), "Spec": template.get("spec")}


def difference(kind: str, old: Tree, new: Tree) -> str:  # noqa: ARG001
    """The lines in which two objects differ."""
    return ""
