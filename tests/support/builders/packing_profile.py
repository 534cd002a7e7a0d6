"""Configuration shared by the tests of recordings and what-if."""

from __future__ import annotations

PACKING_CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
  plugins:
    multiPoint: {enabled: [{name: NodeResourcesFit, weight: 10}]}
"""
"""Fills nodes one after another, where the default configuration spreads."""
