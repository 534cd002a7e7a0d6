"""Components that are not under test: the driver plays them."""
