"""Answers a configuration: the completed profiles, or the error."""

from __future__ import annotations

import random
from typing import Any

from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.errors import ConfigError
from bayplan.framework.runtime.nominator import Nominator
from bayplan.framework.runtime.profile import build_profile
from bayplan.framework.runtime.registry import Registry
from bayplan.framework.runtime.waiting_pods import WaitingPodsMap
from bayplan.scheduler.plugin_handle import EngineHandle
from bayplan.testing.conformance.scenario_cluster import load_scenario_configuration


def answer_configuration(scenario: dict[str, Any], registry: Registry) -> dict[str, Any]:
    """Every profile as it would run; after an error, those that were built before it."""
    answer: dict[str, Any] = {"name": scenario.get("name", "")}
    profiles: dict[str, Any] = {}
    handle = EngineHandle(ManualClock(), random.Random(0), Cache(), Nominator(), WaitingPodsMap())
    try:
        for profile in load_scenario_configuration(scenario, registry).profiles:
            profiles[profile.scheduler_name] = build_profile(profile, registry, handle).describe()
    except ConfigError as fault:
        answer["error"] = f"{fault.stage}: {fault}"
    if profiles:
        answer["profiles"] = profiles
    return answer
