"""Restore drills: the state is rebuilt elsewhere while the application runs, and compared key by key."""
