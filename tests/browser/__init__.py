"""A real browser for tests and benchmarks of the page."""
