"""Plugin NodeVolumeLimits."""
