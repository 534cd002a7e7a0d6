"""Table of the arguments of in-tree plugins, used by the configuration loader."""

from __future__ import annotations

from types import MappingProxyType

from bayplan.config.plugin_args import ArgsKind, ArgsKinds
from bayplan.plugins.default_preemption import args as default_preemption_args
from bayplan.plugins.dynamic_resources import args as dynamic_resources_args
from bayplan.plugins.inter_pod_affinity import args as inter_pod_affinity_args
from bayplan.plugins.node_affinity import args as node_affinity_args
from bayplan.plugins.node_resources import balanced_allocation_args, fit_args
from bayplan.plugins.pod_topology_spread import args as pod_topology_spread_args
from bayplan.plugins.volume_binding import args as volume_binding_args

_KINDS: tuple[ArgsKind, ...] = (
    default_preemption_args.ARGS,
    dynamic_resources_args.ARGS,
    inter_pod_affinity_args.ARGS,
    node_affinity_args.ARGS,
    balanced_allocation_args.ARGS,
    fit_args.ARGS,
    pod_topology_spread_args.ARGS,
    volume_binding_args.ARGS,
)

ARGS_KINDS: ArgsKinds = MappingProxyType({kind.plugin: kind for kind in _KINDS})
