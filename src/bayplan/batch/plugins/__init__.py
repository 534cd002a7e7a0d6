"""Volcano's plugins, one module or package each."""

from __future__ import annotations

from bayplan.batch.plugins.binpack import BinpackPlugin
from bayplan.batch.plugins.capacity.plugin import CapacityPlugin
from bayplan.batch.plugins.cdp import CdpPlugin
from bayplan.batch.plugins.conformance import ConformancePlugin
from bayplan.batch.plugins.deviceshare import DeviceSharePlugin
from bayplan.batch.plugins.drf.plugin import DrfPlugin
from bayplan.batch.plugins.extender.plugin import ExtenderPlugin
from bayplan.batch.plugins.gang import GangPlugin
from bayplan.batch.plugins.network_topology_aware import NetworkTopologyAwarePlugin
from bayplan.batch.plugins.nodegroup import NodeGroupPlugin
from bayplan.batch.plugins.nodeorder import NodeOrderPlugin
from bayplan.batch.plugins.numa_aware import NumaAwarePlugin
from bayplan.batch.plugins.overcommit import OvercommitPlugin
from bayplan.batch.plugins.pdb import PdbPlugin
from bayplan.batch.plugins.predicates import PredicatesPlugin
from bayplan.batch.plugins.priority import PriorityPlugin
from bayplan.batch.plugins.proportion.plugin import ProportionPlugin
from bayplan.batch.plugins.rescheduling.plugin import ReschedulingPlugin
from bayplan.batch.plugins.resource_strategy_fit import ResourceStrategyFitPlugin
from bayplan.batch.plugins.resourcequota import ResourceQuotaPlugin
from bayplan.batch.plugins.sla import SlaPlugin
from bayplan.batch.plugins.task_topology.plugin import TaskTopologyPlugin
from bayplan.batch.plugins.tdm import TdmPlugin
from bayplan.batch.plugins.usage import UsagePlugin
from bayplan.batch.registry import BatchPluginSet

__all__ = ["default_batch_plugins"]


def default_batch_plugins() -> BatchPluginSet:
    return BatchPluginSet(
        (
            GangPlugin,
            PriorityPlugin,
            ConformancePlugin,
            DrfPlugin,
            ProportionPlugin,
            CapacityPlugin,
            OvercommitPlugin,
            SlaPlugin,
            ResourceQuotaPlugin,
            PredicatesPlugin,
            NodeOrderPlugin,
            TdmPlugin,
            CdpPlugin,
            PdbPlugin,
            ReschedulingPlugin,
            BinpackPlugin,
            ResourceStrategyFitPlugin,
            UsagePlugin,
            NodeGroupPlugin,
            NetworkTopologyAwarePlugin,
            DeviceSharePlugin,
            NumaAwarePlugin,
            TaskTopologyPlugin,
            ExtenderPlugin,
        )
    )
