"""Live web page of the scheduler and its event stream."""
