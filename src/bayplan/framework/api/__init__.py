"""What plugin authors import: extension points, statuses, cluster events, the cycle and the handle."""
