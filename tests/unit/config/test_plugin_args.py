"""The arguments of the eight plugins that have any: defaults and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bayplan.codec.field_errors import FieldPath
from bayplan.codec.go_duration import GoDuration
from bayplan.objects import core
from bayplan.plugins.args_kinds import ARGS_KINDS
from bayplan.plugins.default_preemption.args import DefaultPreemptionArgs
from bayplan.plugins.dynamic_resources import args as dynamic_resources_args
from bayplan.plugins.node_affinity import args as node_affinity_args
from bayplan.plugins.node_resources import balanced_allocation_args, fit_args
from bayplan.plugins.node_resources.fit_args import NodeResourcesFitArgs, RequestedToCapacityRatioParam, ScoringStrategy
from bayplan.plugins.node_resources.resource_specs import ResourceSpec, UtilizationShapePoint
from bayplan.plugins.pod_topology_spread import args as pod_topology_spread_args

Refusal = Callable[..., str]
RANGE = "not in valid range"
SHAPE_REFUSED = "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring"
NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def test_the_table_has_eight_plugins() -> None:
    assert sorted(ARGS_KINDS) == [
        "DefaultPreemption",
        "DynamicResources",
        "InterPodAffinity",
        "NodeAffinity",
        "NodeResourcesBalancedAllocation",
        "NodeResourcesFit",
        "PodTopologySpread",
        "VolumeBinding",
    ]
    assert all(kind.kind == f"{name}Args" for name, kind in ARGS_KINDS.items())
    assert [name for name, kind in ARGS_KINDS.items() if not kind.validated_at_load] == ["NodeResourcesFit"]


@pytest.mark.parametrize("plugin", sorted(ARGS_KINDS))
def test_defaults_are_valid(plugin: str) -> None:
    kind = ARGS_KINDS[plugin]
    assert kind.validate(kind.default(), FieldPath()) == []
    assert kind.apply_defaults(kind.default()) == kind.default()


CPU_AND_MEMORY = (ResourceSpec("cpu", 1), ResourceSpec("memory", 1))


def test_defaults() -> None:
    assert ARGS_KINDS["DefaultPreemption"].default() == DefaultPreemptionArgs(10, 100)
    assert ARGS_KINDS["NodeResourcesFit"].default().strategy == ScoringStrategy("LeastAllocated", CPU_AND_MEMORY)
    assert ARGS_KINDS["NodeResourcesBalancedAllocation"].default().resources == CPU_AND_MEMORY
    assert ARGS_KINDS["PodTopologySpread"].default().defaulting_type == "System"
    assert ARGS_KINDS["VolumeBinding"].default().bind_timeout_seconds == 600
    assert ARGS_KINDS["DynamicResources"].default().filter_timeout == GoDuration.of_seconds(10)
    assert ARGS_KINDS["DynamicResources"].default().binding_timeout == GoDuration.of_seconds(600)


def test_a_strategy_without_type_stays_without_type() -> None:
    args = fit_args.apply_defaults(NodeResourcesFitArgs(scoring_strategy=ScoringStrategy()))
    assert args.strategy == ScoringStrategy("", CPU_AND_MEMORY)


def test_a_weight_of_zero_is_one() -> None:
    given = balanced_allocation_args.NodeResourcesBalancedAllocationArgs((ResourceSpec("x", 0),))
    found = balanced_allocation_args.apply_defaults(given)
    assert found.resources == (ResourceSpec("x", 1),)


def test_a_filter_timeout_of_zero_is_no_limit() -> None:
    given = dynamic_resources_args.DynamicResourcesArgs(filter_timeout=GoDuration())
    assert dynamic_resources_args.apply_defaults(given).filter_timeout == GoDuration()


REQUIRED = "addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
PREFERRED = "addedAffinity.preferredDuringSchedulingIgnoredDuringExecution"


def required(*expressions: Any, fields: Any = ()) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions), "matchFields": list(fields)}
    return {"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def preferred(*weights: int) -> dict[str, Any]:
    terms = [{"weight": weight, "preference": {"matchExpressions": [{"operator": "?"}]}} for weight in weights]
    return {"addedAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def constraint(**fields: Any) -> dict[str, Any]:
    return {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"} | fields


def listed(*constraints: Any) -> dict[str, Any]:
    return {"defaultingType": "List", "defaultConstraints": list(constraints)}


OPERATORS = 'supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"'
EXPRESSION = f"{REQUIRED}.matchExpressions[0]"
FIELD = f"{REQUIRED}.matchFields[0]"


@pytest.mark.parametrize(
    ("plugin", "args", "errors"),
    [
        (
            "DefaultPreemption",
            {"minCandidateNodesPercentage": 101, "minCandidateNodesAbsolute": -1},
            [
                f"minCandidateNodesPercentage: Invalid value: 101: {RANGE} [0, 100]",
                f"minCandidateNodesAbsolute: Invalid value: -1: {RANGE} [0, inf)",
            ],
        ),
        (
            "DefaultPreemption",
            {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0},
            [
                (
                    "minCandidateNodesPercentage: Invalid value: 0: "
                    "cannot be zero at the same time as minCandidateNodesAbsolute"
                ),
                (
                    "minCandidateNodesAbsolute: Invalid value: 0: "
                    "cannot be zero at the same time as minCandidateNodesPercentage"
                ),
            ],
        ),
        ("DefaultPreemption", {"minCandidateNodesPercentage": 0}, []),
        ("InterPodAffinity", {"hardPodAffinityWeight": 100}, []),
        (
            "InterPodAffinity",
            {"hardPodAffinityWeight": 101},
            [f"hardPodAffinityWeight: Invalid value: 101: {RANGE} [0, 100]"],
        ),
        (
            "NodeResourcesBalancedAllocation",
            {"resources": [{"name": "a"}, {"name": "a", "weight": 2}]},
            ['resources[1].name: Duplicate value: "a"', "resources[1].weight: Invalid value: 2: must be 1"],
        ),
        (
            "VolumeBinding",
            {"bindTimeoutSeconds": -1, "shape": []},
            [
                "bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value",
                f"shape: Invalid value: []: {SHAPE_REFUSED}",
            ],
        ),
        (
            "VolumeBinding",
            {"shape": [{"utilization": 3}]},
            [f'shape: Invalid value: [{{"Utilization":3,"Score":0}}]: {SHAPE_REFUSED}'],
        ),
        ("DynamicResources", {"filterTimeout": "0s", "bindingTimeout": "1s"}, []),
        (
            "DynamicResources",
            {"filterTimeout": "-1ms", "bindingTimeout": "999ms"},
            [
                'filterTimeout: Invalid value: "-1ms": must be zero or positive',
                'bindingTimeout: Invalid value: "999ms": must be at least 1 second',
            ],
        ),
        ("PodTopologySpread", listed(constraint()), []),
        ("PodTopologySpread", {"defaultingType": ""}, []),
        (
            "PodTopologySpread",
            {"defaultingType": "<x>"},
            ['defaultingType: Unsupported value: "\\u003cx\\u003e": supported values: "System", "List"'],
        ),
        (
            "PodTopologySpread",
            {"defaultConstraints": [constraint()]},
            ['defaultingType: Invalid value: "System": when .defaultConstraints are not empty'],
        ),
        (
            "PodTopologySpread",
            listed({}),
            [
                f"defaultConstraints[0].maxSkew: Invalid value: 0: {RANGE} (0, inf)",
                "defaultConstraints[0].topologyKey: Required value: can not be empty",
                "defaultConstraints[0].whenUnsatisfiable: Required value: can not be empty",
            ],
        ),
        (
            "PodTopologySpread",
            listed(constraint(topologyKey="a b", whenUnsatisfiable="Maybe", labelSelector={})),
            [
                f'defaultConstraints[0].topologyKey: Invalid value: "a b": {NAME}',
                (
                    'defaultConstraints[0].whenUnsatisfiable: Unsupported value: "Maybe": '
                    'supported values: "DoNotSchedule", "ScheduleAnyway"'
                ),
                (
                    "defaultConstraints[0].labelSelector: Forbidden: "
                    "constraint must not define a selector, as they deduced for each pod"
                ),
            ],
        ),
        (
            "PodTopologySpread",
            listed(constraint(), constraint(whenUnsatisfiable="ScheduleAnyway"), constraint(maxSkew=2)),
            ['defaultConstraints[2]: Duplicate value: "{zone, DoNotSchedule}"'],
        ),
        ("NodeAffinity", {}, []),
        ("NodeAffinity", required({"key": "a", "operator": "Gt", "values": ["5"]}), []),
        (
            "NodeAffinity",
            required({"key": "a b", "operator": "Sometimes"}),
            [f'{EXPRESSION}.operator: Unsupported value: "Sometimes": {OPERATORS}'],
        ),
        (
            "NodeAffinity",
            required({"key": "", "operator": "Exists"}),
            [f'{EXPRESSION}.key: Invalid value: "": name part must be non-empty; {NAME}'],
        ),
        (
            "NodeAffinity",
            required({"key": "a", "operator": "In"}),
            [f"{EXPRESSION}.values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty"],
        ),
        (
            "NodeAffinity",
            required({"key": "a", "operator": "NotIn", "values": []}),
            [f"{EXPRESSION}.values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"],
        ),
        (
            "NodeAffinity",
            required({"key": "a", "operator": "DoesNotExist", "values": ["x"]}),
            [f'{EXPRESSION}.values: Invalid value: ["x"]: values set must be empty for exists and does not exist'],
        ),
        (
            "NodeAffinity",
            required({"key": "a", "operator": "Lt", "values": ["x y", "9223372036854775808"]}),
            [
                (
                    f'{EXPRESSION}.values: Invalid value: ["x y","9223372036854775808"]: '
                    "for 'Gt', 'Lt' operators, exactly one value is required"
                ),
                (
                    f'{EXPRESSION}.values[0]: Invalid value: "x y": '
                    "for 'Gt', 'Lt' operators, the value must be an integer"
                ),
                (
                    f'{EXPRESSION}.values[1]: Invalid value: "9223372036854775808": '
                    "for 'Gt', 'Lt' operators, the value must be an integer"
                ),
                f'{EXPRESSION}.values[0][a]: Invalid value: "x y": {VALUE}',
            ],
        ),
        (
            "NodeAffinity",
            required(fields=[{"key": "not looked at", "operator": "Exists"}]),
            [f'{FIELD}.operator: Unsupported value: "Exists": supported values: "In", "NotIn"'],
        ),
        (
            "NodeAffinity",
            required(fields=[{"operator": "In", "values": ["a", "b"]}]),
            [f'{FIELD}.values: Invalid value: ["a","b"]: must have one element'],
        ),
        (
            "NodeAffinity",
            preferred(0, 5),
            [f'{PREFERRED}[1].matchExpressions[0].operator: Unsupported value: "?": {OPERATORS}'],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_invalid_arguments_are_refused_while_loading(
    args_refusal: Refusal, plugin: str, args: Any, errors: list[str]
) -> None:
    joined = ", ".join(errors)
    expected = "" if not errors else f"invalid: {joined if len(errors) == 1 else f'[{joined}]'}"
    assert args_refusal(plugin, args) == expected


def shape(*points: tuple[int, int]) -> RequestedToCapacityRatioParam:
    return RequestedToCapacityRatioParam(tuple(UtilizationShapePoint(*point) for point in points))


TYPES = 'supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"'
RATIO = "RequestedToCapacityRatio"
SHAPE = "scoringStrategy.requestedToCapacityRatio.shape"


@pytest.mark.parametrize(
    ("args", "errors"),
    [
        (NodeResourcesFitArgs(scoring_strategy=ScoringStrategy(RATIO, (), shape((0, 0), (100, 10)))), []),
        (NodeResourcesFitArgs(("not a name", "a/b")), [f'ignoredResources[0]: Invalid value: "not a name": {NAME}']),
        (
            NodeResourcesFitArgs((), ("example.com", "a/b", "x y")),
            [
                "ignoredResourceGroups[1]: Invalid value: \"a/b\": resource group name can't contain '/'",
                f'ignoredResourceGroups[2]: Invalid value: "x y": {NAME}',
            ],
        ),
        (
            NodeResourcesFitArgs(
                scoring_strategy=ScoringStrategy("", (ResourceSpec("cpu", 101), ResourceSpec("x", -1)))
            ),
            [
                f'scoringStrategy.type: Unsupported value: "": {TYPES}',
                f"scoringStrategy.resources[0].weight: Invalid value: 101: resource weight of cpu {RANGE} (0, 100]",
                f"scoringStrategy.resources[1].weight: Invalid value: -1: resource weight of x {RANGE} (0, 100]",
            ],
        ),
        (
            NodeResourcesFitArgs(scoring_strategy=ScoringStrategy(RATIO)),
            [
                (
                    "scoringStrategy.requestedToCapacityRatio: Required value: "
                    "must be specified when type is RequestedToCapacityRatio"
                )
            ],
        ),
        (
            NodeResourcesFitArgs(scoring_strategy=ScoringStrategy("MostAllocated", (), shape())),
            [
                (
                    "scoringStrategy.requestedToCapacityRatio: Forbidden: "
                    "must be nil when type is not RequestedToCapacityRatio"
                )
            ],
        ),
        (
            NodeResourcesFitArgs(scoring_strategy=ScoringStrategy(RATIO, (), shape())),
            [f"{SHAPE}: Required value: at least one point must be specified"],
        ),
        (
            NodeResourcesFitArgs(
                scoring_strategy=ScoringStrategy(RATIO, (), shape((9, 0), (9, 11), (8, -1), (101, 0)))
            ),
            [
                f"{SHAPE}[1].utilization: Invalid value: 9: values must be sorted in increasing order",
                f"{SHAPE}[1].score: Invalid value: 11: {RANGE} [0, 10]",
                f"{SHAPE}[2].score: Invalid value: -1: {RANGE} [0, 10]",
                f"{SHAPE}[3].utilization: Invalid value: 101: {RANGE} [0, 100]",
            ],
        ),
    ],
)
def test_node_resources_fit_validates_its_arguments_when_it_is_built(
    args: NodeResourcesFitArgs, errors: list[str]
) -> None:
    complete = fit_args.apply_defaults(args)
    assert list(map(str, ARGS_KINDS["NodeResourcesFit"].validate(complete, FieldPath()))) == errors


def test_added_affinity_becomes_that_of_a_pod() -> None:
    requirement = node_affinity_args.NodeSelectorRequirement("a", "Exists")
    term = node_affinity_args.NodeSelectorTerm((requirement,))
    args = node_affinity_args.NodeAffinityArgs(
        node_affinity_args.NodeAffinity(node_affinity_args.NodeSelector((term,)))
    )
    assert args.affinity == core.NodeAffinity(
        required=core.NodeSelector((core.NodeSelectorTerm((core.NodeSelectorRequirement("a", "Exists"),)),))
    )
    assert node_affinity_args.NodeAffinityArgs().affinity is None


def test_default_constraints_become_those_of_a_pod() -> None:
    given = pod_topology_spread_args.TopologySpreadConstraint(
        2, "zone", "DoNotSchedule", min_domains=3, node_taints_policy="Honor"
    )
    assert pod_topology_spread_args.PodTopologySpreadArgs((given,)).constraints == (
        core.TopologySpreadConstraint(2, "zone", "DoNotSchedule", min_domains=3, node_taints_policy="Honor"),
    )
