"""Replay of traces in virtual time by the engines of a live scheduler, with metrics."""
