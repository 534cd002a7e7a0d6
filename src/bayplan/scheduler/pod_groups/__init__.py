"""Scheduling of pod groups as a whole: attempts, placements and preemption."""
