"""Which in-tree plugins take arguments? The table that the configuration loader is handed."""

from __future__ import annotations

from types import MappingProxyType

from bayplan.config.args import ArgsKind, ArgsKinds
from bayplan.plugins import (
    default_preemption_args,
    dynamic_resources_args,
    inter_pod_affinity_args,
    node_affinity_args,
    node_resources_balanced_allocation_args,
    node_resources_fit_args,
    pod_topology_spread_args,
    volume_binding_args,
)

_KINDS: tuple[ArgsKind, ...] = (
    default_preemption_args.ARGS,
    dynamic_resources_args.ARGS,
    inter_pod_affinity_args.ARGS,
    node_affinity_args.ARGS,
    node_resources_balanced_allocation_args.ARGS,
    node_resources_fit_args.ARGS,
    pod_topology_spread_args.ARGS,
    volume_binding_args.ARGS,
)

ARGS_KINDS: ArgsKinds = MappingProxyType({kind.plugin: kind for kind in _KINDS})
