"""Plugin PodTopologySpread."""
