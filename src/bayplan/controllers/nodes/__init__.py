"""Node lifecycle and taint eviction controllers."""
