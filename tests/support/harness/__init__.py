"""Parts of the product, set up for tests on manual or virtual time."""
