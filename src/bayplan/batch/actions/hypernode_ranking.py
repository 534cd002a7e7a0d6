"""Which hypernode will win, before any is tried?

Asked by allocation for a job whose tasks belong together as one. Trying a hypernode means placing the whole gang there
and undoing it, and all hypernodes of a gradient are compared by scores that do not depend on the trials. So the best of
those that can take the gang is found by trying the best first: two trials instead of hundreds. Cost: a question to
plugins for each hypernode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bayplan.batch.model.hypernodes import HyperNode
from bayplan.batch.model.sub_jobs import SubJob
from bayplan.batch.session.registration import SearchPurpose
from bayplan.batch.session.session import Session


def rank_hypernodes(session: Session, sub_job: SubJob, gradient: Sequence[HyperNode]) -> list[HyperNode] | None:
    """The hypernodes in the order in which they would win, those left out that cannot; None where only trials tell."""
    scores: dict[str, float] = {}
    for place in gradient:
        below = session.hyper_node_gradient_for_sub_job(sub_job, place, SearchPurpose.ALLOCATE)
        if not below:
            continue
        if len(below) > 1 or len(below[0]) != 1:
            return None  # which of them the sub-job would get is a matter of what fits
        name = below[0][0].name
        score = session.hyper_node_scores(sub_job, {name: session.hyper_nodes.nodes_of(name)})[name]
        if not math.isfinite(score):
            return None
        scores[place.name] = score
    return sorted((place for place in gradient if place.name in scores), key=lambda place: -scores[place.name])
