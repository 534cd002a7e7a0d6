"""Plugin DefaultPreemption."""
