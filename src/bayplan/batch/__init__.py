"""The batch engine: sessions, actions, tiers and plugins, behaving like Volcano's scheduler.

What a plugin or an action is made of can be imported from here. Names are loaded when they are first used: whoever
wants the configuration alone does not load the engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayplan.batch.amounts import Amounts
    from bayplan.batch.arguments import Arguments
    from bayplan.batch.conf import BatchConfiguration, PluginOption
    from bayplan.batch.declared import Argument
    from bayplan.batch.handle import BatchHandle
    from bayplan.batch.hypernodes import HyperNode
    from bayplan.batch.jobs import Job
    from bayplan.batch.mends import Mend
    from bayplan.batch.node_points import NODE_ALONE, ROW_ALONE, ScoredRows, same_for_all
    from bayplan.batch.nodes import FloatVector, Node, Nodes, NodeUsage
    from bayplan.batch.outcome import Outcome
    from bayplan.batch.points import Invalid
    from bayplan.batch.queues import Queue
    from bayplan.batch.registration import EvictionContext, EvictionKind, Purpose
    from bayplan.batch.registry import ActionSet, PluginSet
    from bayplan.batch.rules import Vote
    from bayplan.batch.session import Session
    from bayplan.batch.simulation import Simulation
    from bayplan.batch.statement import Statement, saved
    from bayplan.batch.statuses import TaskStatus
    from bayplan.batch.sub_jobs import SubJob
    from bayplan.batch.tasks import Task

__all__ = [
    "NODE_ALONE",
    "ROW_ALONE",
    "ActionSet",
    "Amounts",
    "Argument",
    "Arguments",
    "BatchConfiguration",
    "BatchHandle",
    "EvictionContext",
    "EvictionKind",
    "FloatVector",
    "HyperNode",
    "Invalid",
    "Job",
    "Mend",
    "Node",
    "NodeUsage",
    "Nodes",
    "Outcome",
    "PluginOption",
    "PluginSet",
    "Purpose",
    "Queue",
    "ScoredRows",
    "Session",
    "Simulation",
    "Statement",
    "SubJob",
    "Task",
    "TaskStatus",
    "Vote",
    "same_for_all",
    "saved",
]

_MODULES = {
    "amounts": ("Amounts",),
    "arguments": ("Arguments",),
    "conf": ("BatchConfiguration", "PluginOption"),
    "declared": ("Argument",),
    "handle": ("BatchHandle",),
    "hypernodes": ("HyperNode",),
    "jobs": ("Job",),
    "mends": ("Mend",),
    "node_points": ("NODE_ALONE", "ROW_ALONE", "ScoredRows", "same_for_all"),
    "nodes": ("FloatVector", "Node", "NodeUsage", "Nodes"),
    "outcome": ("Outcome",),
    "points": ("Invalid",),
    "queues": ("Queue",),
    "registration": ("EvictionContext", "EvictionKind", "Purpose"),
    "registry": ("ActionSet", "PluginSet"),
    "rules": ("Vote",),
    "session": ("Session",),
    "simulation": ("Simulation",),
    "statement": ("Statement", "saved"),
    "statuses": ("TaskStatus",),
    "sub_jobs": ("SubJob",),
    "tasks": ("Task",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
