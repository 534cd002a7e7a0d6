"""GPU sharing, claimed devices and NUMA CPU assignment for tasks of a session."""
