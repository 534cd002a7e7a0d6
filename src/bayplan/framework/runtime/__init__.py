"""Runs the plugins of a profile at each extension point."""
