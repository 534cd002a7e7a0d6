"""The extension points as data: what configuration calls them and which methods make a plugin part of one."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Point:
    """One extension point. A plugin extends it when it has any of the methods."""

    key: str  # its name in a configuration file
    methods: tuple[str, ...]
    filed: str = ""  # its name in statistics, where that is another
    label: str = field(init=False, compare=False)  # the same in metrics

    def __post_init__(self) -> None:
        filed = self.filed or self.key
        object.__setattr__(self, "filed", filed)
        object.__setattr__(self, "label", f"{filed[0].upper()}{filed[1:]}")

    @property
    def interface(self) -> str:
        """What kube-scheduler's messages call a plugin of this point."""
        return f"{self.key[0].upper()}{self.key[1:]}Plugin"

    def extended_by(self, plugin: object) -> bool:
        return any(callable(getattr(plugin, method, None)) for method in self.methods)


PRE_ENQUEUE = Point("preEnqueue", ("pre_enqueue",))
QUEUE_SORT = Point("queueSort", ("less",))
PRE_FILTER = Point("preFilter", ("pre_filter",))
FILTER = Point("filter", ("filter_nodes", "filter"))
POST_FILTER = Point("postFilter", ("post_filter",))
PRE_SCORE = Point("preScore", ("pre_score",))
SCORE = Point("score", ("score_nodes", "score"))
RESERVE = Point("reserve", ("reserve",))
PERMIT = Point("permit", ("permit",))
PRE_BIND = Point("preBind", ("pre_bind",))
BIND = Point("bind", ("bind",))
POST_BIND = Point("postBind", ("post_bind",))
PLACEMENT_GENERATE = Point("placementGenerate", ("generate_placements",))
PLACEMENT_SCORE = Point("placementScore", ("score_placement",))

DEPENDS_ON = Point("depends_on", ("depends_on",))
SIGNATURE = Point("signature", ("signature",))
"""No points of a configuration: what else plugins are asked, and may take time for."""

UNRESERVE = Point("reserve", ("unreserve",), "unreserve")
PREFLIGHT = Point("preBind", ("pre_bind_preflight",), "preBindPreFlight")
NORMALIZE_PLACEMENTS = Point("placementScore", ("normalize_placements",), "placementScoreExtensionNormalize")
NORMALIZE = Point("score", ("normalize",), "scoreExtensionNormalize")
ADD_POD = Point("preFilter", ("add_pod",), "preFilterExtensionAddPod")
REMOVE_POD = Point("preFilter", ("remove_pod",), "preFilterExtensionRemovePod")
"""Further questions of a point. A fault in one is a fault at the point; times are kept apart."""

BUILD_ORDER: tuple[Point, ...] = (
    PRE_FILTER,
    FILTER,
    POST_FILTER,
    RESERVE,
    PRE_SCORE,
    SCORE,
    PRE_BIND,
    BIND,
    POST_BIND,
    PERMIT,
    PRE_ENQUEUE,
    QUEUE_SORT,
    PLACEMENT_GENERATE,
    PLACEMENT_SCORE,
)
"""The order in which a profile is put together: it decides which of two mistakes is reported."""

ATTEMPT_ORDER: tuple[Point, ...] = (
    PRE_ENQUEUE,
    QUEUE_SORT,
    PRE_FILTER,
    FILTER,
    POST_FILTER,
    PRE_SCORE,
    SCORE,
    RESERVE,
    PERMIT,
    PRE_BIND,
    BIND,
    POST_BIND,
    PLACEMENT_GENERATE,
    PLACEMENT_SCORE,
)
"""The order in which a pod meets the points: how people want to read a profile."""
