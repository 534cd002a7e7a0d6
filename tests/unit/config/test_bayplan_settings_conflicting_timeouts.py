"""Conflicting timeouts: the error names both settings and what to write."""

from __future__ import annotations

import pytest

from bayplan.config.bayplan_settings import load_settings
from bayplan.errors import ConfigError

HEAD = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n"
WAITS = "binderPlugins: {volumebinding: {arguments: {bindTimeoutSeconds: %s}}}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "staleRequestSeconds: 3\nbinderPluginSeconds: 60\n",
            "staleRequestSeconds is 3 and binderPluginSeconds 60: the scheduler would delete a "
            "request after 6 times 3 s, while a plugin may still work on it; set staleRequestSeconds above 10, "
            "or binderPluginSeconds below 18",
            id="deleted while a plugin is at work",
        ),
        pytest.param(
            "staleRequestSeconds: 10\nbinderPluginSeconds: 60\n", "set staleRequestSeconds above 10", id="equal"
        ),
        pytest.param(
            f"binderPluginSeconds: 60\n{WAITS % 60.5}",
            "binderPlugins.volumebinding.arguments.bindTimeoutSeconds is 60.5 and binderPluginSeconds 60: the binder "
            "would end the call before the wait is over; set a longer binderPluginSeconds",
            id="a wait that the limit ends",
        ),
        pytest.param(WAITS % 901, "is 901 and binderPluginSeconds 900: the binder", id="the limit as shipped"),
    ],
)
def test_conflicting_timeouts_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(HEAD + text, "s.yaml")
    assert str(caught.value).startswith("s.yaml: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("staleRequestSeconds: 11\nbinderPluginSeconds: 60\n", id="longer than a call may take"),
        pytest.param("staleRequestSeconds: 1\n", id="the binder has a file of its own"),
        pytest.param(f"binderPluginSeconds: 60\n{WAITS % 60}", id="a wait as long as the limit"),
        pytest.param("binderPluginSeconds: 60\n", id="waits as shipped, which the limit may end"),
        pytest.param(f"binderPluginSeconds: 60\n{WAITS % 'long'}", id="the plugin says what is wrong with it"),
        pytest.param("binderPluginSeconds: 60\nbinderPlugins: {volumebinding: 3}\n", id="so does who reads it"),
    ],
)
def test_compatible_timeouts_are_accepted(text: str) -> None:
    assert load_settings(HEAD + text, "s.yaml").binder_workers == 10
