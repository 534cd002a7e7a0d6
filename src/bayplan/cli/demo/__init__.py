"""The demo: its workloads, its steps and its screen."""
