"""Servers, proxies, clocks and plugins that stand in for real ones."""
