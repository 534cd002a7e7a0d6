"""Bayplan's own settings: defaults, strict decoding, and errors that say what to write."""

from __future__ import annotations

import pytest

from bayplan.config.bayplan_settings import BayplanSettings, load_settings
from bayplan.config.reservation_settings import PodResources, ReservationSettings
from bayplan.errors import ConfigError

HEAD = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n"


def test_missing_keys_have_defaults() -> None:
    assert load_settings(HEAD, "s.yaml") == BayplanSettings()
    defaults = BayplanSettings()
    assert (defaults.writes_at_once, defaults.slice_milliseconds, defaults.watchdog_seconds) == (64, 4, 30)


def test_every_key_can_be_set() -> None:
    keys = [
        "writesAtOnce",
        "sliceMilliseconds",
        "watchdogSeconds",
        "recordsMebibytes",
        "pluginPollSeconds",
        "stopSeconds",
        "requestTimeoutSeconds",
        "bindAttempts",
        "staleRequestSeconds",
        "binderWorkers",
        "binderPluginSeconds",
    ]
    text = HEAD + "".join(f"{key}: {number}\n" for number, key in enumerate(keys, 1))
    rest = (
        "bindRequests: true\nbinderPlugins: {gpusharing: {enabled: false}}\npageAddress: localhost:1\nties: inOrder\n"
        "binderLeaseNamespace: ours\n"
        "volcanoQuirkFixes: [tdm-midnight]\n"
        "resourceReservation: {namespace: gpu-holders, podResources: {limits: {cpu: 1}}}\n"
    )
    found = load_settings(text + rest, "s.yaml")
    names = dict(zip(BayplanSettings.__struct_encode_fields__, BayplanSettings.__struct_fields__, strict=True))
    assert [getattr(found, names[key]) for key in keys] == list(range(1, 12))
    assert found.binder_lease_namespace == "ours"
    assert (found.bind_requests, found.binder_plugins) == (True, {"gpusharing": {"enabled": False}})
    assert (found.page_address, found.ties, found.volcano_quirk_fixes) == ("localhost:1", "inOrder", ("tdm-midnight",))
    resources = PodResources(limits={"cpu": 1})
    assert found.resource_reservation == ReservationSettings(namespace="gpu-holders", pod_resources=resources)
    nested = {
        "bindRequests",
        "binderLeaseNamespace",
        "binderPlugins",
        "resourceReservation",
        "pageAddress",
        "ties",
        "volcanoQuirkFixes",
    }
    assert set(names) == {*keys, *nested}


def test_json_is_accepted() -> None:
    text = '{"apiVersion": "bayplan.dev/v1alpha1", "kind": "BayplanConfiguration", "watchdogSeconds": 0}'
    assert load_settings(text, "s.json").watchdog_seconds == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            HEAD + "writeAtOnce: 3\n", 'unknown key "writeAtOnce"; did you mean "writesAtOnce"?', id="misspelt"
        ),
        pytest.param(HEAD + "xyz: 3\n", 'unknown key "xyz"; known keys: apiVersion, bindAttempts, bind', id="unknown"),
        pytest.param(HEAD + "writesAtOnce: many\n", "expected `int`, got `str`; the value is 'many'", id="type"),
        pytest.param(HEAD + "writesAtOnce: 0\n", "writesAtOnce: expected `int` >= 1; the value is 0", id="range"),
        pytest.param(HEAD + "writesAtOnce: 1\nwritesAtOnce: 2\n", "writesAtOnce", id="twice"),
        pytest.param(
            "writesAtOnce: 1\n", "has kind none and apiVersion none; write apiVersion: bayplan.dev", id="no-kind"
        ),
        pytest.param(HEAD.replace("v1alpha1", "v9"), "and apiVersion bayplan.dev/v9; write apiVersion", id="version"),
        pytest.param("[1]\n", "has no object", id="list"),
        pytest.param("", "has no object", id="empty"),
        pytest.param("a: [\n", "neither YAML nor JSON", id="no-yaml"),
    ],
)
def test_invalid_settings_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(text, "s.yaml")
    assert str(caught.value).startswith("s.yaml")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("namspace: a", 'unknown key "resourceReservation.namspace"; did you mean "resourceReservation.namespace"?'),
        ("namespace: A_b", "namespace: a lowercase RFC 1123 label must consist of"),
        ("namespace: 3", "namespace: expected `str`, got `int`; the value is 3"),
        ("serviceAccountName: ''", "serviceAccountName: a lowercase RFC 1123 subdomain must consist of"),
        ("appLabel: a b", "appLabel: a valid label must be an empty string or consist of"),
        ("image: ''", "image: an image must have a name without spaces; the value is ''"),
        ("image: a b", "image: an image must have a name without spaces; the value is 'a b'"),
        ("runtimeClassName: Nvidia", "runtimeClassName: a lowercase RFC 1123 subdomain"),
        ("allocationTimeout: 0", "allocationTimeout: expected `float` > 0.0; the value is 0"),
        ("scalingPodNamespace: a.b", "scalingPodNamespace: must not contain dots; the value is 'a.b'"),
        ("podResources: {limit: {}}", 'unknown key "resourceReservation.podResources.limit"; did you mean'),
        ("podResources: {limits: {cpu: x}}", "podResources.limits.cpu: 'x' is not a quantity"),
        ("podResources: {requests: {memory: -1}}", "podResources.requests.memory: an amount must not be negative"),
        ("podResources: {limits: {nvidia.com/gpu: 2}}", "gpu: each reservation pod requests one device"),
    ],
)
def test_invalid_reservation_settings_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(f"{HEAD}resourceReservation:\n  {text}\n", "s.yaml")
    assert str(caught.value).startswith("s.yaml: ")
    assert words in str(caught.value)
