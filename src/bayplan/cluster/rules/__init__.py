"""What happens to an object between reading and storing it: defaults, admission, strategies, validation."""
