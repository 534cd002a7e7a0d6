"""Bayplan's own settings: defaults, strictness, and complaints that say what to write."""

from __future__ import annotations

import pytest

from bayplan.config.own_settings import OwnSettings, load_settings
from bayplan.errors import ConfigError

HEAD = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n"


def test_what_is_not_said_has_its_default() -> None:
    assert load_settings(HEAD, "s.yaml") == OwnSettings()
    defaults = OwnSettings()
    assert (defaults.writes_at_once, defaults.slice_milliseconds, defaults.watchdog_seconds) == (64, 4, 30)


def test_every_key_can_be_set() -> None:
    keys = [
        "writesAtOnce",
        "sliceMilliseconds",
        "watchdogSeconds",
        "recordsMebibytes",
        "pluginPollSeconds",
        "stopSeconds",
        "bindAttempts",
        "staleRequestSeconds",
        "binderWorkers",
        "binderPluginSeconds",
    ]
    text = HEAD + "".join(f"{key}: {number}\n" for number, key in enumerate(keys, 1))
    others = (
        "bindRequests: true\nbinderPlugins: {gpusharing: {enabled: false}}\npageAddress: localhost:1\nties: inOrder\n"
        "mends: [tdm-midnight]\n"
    )
    found = load_settings(text + others, "s.yaml")
    names = dict(zip(OwnSettings.__struct_encode_fields__, OwnSettings.__struct_fields__, strict=True))
    assert [getattr(found, names[key]) for key in keys] == list(range(1, 11))
    assert (found.bind_requests, found.binder_plugins) == (True, {"gpusharing": {"enabled": False}})
    assert (found.page_address, found.ties, found.mends) == ("localhost:1", "inOrder", ("tdm-midnight",))
    assert set(names) == {*keys, "bindRequests", "binderPlugins", "pageAddress", "ties", "mends"}


def test_json_is_read_too() -> None:
    text = '{"apiVersion": "bayplan.dev/v1alpha1", "kind": "BayplanConfiguration", "watchdogSeconds": 0}'
    assert load_settings(text, "s.json").watchdog_seconds == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(HEAD + "writeAtOnce: 3\n", 'no key "writeAtOnce"; did you mean "writesAtOnce"?', id="misspelt"),
        pytest.param(HEAD + "xyz: 3\n", 'no key "xyz"; known keys: apiVersion, bindAttempts, bind', id="unknown"),
        pytest.param(HEAD + "writesAtOnce: many\n", "expected `int`, got `str`, and it is 'many'", id="type"),
        pytest.param(HEAD + "writesAtOnce: 0\n", "writesAtOnce: expected `int` >= 1, and it is 0", id="range"),
        pytest.param(HEAD + "writesAtOnce: 1\nwritesAtOnce: 2\n", "writesAtOnce", id="twice"),
        pytest.param("writesAtOnce: 1\n", "of no kind of no apiVersion; write apiVersion: bayplan.dev", id="no-kind"),
        pytest.param(HEAD.replace("v1alpha1", "v9"), "of bayplan.dev/v9; write apiVersion", id="version"),
        pytest.param("[1]\n", "holds no object", id="list"),
        pytest.param("", "holds no object", id="empty"),
        pytest.param("a: [\n", "neither YAML nor JSON", id="no-yaml"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        load_settings(text, "s.yaml")
    assert str(told.value).startswith("s.yaml")
    assert words in str(told.value)
