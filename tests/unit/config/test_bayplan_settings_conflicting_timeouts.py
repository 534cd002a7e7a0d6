"""Settings of which one would cut short what another one allows: both are named, and what to write."""

from __future__ import annotations

import pytest

from bayplan.config.bayplan_settings import load_settings
from bayplan.errors import ConfigError

HEAD = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n"
WAITS = "binderPlugins: {volumebinding: {arguments: {bindTimeoutSeconds: %s}}}\n"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        pytest.param(
            "staleRequestSeconds: 3\nbinderPluginSeconds: 60\n",
            "staleRequestSeconds is 3 and binderPluginSeconds 60: a request would be deleted after 6 times 3 s, while "
            "a plugin may still be at work on it; write a staleRequestSeconds above 10, or a binderPluginSeconds "
            "below 18",
            id="deleted while a plugin is at work",
        ),
        pytest.param(
            "staleRequestSeconds: 10\nbinderPluginSeconds: 60\n", "write a staleRequestSeconds above 10", id="just so"
        ),
        pytest.param(
            f"binderPluginSeconds: 60\n{WAITS % 60.5}",
            "binderPlugins.volumebinding.arguments.bindTimeoutSeconds is 60.5 and binderPluginSeconds 60: the call "
            "would be ended before the wait is over; write a binderPluginSeconds that is longer",
            id="a wait that the limit ends",
        ),
        pytest.param(WAITS % 901, "is 901 and binderPluginSeconds 900: the call", id="the limit as shipped"),
    ],
)
def test_times_that_are_at_odds_are_refused(said: str, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        load_settings(HEAD + said, "s.yaml")
    assert str(told.value).startswith("s.yaml: ")
    assert words in str(told.value)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param("staleRequestSeconds: 11\nbinderPluginSeconds: 60\n", id="longer than a call may take"),
        pytest.param("staleRequestSeconds: 1\n", id="the binder has a file of its own"),
        pytest.param(f"binderPluginSeconds: 60\n{WAITS % 60}", id="a wait as long as the limit"),
        pytest.param("binderPluginSeconds: 60\n", id="waits as shipped, which the limit may end"),
        pytest.param(f"binderPluginSeconds: 60\n{WAITS % 'long'}", id="the plugin says what is wrong with it"),
        pytest.param("binderPluginSeconds: 60\nbinderPlugins: {volumebinding: 3}\n", id="so does who reads it"),
    ],
)
def test_other_times_are_taken(said: str) -> None:
    assert load_settings(HEAD + said, "s.yaml").binder_workers == 10
