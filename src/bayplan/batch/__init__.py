"""The batch engine: sessions, actions, tiers and plugins that behave like Volcano's scheduler.

Exports the names that plugins and actions need. A name is loaded at its first use, so that reading a configuration does
not load the engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayplan.batch.config.argument_specs import Argument
    from bayplan.batch.config.arguments import Arguments
    from bayplan.batch.config.scheduler_conf import BatchConfiguration, PluginOption
    from bayplan.batch.config.volcano_quirk_fixes import QuirkFix
    from bayplan.batch.evaluation.node_points import NODE_STATIC, ROW_LOCAL, ScoredRows, same_for_all
    from bayplan.batch.handle import BatchHandle
    from bayplan.batch.model.amounts import Amounts
    from bayplan.batch.model.hypernodes import HyperNode
    from bayplan.batch.model.jobs import Job
    from bayplan.batch.model.nodes import FloatVector, Node, Nodes, NodeUsage
    from bayplan.batch.model.queues import Queue
    from bayplan.batch.model.statuses import TaskStatus
    from bayplan.batch.model.sub_jobs import SubJob
    from bayplan.batch.model.tasks import Task
    from bayplan.batch.registry import ActionSet, BatchPluginSet
    from bayplan.batch.session.combine_rules import Vote
    from bayplan.batch.session.extension_points import InvalidJob
    from bayplan.batch.session.outcome import SessionResult
    from bayplan.batch.session.registration import EvictionContext, EvictionKind, SearchPurpose
    from bayplan.batch.session.session import Session
    from bayplan.batch.session.simulation import Simulation
    from bayplan.batch.session.statement import Statement, save_operations

__all__ = [
    "NODE_STATIC",
    "ROW_LOCAL",
    "ActionSet",
    "Amounts",
    "Argument",
    "Arguments",
    "BatchConfiguration",
    "BatchHandle",
    "BatchPluginSet",
    "EvictionContext",
    "EvictionKind",
    "FloatVector",
    "HyperNode",
    "InvalidJob",
    "Job",
    "Node",
    "NodeUsage",
    "Nodes",
    "PluginOption",
    "Queue",
    "QuirkFix",
    "ScoredRows",
    "SearchPurpose",
    "Session",
    "SessionResult",
    "Simulation",
    "Statement",
    "SubJob",
    "Task",
    "TaskStatus",
    "Vote",
    "same_for_all",
    "save_operations",
]

_MODULES = {
    "model.amounts": ("Amounts",),
    "config.arguments": ("Arguments",),
    "config.scheduler_conf": ("BatchConfiguration", "PluginOption"),
    "config.argument_specs": ("Argument",),
    "handle": ("BatchHandle",),
    "model.hypernodes": ("HyperNode",),
    "model.jobs": ("Job",),
    "config.volcano_quirk_fixes": ("QuirkFix",),
    "evaluation.node_points": ("NODE_STATIC", "ROW_LOCAL", "ScoredRows", "same_for_all"),
    "model.nodes": ("FloatVector", "Node", "NodeUsage", "Nodes"),
    "session.outcome": ("SessionResult",),
    "session.extension_points": ("InvalidJob",),
    "model.queues": ("Queue",),
    "session.registration": ("EvictionContext", "EvictionKind", "SearchPurpose"),
    "registry": ("ActionSet", "BatchPluginSet"),
    "session.combine_rules": ("Vote",),
    "session.session": ("Session",),
    "session.simulation": ("Simulation",),
    "session.statement": ("Statement", "save_operations"),
    "model.statuses": ("TaskStatus",),
    "model.sub_jobs": ("SubJob",),
    "model.tasks": ("Task",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
