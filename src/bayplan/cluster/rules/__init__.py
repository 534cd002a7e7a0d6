"""What the API server does with an object between reading and storing it: defaults, admission, strategies, validation."""
