"""Results of an open session for one task: scores and rejections by node name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bayplan.batch.session.session import Session
from bayplan.framework.api.status import Code
from support.builders.batch import tasks_of


def scores(session: Session, name: str) -> dict[str, float]:
    """The total scores of all nodes for the pod of this name."""
    (task,) = tasks_of(session, name)
    totals = session.scores(task, np.ones(len(session.nodes), dtype=np.bool_))
    assert totals is not None
    return dict(zip(session.nodes.names, totals.tolist(), strict=True))


def predicate_rejections(session: Session, name: str) -> Mapping[str, tuple[Code, str]]:
    """The nodes that a predicate rejects for the pod of this name, with the reasons."""
    (task,) = tasks_of(session, name)
    found = {}
    for node in session.nodes:
        statuses = session.predicate(task, node)
        if statuses:
            (status,) = statuses
            found[node.name] = (status.code, status.message)
    return found
