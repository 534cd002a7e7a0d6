"""Output of commands: tables, JSON and YAML, colours and progress."""
