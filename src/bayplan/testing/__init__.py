"""The kit for people who test schedulers and plugins."""
