"""Parts of a cluster that are no part of the test: the driver plays them itself."""
