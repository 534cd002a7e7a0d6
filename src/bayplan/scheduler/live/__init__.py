"""Run loop of the pod engine on a cluster, with its event handlers."""
