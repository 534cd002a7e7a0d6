"""The OpenB experiment over many workloads, policies and seeds, with reports."""
