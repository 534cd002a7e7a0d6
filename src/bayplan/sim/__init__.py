"""Simulation: reads traces and recordings, replays them with the engines of a live scheduler, compares and sweeps."""
