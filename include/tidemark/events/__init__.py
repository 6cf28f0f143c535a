"""Reports of instances: listeners, events, the events topic."""
