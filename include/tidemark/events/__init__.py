"""What an instance reports about itself: listeners, events, the events topic."""
