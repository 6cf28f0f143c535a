"""Restores and changes by an on-call operator: checked, planned, approved, done step by step, undone if they fail."""
