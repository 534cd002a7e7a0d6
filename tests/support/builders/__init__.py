"""Objects and inputs for tests; a test names only what it is about."""
