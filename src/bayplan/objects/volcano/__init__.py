"""Volcano API objects, their constants and CustomResourceDefinitions."""
