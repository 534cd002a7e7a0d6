"""Answers why a pod is on its node or pending, and which change would make it fit."""
