"""Validation of pods and pod templates."""
