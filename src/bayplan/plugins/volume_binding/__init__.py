"""Plugin VolumeBinding."""
