"""Fixtures for configurations that differ from the minimal one in a single place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bayplan.config.load import load
from bayplan.errors import ConfigError
from bayplan.plugins.args_kinds import ARGS_KINDS

HEADER = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}

Refusal = Callable[..., str]


def text_of(**fields: Any) -> str:
    return json.dumps(HEADER | fields)


def refusal_of(text: str) -> str:
    """The stage and the error of a refused configuration; empty if it is accepted."""
    try:
        load(text, ARGS_KINDS)
    except ConfigError as error:
        return f"{error.stage}: {error}"
    return ""


@pytest.fixture
def refusal() -> Refusal:
    """The error of a configuration with these fields."""
    return lambda **fields: refusal_of(text_of(**fields))


@pytest.fixture
def args_refusal() -> Refusal:
    """The error of a configuration with these arguments of a plugin, without their path."""

    def refused(plugin: str, args: Any) -> str:
        profiles = [{"pluginConfig": [{"name": plugin, "args": args}]}]
        return refusal_of(text_of(profiles=profiles)).replace("profiles[0].pluginConfig[0].args.", "")

    return refused
