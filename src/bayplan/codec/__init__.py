"""Text formats: YAML, JSON, Go text, quantities and cron schedules."""
