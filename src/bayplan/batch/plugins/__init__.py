"""Volcano's plugins: one file = one plugin."""

from __future__ import annotations

from bayplan.batch.plugins.binpack import Binpack
from bayplan.batch.plugins.capacity.plugin import Capacity
from bayplan.batch.plugins.cdp import CooldownProtection
from bayplan.batch.plugins.conformance import Conformance
from bayplan.batch.plugins.deviceshare import DeviceShare
from bayplan.batch.plugins.drf.plugin import DominantShares
from bayplan.batch.plugins.extender.plugin import Extender
from bayplan.batch.plugins.gang import Gang
from bayplan.batch.plugins.network_topology_aware import NetworkTopologyAware
from bayplan.batch.plugins.nodegroup import NodeGroup
from bayplan.batch.plugins.nodeorder import NodeOrder
from bayplan.batch.plugins.numa_aware import NumaAware
from bayplan.batch.plugins.overcommit import Overcommit
from bayplan.batch.plugins.pdb import DisruptionBudgets
from bayplan.batch.plugins.predicates import Predicates
from bayplan.batch.plugins.priority import Priority
from bayplan.batch.plugins.proportion.plugin import Proportion
from bayplan.batch.plugins.rescheduling.plugin import Rescheduling
from bayplan.batch.plugins.resource_strategy_fit import ResourceStrategyFit
from bayplan.batch.plugins.resourcequota import ResourceQuotas
from bayplan.batch.plugins.sla import Sla
from bayplan.batch.plugins.task_topology.plugin import TaskTopology
from bayplan.batch.plugins.tdm import TimeDivision
from bayplan.batch.plugins.usage import Usage
from bayplan.batch.registry import PluginSet

__all__ = ["default_batch_plugins"]


def default_batch_plugins() -> PluginSet:
    """Every plugin that ships."""
    return PluginSet(
        (
            Gang,
            Priority,
            Conformance,
            DominantShares,
            Proportion,
            Capacity,
            Overcommit,
            Sla,
            ResourceQuotas,
            Predicates,
            NodeOrder,
            TimeDivision,
            CooldownProtection,
            DisruptionBudgets,
            Rescheduling,
            Binpack,
            ResourceStrategyFit,
            Usage,
            NodeGroup,
            NetworkTopologyAware,
            DeviceShare,
            NumaAware,
            TaskTopology,
            Extender,
        )
    )
