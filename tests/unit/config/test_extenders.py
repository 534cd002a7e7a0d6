from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bayplan.codec.go_duration import GoDuration
from bayplan.config.extenders import apply_extenders
from bayplan.config.load import load
from bayplan.config.model import Configuration
from bayplan.errors import ConfigError
from bayplan.plugins.args_kinds import ARGS_KINDS

HEADER = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def configuration(*extenders: dict[str, Any], **fields: Any) -> Configuration:
    return load(json.dumps(HEADER | {"extenders": list(extenders)} | fields), ARGS_KINDS)


def resources(*names: str, ignored: bool = False) -> dict[str, Any]:
    return {"managedResources": [{"name": name, "ignoredByScheduler": ignored} for name in names]}


@pytest.mark.parametrize(
    ("extenders", "message"),
    [
        pytest.param(
            [{"prioritizeVerb": "p", "weight": 0}],
            "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
            id="weightless",
        ),
        pytest.param(
            [{"bindVerb": "b"}, {}, {"bindVerb": "b"}],
            'extenders: Invalid value: "found 2 extenders implementing bind": only one extender can implement bind',
            id="two binders",
        ),
        pytest.param(
            [resources("cpu")],
            'extenders[0].managedResources[0].name: Invalid value: "cpu": is an invalid extended resource name',
            id="native resource",
        ),
        pytest.param(
            [resources("x.kubernetes.io/gpu", "requests.a.b/c")],
            '[extenders[0].managedResources[0].name: Invalid value: "x.kubernetes.io/gpu": '
            "is an invalid extended resource name, "
            'extenders[0].managedResources[1].name: Invalid value: "requests.a.b/c": '
            "is an invalid extended resource name]",
            id="reserved prefixes",
        ),
        pytest.param(
            [resources("<a/b")],
            'extenders[0].managedResources[0].name: Invalid value: "\\u003ca/b": prefix part '
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
            r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            id="no label name, shown as JSON",
        ),
        pytest.param(
            [resources("a.b/c"), resources("a.b/c", "a.b/c")],
            '[extenders[1].managedResources[0].name: Invalid value: "a.b/c": duplicate extender managed resource name, '
            'extenders[1].managedResources[1].name: Invalid value: "a.b/c": duplicate extender managed resource name]',
            id="managed by two",
        ),
    ],
)
def test_invalid_extenders_are_refused(refusal: Callable[..., str], extenders: list[Any], message: str) -> None:
    assert refusal(extenders=extenders) == f"invalid: {message}"


def test_fields_and_the_default_timeout() -> None:
    found = configuration(
        {"urlPrefix": "http://a", "enableHTTPS": True, "tlsConfig": {"caData": "aGk="}, "httpTimeout": "3s"},
        {"urlPrefix": "http://b"},
    ).extenders
    assert (found[0].url_prefix, found[0].enable_https, found[0].timeout) == (
        "http://a",
        True,
        GoDuration.of_seconds(3),
    )
    assert found[0].tls_config is not None
    assert found[0].tls_config.ca_data == b"hi"
    assert found[1].timeout == GoDuration.of_seconds(5)


def test_ignorable_extenders_come_last() -> None:
    given = [{"urlPrefix": name, "ignorable": name in "ac"} for name in "abcd"]
    assert [extender.url_prefix for extender in apply_extenders(configuration(*given)).extenders] == list("bdac")


def test_ignored_resources_replace_those_of_every_profile() -> None:
    fit = {"name": "NodeResourcesFit", "args": {"ignoredResources": ["own.example/x"]}}
    found = apply_extenders(
        configuration(
            resources("a.b/c", ignored=True) | {"ignorable": True},
            resources("a.b/d", ignored=True),
            resources("a.b/e"),
            profiles=[{"schedulerName": "one", "pluginConfig": [fit]}, {"schedulerName": "two"}],
        )
    )
    ignored = [profile.plugin_config["NodeResourcesFit"].ignored_resources for profile in found.profiles]
    assert ignored == [("a.b/c", "a.b/d")] * 2


def test_extenders_without_ignored_resources_change_nothing() -> None:
    fit = {"name": "NodeResourcesFit", "args": {"ignoredResources": ["own.example/x"]}}
    given = configuration(resources("a.b/e"), profiles=[{"pluginConfig": [fit]}])
    assert apply_extenders(given) == given


def test_a_profile_without_fit_arguments_cannot_ignore() -> None:
    bare = {"plugins": {"multiPoint": {"disabled": [{"name": "NodeResourcesFit"}]}}}
    given = configuration(resources("a.b/c", ignored=True), profiles=[bare])
    with pytest.raises(
        ConfigError, match=r"^couldn't build extenders: can't find NodeResourcesFitArgs in plugin config$"
    ):
        apply_extenders(given)
