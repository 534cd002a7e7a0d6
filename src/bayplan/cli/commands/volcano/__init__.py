"""Commands for Volcano jobs, queues and pod groups, compatible with vcctl."""
