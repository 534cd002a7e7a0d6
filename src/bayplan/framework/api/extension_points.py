"""The extension points as data: their names in the configuration and the methods that make a plugin extend one."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ExtensionPoint:
    """One extension point. A plugin extends it when it has any of the methods."""

    key: str  # name in a configuration file
    methods: tuple[str, ...]
    metric_key: str = ""  # name in statistics, where it differs
    metric_label: str = field(init=False, compare=False)  # name in metrics

    def __post_init__(self) -> None:
        metric_key = self.metric_key or self.key
        object.__setattr__(self, "metric_key", metric_key)
        object.__setattr__(self, "metric_label", f"{metric_key[0].upper()}{metric_key[1:]}")

    @property
    def interface(self) -> str:
        """The name that kube-scheduler's messages use for a plugin of this point."""
        return f"{self.key[0].upper()}{self.key[1:]}Plugin"

    def extended_by(self, plugin: object) -> bool:
        return any(callable(getattr(plugin, method, None)) for method in self.methods)


PRE_ENQUEUE = ExtensionPoint("preEnqueue", ("pre_enqueue",))
QUEUE_SORT = ExtensionPoint("queueSort", ("less",))
PRE_FILTER = ExtensionPoint("preFilter", ("pre_filter",))
FILTER = ExtensionPoint("filter", ("filter_nodes", "filter"))
POST_FILTER = ExtensionPoint("postFilter", ("post_filter",))
PRE_SCORE = ExtensionPoint("preScore", ("pre_score",))
SCORE = ExtensionPoint("score", ("score_nodes", "score"))
RESERVE = ExtensionPoint("reserve", ("reserve",))
PERMIT = ExtensionPoint("permit", ("permit",))
PRE_BIND = ExtensionPoint("preBind", ("pre_bind",))
BIND = ExtensionPoint("bind", ("bind",))
POST_BIND = ExtensionPoint("postBind", ("post_bind",))
PLACEMENT_GENERATE = ExtensionPoint("placementGenerate", ("generate_placements",))
PLACEMENT_SCORE = ExtensionPoint("placementScore", ("score_placement",))

DEPENDS_ON = ExtensionPoint("depends_on", ("depends_on",))
SIGNATURE = ExtensionPoint("signature", ("signature",))
"""Not extension points of a configuration: other plugin methods that are timed like one."""

UNRESERVE = ExtensionPoint("reserve", ("unreserve",), "unreserve")
PREFLIGHT = ExtensionPoint("preBind", ("pre_bind_preflight",), "preBindPreFlight")
NORMALIZE_PLACEMENTS = ExtensionPoint("placementScore", ("normalize_placements",), "placementScoreExtensionNormalize")
NORMALIZE = ExtensionPoint("score", ("normalize",), "scoreExtensionNormalize")
ADD_POD = ExtensionPoint("preFilter", ("add_pod",), "preFilterExtensionAddPod")
REMOVE_POD = ExtensionPoint("preFilter", ("remove_pod",), "preFilterExtensionRemovePod")
"""Further methods of a point. A fault in one is a fault at the point; durations are recorded separately."""

BUILD_ORDER: tuple[ExtensionPoint, ...] = (
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
"""The order in which a profile is built. It decides which of two errors is reported."""

ATTEMPT_ORDER: tuple[ExtensionPoint, ...] = (
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
"""The order in which a pod passes the points, used to display a profile."""
