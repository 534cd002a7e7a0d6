"""Servers, proxies, clocks and plugins that replace real ones in tests."""
