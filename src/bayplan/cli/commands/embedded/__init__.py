"""Commands that start, stop and show the embedded cluster, and the demo."""
