"""Restore drills: the state rebuilt elsewhere while the application runs, and compared key by key."""
