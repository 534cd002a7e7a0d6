"""The capacity plugin: queues stay within their capability and get what they deserve, flat or as a tree."""
