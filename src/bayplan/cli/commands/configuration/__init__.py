"""Commands that check and show configurations, and create and list plugins."""
