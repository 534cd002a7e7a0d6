"""Both engines on a cluster in memory, for replays of recordings and what-if questions."""
