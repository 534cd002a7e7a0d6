"""Decoding errors, which are kube-scheduler's, in the order of its checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bayplan.config.load import load
from bayplan.errors import ConfigError
from bayplan.plugins.args_kinds import ARGS_KINDS

YAML_HEADER = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
JSON_HEADER = '{"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"KubeSchedulerConfiguration"'
KIND_STRUCT = r'struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }'
PARSE = "couldn't get version/kind; json parse error:"
SCHEME = 'in scheme "pkg/scheduler/apis/config/scheme/scheme.go:29"'


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, ARGS_KINDS)
    assert caught.value.stage == "config"
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: b: c\n", "yaml: mapping values are not allowed in this context", id="YAML syntax"),
        pytest.param("{", f"{PARSE} unexpected end of JSON input", id="JSON syntax"),
        pytest.param(
            "{kind: x}",
            f"{PARSE} invalid character 'k' looking for beginning of object key string",
            id="flow YAML is bad JSON",
        ),
        pytest.param("abc", f"{PARSE} json: cannot unmarshal string into Go value of type {KIND_STRUCT}", id="a text"),
        pytest.param("- a", f"{PARSE} json: cannot unmarshal array into Go value of type {KIND_STRUCT}", id="a list"),
        pytest.param("5", f"{PARSE} json: cannot unmarshal number into Go value of type {KIND_STRUCT}", id="a number"),
        pytest.param(
            '{"kind": 5}', f"{PARSE} json: cannot unmarshal number into Go struct field .kind of type string", id="kind"
        ),
        pytest.param("", "Object 'Kind' is missing in ''", id="nothing"),
        pytest.param('{"a": 1}', "Object 'Kind' is missing in '{\"a\": 1}'", id="no kind"),
        pytest.param("kind: X\n", "Object 'apiVersion' is missing in 'kind: X\n'", id="no version"),
        pytest.param(
            "kind: X\napiVersion: a/b/c\n", "unexpected GroupVersion string: a/b/c", id="version with two slashes"
        ),
        pytest.param(
            "kind: Pod\napiVersion: v1\n", f'no kind "Pod" is registered for version "v1" {SCHEME}', id="another API"
        ),
        pytest.param(
            "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1beta3\n",
            'no kind "KubeSchedulerConfiguration" is registered for version '
            f'"kubescheduler.config.k8s.io/v1beta3" {SCHEME}',
            id="old version",
        ),
        pytest.param(
            "kind: NodeAffinityArgs\napiVersion: kubescheduler.config.k8s.io/v1\n",
            "couldn't decode as KubeSchedulerConfiguration, "
            "got kubescheduler.config.k8s.io/v1, Kind=NodeAffinityArgs: ",
            id="another kind of this API",
        ),
        pytest.param(
            YAML_HEADER + "parallelism: .inf\n", "json: unsupported value: +Inf", id="a number that JSON has not"
        ),
    ],
)
def test_errors_before_the_fields(text: str, message: str) -> None:
    assert refused(text) == message


def into(where: str, go_type: str, found: str = "string") -> str:
    return f"json: cannot unmarshal {found} into Go struct field {where} of type {go_type}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"parallelism": "x"}, into("KubeSchedulerConfiguration.parallelism", "int32")),
        ({"parallelism": 1.5}, into("KubeSchedulerConfiguration.parallelism", "int32", "number 1.5")),
        ({"parallelism": 4.0}, into("KubeSchedulerConfiguration.parallelism", "int32", "number 4.0")),
        ({"parallelism": 2**31}, into("KubeSchedulerConfiguration.parallelism", "int32", "number 2147483648")),
        (
            {"podMaxBackoffSeconds": 2**63},
            into("KubeSchedulerConfiguration.podMaxBackoffSeconds", "int64", "number 9223372036854775808"),
        ),
        ({"delayCacheUntilActive": 1}, into("KubeSchedulerConfiguration.delayCacheUntilActive", "bool", "number")),
        ({"enableProfiling": "x"}, into("KubeSchedulerConfiguration.DebuggingConfiguration.enableProfiling", "bool")),
        (
            {"leaderElection": []},
            into("KubeSchedulerConfiguration.leaderElection", "v1alpha1.LeaderElectionConfiguration", "array"),
        ),
        (
            {"clientConnection": {"qps": True}},
            into("ClientConnectionConfiguration.clientConnection.qps", "float32", "bool"),
        ),
        (
            {"clientConnection": {"qps": 1e39}},
            into("ClientConnectionConfiguration.clientConnection.qps", "float32", "number 1e+39"),
        ),
        ({"profiles": {}}, into("KubeSchedulerConfiguration.profiles", "[]v1.KubeSchedulerProfile", "object")),
        ({"profiles": ["x"]}, into("KubeSchedulerConfiguration.profiles", "v1.KubeSchedulerProfile")),
        ({"profiles": [{"schedulerName": 5}]}, into("KubeSchedulerProfile.profiles.schedulerName", "string", "number")),
        ({"profiles": [{"plugins": 5}]}, into("KubeSchedulerProfile.profiles.plugins", "v1.Plugins", "number")),
        ({"profiles": [{"plugins": {"filter": []}}]}, into("Plugins.profiles.plugins.filter", "v1.PluginSet", "array")),
        (
            {"profiles": [{"plugins": {"filter": {"enabled": ["x"]}}}]},
            into("PluginSet.profiles.plugins.filter.enabled", "v1.Plugin"),
        ),
        (
            {"profiles": [{"plugins": {"score": {"enabled": [{"weight": "1"}]}}}]},
            into("Plugin.profiles.plugins.score.enabled.weight", "int32"),
        ),
        (
            {"profiles": [{"pluginConfig": [5]}]},
            into("KubeSchedulerProfile.profiles.pluginConfig", "v1.PluginConfig", "number"),
        ),
        (
            {"profiles": [{"pluginConfig": [{"name": 5}]}]},
            into("PluginConfig.profiles.pluginConfig.name", "string", "number"),
        ),
        ({"extenders": [{"weight": "x"}]}, into("Extender.extenders.weight", "int64")),
        ({"extenders": [{"tlsConfig": 5}]}, into("Extender.extenders.tlsConfig", "v1.ExtenderTLSConfig", "number")),
        (
            {"extenders": [{"tlsConfig": {"certData": 5}}]},
            into("ExtenderTLSConfig.extenders.tlsConfig.certData", "[]uint8", "number"),
        ),
        (
            {"extenders": [{"tlsConfig": {"certData": [1, 256]}}]},
            into("ExtenderTLSConfig.extenders.tlsConfig.certData", "uint8", "number 256"),
        ),
        ({"extenders": [{"tlsConfig": {"certData": "a?=="}}]}, "illegal base64 data at input byte 1"),
        (
            {"extenders": [{"managedResources": [{"ignoredByScheduler": "x"}]}]},
            into("ExtenderManagedResource.extenders.managedResources.ignoredByScheduler", "bool"),
        ),
        ({"extenders": [{"httpTimeout": 5}]}, into("Extender.extenders.httpTimeout", "string", "number")),
        ({"extenders": [{"httpTimeout": None}]}, 'time: invalid duration ""'),
        (
            {"leaderElection": {"leaseDuration": {}}},
            into("LeaderElectionConfiguration.leaderElection.leaseDuration", "string", "object"),
        ),
        ({"leaderElection": {"leaseDuration": "5"}}, 'time: missing unit in duration "5"'),
        (
            {"profiles": 5, "parallelism": "x"},
            into("KubeSchedulerConfiguration.profiles", "[]v1.KubeSchedulerProfile", "number"),
        ),
        ({"parallelism": "x", "leaderElection": {"leaseDuration": "abc"}, "nope": 1}, 'time: invalid duration "abc"'),
        ({"nope": 1, "parallelism": "x"}, into("KubeSchedulerConfiguration.parallelism", "int32")),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value).removeprefix("json: cannot unmarshal ")[:60],
)
def test_types(refusal: Callable[..., str], fields: dict[str, Any], message: str) -> None:
    assert refusal(**fields) == f"config: {message}"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param([1], f"{PARSE} json: cannot unmarshal array into Go value of type {KIND_STRUCT}", id="a list"),
        pytest.param("x", f"{PARSE} json: cannot unmarshal string into Go value of type {KIND_STRUCT}", id="a text"),
        pytest.param(
            {"kind": True}, f"{PARSE} json: cannot unmarshal bool into Go struct field .kind of type string", id="kind"
        ),
        pytest.param(
            {"apiVersion": "v1"},
            f'no kind "InterPodAffinityArgs" is registered for version "v1" {SCHEME}',
            id="version",
        ),
        pytest.param(
            {"kind": "Nope"},
            f'no kind "Nope" is registered for version "kubescheduler.config.k8s.io/v1" {SCHEME}',
            id="unknown kind",
        ),
        pytest.param(
            {"hardPodAffinityWeight": "x"}, into("InterPodAffinityArgs.hardPodAffinityWeight", "int32"), id="type"
        ),
    ],
)
def test_arguments(refusal: Callable[..., str], args: Any, message: str) -> None:
    place = "decoding .profiles[0].pluginConfig[1]: decoding args for plugin InterPodAffinity: "
    entries = [{"name": "Foo", "args": 5}, {"name": "InterPodAffinity", "args": args}]
    assert refusal(profiles=[{"pluginConfig": entries}]) == f"config: {place}{message}"


@pytest.mark.parametrize("kind", ["VolumeBindingArgs", "KubeSchedulerConfiguration"])
def test_arguments_of_another_plugin(refusal: Callable[..., str], kind: str) -> None:
    entry = {"name": "NodeAffinity", "args": {"kind": kind, "nope": 1}}
    assert refusal(profiles=[{"pluginConfig": [entry]}]) == (
        "config: decoding .profiles[0].pluginConfig[0]: args for plugin NodeAffinity were not of type "
        f"NodeAffinityArgs.kubescheduler.config.k8s.io, got {kind}.kubescheduler.config.k8s.io"
    )


@pytest.mark.parametrize(
    ("plugin", "args", "message"),
    [
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"type": 5}},
            into("ScoringStrategy.scoringStrategy.type", "v1.ScoringStrategyType", "number"),
        ),
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"resources": ["cpu"]}},
            into("ScoringStrategy.scoringStrategy.resources", "v1.ResourceSpec"),
        ),
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"resources": [{"weight": 1.5}]}},
            into("ResourceSpec.scoringStrategy.resources.weight", "int64", "number 1.5"),
        ),
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"requestedToCapacityRatio": {"shape": {}}}},
            into(
                "RequestedToCapacityRatioParam.scoringStrategy.requestedToCapacityRatio.shape",
                "[]v1.UtilizationShapePoint",
                "object",
            ),
        ),
        ("VolumeBinding", {"shape": [{"score": "x"}]}, into("UtilizationShapePoint.shape.score", "int32")),
        ("NodeResourcesFit", {"ignoredResources": "x"}, into("NodeResourcesFitArgs.ignoredResources", "[]string")),
        (
            "NodeResourcesFit",
            {"ignoredResources": [5]},
            into("NodeResourcesFitArgs.ignoredResources", "string", "number"),
        ),
        (
            "PodTopologySpread",
            {"defaultingType": 5},
            into("PodTopologySpreadArgs.defaultingType", "v1.PodTopologySpreadConstraintsDefaulting", "number"),
        ),
        (
            "PodTopologySpread",
            {"defaultConstraints": [{"whenUnsatisfiable": 5}]},
            into(
                "TopologySpreadConstraint.defaultConstraints.whenUnsatisfiable",
                "v1.UnsatisfiableConstraintAction",
                "number",
            ),
        ),
        (
            "PodTopologySpread",
            {"defaultConstraints": [{"nodeTaintsPolicy": 5}]},
            into("TopologySpreadConstraint.defaultConstraints.nodeTaintsPolicy", "v1.NodeInclusionPolicy", "number"),
        ),
        (
            "PodTopologySpread",
            {"defaultConstraints": [{"labelSelector": {"matchLabels": {"a": 5}}}]},
            into("LabelSelector.defaultConstraints.labelSelector.matchLabels", "string", "number"),
        ),
        (
            "PodTopologySpread",
            {"defaultConstraints": [{"labelSelector": {"matchLabels": []}}]},
            into("LabelSelector.defaultConstraints.labelSelector.matchLabels", "map[string]string", "array"),
        ),
        (
            "NodeAffinity",
            {"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [5]}}},
            into(
                "NodeSelector.addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
                "v1.NodeSelectorTerm",
                "number",
            ),
        ),
        (
            "NodeAffinity",
            {
                "addedAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"preference": {"matchFields": [{"operator": 5}]}}
                    ]
                }
            },
            into(
                "NodeSelectorRequirement.addedAffinity.preferredDuringSchedulingIgnoredDuringExecution"
                ".preference.matchFields.operator",
                "v1.NodeSelectorOperator",
                "number",
            ),
        ),
        ("DynamicResources", {"filterTimeout": "x"}, 'time: invalid duration "x"'),
        ("DynamicResources", {"filterTimeout": 5}, into("DynamicResourcesArgs.filterTimeout", "string", "number")),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else None,
)
def test_types_in_arguments(args_refusal: Callable[..., str], plugin: str, args: Any, message: str) -> None:
    place = f"decoding .profiles[0].pluginConfig[0]: decoding args for plugin {plugin}: "
    assert args_refusal(plugin, args) == f"config: {place}{message}"


@pytest.mark.parametrize(
    ("fields", "errors"),
    [
        pytest.param(
            '"nope":1,"Parallelism":2,"nope":3', 'unknown field "nope", unknown field "Parallelism"', id="top"
        ),
        pytest.param('"kind":"KubeSchedulerConfiguration"', 'duplicate field "kind"', id="kind twice"),
        pytest.param(
            '"profiles":[{},{"plugins":{"nope":{},"filter":{"enabled":[{"x":1}]}}}],"parallelism":1,"parallelism":2',
            'unknown field "profiles[1].plugins.nope", '
            'unknown field "profiles[1].plugins.filter.enabled[0].x", duplicate field "parallelism"',
            id="paths have indexes",
        ),
        pytest.param(
            '"profiles":[{"pluginConfig":[{"name":"VolumeBinding","args":{"a":1,"bindTimeoutSeconds":1,'
            '"bindTimeoutSeconds":2}},{"name":"Foo","args":{"a":1,"a":2}}],"b":1}]',
            'unknown field "profiles[0].b", decoding .profiles[0].pluginConfig[0]: strict decoding error: '
            "decoding args for plugin VolumeBinding: strict decoding error: "
            'unknown field "a", duplicate field "bindTimeoutSeconds"',
            id="arguments come last, unknown ones are not looked at",
        ),
    ],
)
def test_strict_decoding(fields: str, errors: str) -> None:
    assert refused(f"{JSON_HEADER},{fields}}}") == f"strict decoding error: {errors}"


def test_strictness_of_yaml_reports_repeated_keys_first_and_the_rest_sorted() -> None:
    assert refused(YAML_HEADER + "zeta: 1\nparallelism: 1\nalpha: 1\nparallelism: 2\n") == (
        "strict decoding error: yaml: unmarshal errors:\n"
        '  line 6: key "parallelism" already set in map, unknown field "alpha", unknown field "zeta"'
    )


def test_strict_errors_are_bounded() -> None:
    fields = ",".join(f'"x{number}":1' for number in range(150))
    assert refused(f"{JSON_HEADER},{fields}}}").count("unknown field") == 100


def test_whole_floats_of_yaml_are_integers() -> None:
    assert load(YAML_HEADER + "parallelism: 4.0\n", ARGS_KINDS).parallelism == 4


def test_only_the_first_document_counts() -> None:
    assert load(YAML_HEADER + "parallelism: 3\n---\nparallelism: [\n", ARGS_KINDS).parallelism == 3


def test_null_elements_are_empty_ones(refusal: Callable[..., str]) -> None:
    assert refusal(profiles=[None]) == ""
    assert refusal(extenders=[None], profiles=[{"plugins": {"filter": {"disabled": [None]}}}]) == ""
