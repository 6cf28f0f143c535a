"""What an instance tells of itself: listeners, events, the events topic (rows D4, D5)."""
