"""Readers of workload traces: OpenB, CSV tables and recorded clusters."""
