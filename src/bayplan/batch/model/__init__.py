"""Jobs, tasks, queues, nodes and resource amounts of the batch engine, as in Volcano's scheduler API package."""
